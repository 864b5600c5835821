"""What a simulated device is modelled on: speeds, sizes, faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...graph.ir import Node
from ...graph.operator import Cost
from ..errors import DeviceError


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on a simulated device.

    Attributes
    ----------
    fail_nodes : Mapping of str to Exception
        Nodes whose kernel raises, by name, and what it raises, on every run.
    lost_after : int or None
        How many programs and copies are accepted before the device is lost: what is not complete
        by then fails, and so does all that follows, until the device is opened again.
    """

    fail_nodes: Mapping[str, Exception] = field(default_factory=dict)
    lost_after: int | None = None


@dataclass(frozen=True, slots=True)
class SimModel:
    """The figures of a simulated device; the defaults are those of a mid-range accelerator.

    A kernel takes the longer of its arithmetic and its memory traffic, plus the launch (the
    roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009). A copy takes its latency
    and its bytes.

    Attributes
    ----------
    flops_per_s, bytes_per_s : float
        Arithmetic and memory traffic of kernels.
    copy_bytes_per_s, copy_latency_s : float
        Copies from and to host memory.
    launch_s : float
        Added to each kernel.
    memory_bytes : int
        The size of its memory.
    supports : frozenset of str, or callable, or None
        The operators it has, by name or as a question about a node; None for all.
    faults : Faults

    Raises
    ------
    DeviceError
        If a speed is not above zero, or a time or size is below.
    """

    flops_per_s: float = 4e12
    bytes_per_s: float = 200e9
    copy_bytes_per_s: float = 12e9
    copy_latency_s: float = 10e-6
    launch_s: float = 5e-6
    memory_bytes: int = 4 << 30
    supports: frozenset[str] | Callable[[Node], bool] | None = None
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "bytes_per_s", "copy_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise DeviceError(f"{name} is {getattr(self, name)}", fix="give a speed above 0")
        for name in ("copy_latency_s", "launch_s", "memory_bytes"):
            if not getattr(self, name) >= 0:
                raise DeviceError(f"{name} is {getattr(self, name)}", fix="give 0 or more")

    def kernel_s(self, cost: Cost) -> float:
        """Return how long a kernel of that cost takes."""
        return self.launch_s + max(cost.flops / self.flops_per_s, cost.nbytes / self.bytes_per_s)

    def copy_s(self, nbytes: int) -> float:
        """Return how long a copy of that many bytes takes."""
        return self.copy_latency_s + nbytes / self.copy_bytes_per_s

    def has(self, node: Node) -> bool:
        """Say whether the modelled device has the node's operator."""
        if callable(self.supports):
            return self.supports(node)
        return self.supports is None or node.op in self.supports
