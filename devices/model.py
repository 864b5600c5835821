"""Models of devices: speeds of computing and copying, sizes of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Self

from ..graph.core.ir import Graph, Node
from ..graph.core.operator import Cost
from .errors import DeviceError

MOST_OPERATORS = 10_000
"""Limit of operators in a model from a file."""

MOST_PEERS = 1_000
"""Limit of memories of other devices."""

LONGEST_S = 10_000_000
"""Some months, for a kernel or a copy: clocks count nanoseconds in 64 bits, 292 years of them."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The figures of a device; the defaults are those of a mid-range accelerator.

    The time of a kernel is that of its arithmetic or its memory traffic, whichever is longer, plus
    the launch (the roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009). A copy
    takes its latency plus the time for its bytes.

    Attributes
    ----------
    flops_per_s, bytes_per_s : float
        Arithmetic and memory traffic of kernels.
    copy_bytes_per_s, copy_latency_s : float
        Copies from and to host memory.
    peer_bytes_per_s : float or None
        Copies from memories of other devices, if the device makes them without the host; by default
        as fast as copies from host memory.
    launch_s : float
        Added to each kernel.
    submit_s : float
        Added to each program.
    memory_bytes : int or None
        The size of its memory; None if unknown.
    operators : Mapping of str to float
        The factor by which an operator, or one of its families of kernels, is slower than the other
        figures predict: ``"Conv"``, ``"Conv depthwise"``; 1 for others.
    supports : frozenset of str, or callable, or None
        The supported operators, by name or as a predicate of a node; None for all.
    copy_queues : int
        The number of queues for copies: 0, copies share the queue of programs; 1, all copies share
        one queue; 2, one queue for each direction.
    peers : frozenset of str
        The memories of other devices that a simulated device copies from without the host.
    layout_bytes_per_s : float or None
        How fast programs convert the layout of tensors that they exchange with other programs,
        including the loss of fusion across programs; None for no time at all.
    is_guess : bool
        True if the figures are neither measured nor given, but follow from the kind of device.

    Raises
    ------
    DeviceError
        If a speed is not positive, a size is negative, or a time is negative or infinite.

    Examples
    --------
    >>> import plait as pl
    >>> model = pl.DeviceModel(flops_per_s=1e12, copy_bytes_per_s=1e10, copy_latency_s=1e-5)
    >>> b = pl.GraphBuilder("product")
    >>> x = b.input("x", "float32", (1000, 1000))
    >>> b.output("y", b.op("MatMul", x, x, name="product"))
    >>> plan = pl.plan(b.build(), [pl.modelled_device("npu", model)])
    >>> f"{pl.simulate(plan).makespan_s * 1e3:.1f} ms"
    '3.7 ms'
    """

    flops_per_s: float = 4e12
    bytes_per_s: float = 200e9
    copy_bytes_per_s: float = 12e9
    copy_latency_s: float = 10e-6
    launch_s: float = 5e-6
    submit_s: float = 0.0
    memory_bytes: int | None = None
    operators: Mapping[str, float] = field(default_factory=dict)
    supports: frozenset[str] | Callable[[Node], bool] | None = None
    copy_queues: int = 2
    peer_bytes_per_s: float | None = None
    peers: frozenset[str] = frozenset()
    layout_bytes_per_s: float | None = None
    is_guess: bool = field(default=False, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "bytes_per_s", "copy_bytes_per_s", *self._own_speeds):
            value = getattr(self, name)
            if not (_is_number(value) and value > 0):
                raise _bad_value_error(name, value, "a speed above 0", None)
        for name in ("copy_latency_s", "launch_s", "submit_s"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value < math.inf):
                raise _bad_value_error(name, value, "seconds, 0 or more", None)
        size = self.memory_bytes
        if size is not None and not (_is_number(size) and 0 <= size < math.inf):
            raise _bad_value_error("memory_bytes", size, "0 or more", None)
        for op, factor in self.operators.items():
            if not (_is_number(factor) and 0 < factor < math.inf):
                raise _bad_value_error(f"the factor of {op!r}", factor, "one above 0", None)
        if self.copy_queues not in (0, 1, 2):
            raise DeviceError(f"copy_queues is {self.copy_queues}", fix="give 0, 1 or 2")

    @property
    def _own_speeds(self) -> Iterator[str]:
        optional = ("peer_bytes_per_s", "layout_bytes_per_s")
        return (name for name in optional if getattr(self, name) is not None)

    def kernel_s(self, kernel: str, cost: Cost) -> float:
        """Return the time of a kernel of `cost`; `kernel` is an operator or a `name_family`."""
        # Arithmetic and memory traffic overlap: the longer one counts.
        roofline = max(cost.flops / self.flops_per_s, cost.nbytes / self.bytes_per_s)
        factor = self.operators.get(kernel)
        if factor is None:
            # An unmeasured family is assumed to be like the operator as a whole.
            factor = self.operators.get(kernel.partition(" ")[0], 1.0)
        return self.launch_s + roofline * factor

    def copy_s(self, nbytes: int) -> float:
        """Return the time of a copy of `nbytes` from or to host memory."""
        return self.copy_latency_s + nbytes / self.copy_bytes_per_s

    def scaled(self, fraction: float) -> DeviceModel:
        """Return the model of a `fraction` of the device, slower at computing but not at copies."""
        return replace(
            self, flops_per_s=fraction * self.flops_per_s, bytes_per_s=fraction * self.bytes_per_s
        )

    def peer_copy_s(self, nbytes: int) -> float:
        """Return the time of a copy of `nbytes` from the memory of another device."""
        return self.copy_latency_s + nbytes / (self.peer_bytes_per_s or self.copy_bytes_per_s)

    def edge_s(self, nbytes: int) -> float:
        """Return the time in which a program converts layouts of `nbytes` of inputs and outputs."""
        return nbytes / self.layout_bytes_per_s if self.layout_bytes_per_s else 0.0

    def inner_copy_s(self, nbytes: int) -> float:
        """Return the time of a copy of `nbytes` within the device's memory."""
        # Read and written in the same memory.
        return self.launch_s + 2 * nbytes / self.bytes_per_s

    def has(self, node: Node) -> bool:
        """Return whether the modelled device supports `node`."""
        if callable(self.supports):
            return self.supports(node)
        return self.supports is None or node.op in self.supports

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON.

        Raises
        ------
        DeviceError
            If `supports` is a function, which a file cannot hold.
        """
        if callable(self.supports):
            raise DeviceError(
                "a model whose `supports` is a function cannot be written to a file",
                fix="name the operators in a frozenset",
            )
        values = {name: getattr(self, name) for name in _FIELDS}
        # Sorted, so that equal models make equal files.
        values["operators"] = dict(sorted(self.operators.items()))
        values["supports"] = None if self.supports is None else sorted(self.supports)
        values["peers"] = sorted(self.peers)
        return values

    @classmethod
    def from_dict(cls, values: object, at: str | None = None) -> Self:
        """Create a model from plain `values`; missing ones have their defaults.

        Raises
        ------
        DeviceError
            If a key is unknown, or a value has the wrong type; `at` is its location.
        """
        if not isinstance(values, Mapping):
            raise _bad_value_error("a device's model", values, "an object of figures", at)
        for name in values:
            if name not in _FIELDS:
                raise DeviceError(
                    f"a device's model has no figure {name!r}",
                    at=at,
                    fix=f"it has: {', '.join(_FIELDS)}",
                )
        try:
            return cls(**{name: _READ[name](name, value, at) for name, value in values.items()})
        except DeviceError as error:
            raise DeviceError(error.what, at=error.at or at, fix=error.fix) from None


_FIELDS = tuple(one.name for one in fields(DeviceModel) if one.compare)


def _bad_value_error(name: str, value: object, wanted: str, at: str | None) -> DeviceError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return DeviceError(f"{name} is {shown}", at=at, fix=f"give {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _read_number(name: str, value: object, at: str | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise _bad_value_error(name, value, "a finite number", at)
    return float(value)


def _read_optional_number(name: str, value: object, at: str | None) -> float | None:
    return None if value is None else _read_number(name, value, at)


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _read_whole(name: str, value: object, at: str | None) -> int | None:
    if value is None and name == "memory_bytes":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise _bad_value_error(name, value, "a whole number, 0 or more", at)
    return value


def _read_factors(name: str, value: object, at: str | None) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > MOST_OPERATORS:
        raise _bad_value_error(name, value, "an object of operators and factors", at)
    return {str(op): _read_number(f"the factor of {op!r}", one, at) for op, one in value.items()}


def _read_names(name: str, value: object, at: str | None) -> frozenset[str] | None:
    if value is None:
        return None
    listed: list[Any] = [None, *value] if isinstance(value, list | tuple) else []
    if not 0 < len(listed) <= MOST_OPERATORS or not all(isinstance(op, str) for op in listed[1:]):
        raise _bad_value_error(name, value, "a list of operators, or null for all", at)
    return frozenset(listed[1:])


def _read_memories(name: str, value: object, at: str | None) -> frozenset[str]:
    listed: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if len(listed) > MOST_PEERS or not all(isinstance(memory, str) for memory in listed):
        raise _bad_value_error(name, value, "a list of memories of other devices", at)
    return frozenset(listed)


_READ: Mapping[str, Callable[[str, object, str | None], Any]] = {
    **dict.fromkeys(_FIELDS, _read_number),
    "memory_bytes": _read_whole,
    "copy_queues": _read_whole,
    "operators": _read_factors,
    "supports": _read_names,
    "peer_bytes_per_s": _read_optional_number,
    "layout_bytes_per_s": _read_optional_number,
    "peers": _read_memories,
}

FEW_CHANNELS = 8
"""Kernels compute this many output channels together, or twice as many: fewer take as long."""


def name_family(graph: Graph, node: Node) -> str:
    """Return the name of the kernels of `node` of `graph`: operator, and form of a convolution.

    Few output channels are part of it, rounded up to a power of two: ``"Conv to 4"``.
    """
    if node.op != "Conv":
        return node.op
    weights = graph.tensors[node.inputs[1]].shape
    if node.attributes.get("group", 1) != 1:
        return "Conv depthwise"
    if weights is None:
        return "Conv"
    # These are matrix products, with other code than windows.
    if all(length == 1 for length in weights[2:]):
        return "Conv pointwise"
    features = weights[0]
    if not isinstance(features, int) or not 0 < features <= FEW_CHANNELS:
        return "Conv"
    # Rounded up to a power of two: few kinds to measure, each of about the same cost.
    return f"Conv to {1 << (features - 1).bit_length()}"
