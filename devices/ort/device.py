"""The ort device: whole subgraphs run by ONNX Runtime, on plait's buffers, on a lane thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from ..device import Capabilities, Program, Support
from ..host import HostDevice, physical_memory
from ..memory import HOST, SHARED, View
from ..options import given
from .profiling import shares_of
from .program import OrtProgram
from .runtime import newest_opset, runtime
from .session import Sessions
from .support import supports


class OrtDevice(HostDevice):
    """Hands subgraphs to ONNX Runtime, which reads and writes the planned buffers in place.

    Parameters
    ----------
    name : str
        ``"ort"``, or ``"ort:"`` and anything.
    threads : int, optional
        On how many threads each subgraph computes; the session's share of the cores when left out.
    affinity : sequence of int, optional
        The cores that these threads are bound to.

    Notes
    -----
    ONNX Runtime joins and reorders nodes, so a program is one piece: no run has times of single
    nodes, though its profiler tells how they share it. What lies between its nodes is in ONNX
    Runtime's own memory, which the memory plan does not count. A running program stops when it is
    cancelled, between two of its nodes.
    """

    def __init__(
        self,
        name: str = "ort",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
    ) -> None:
        super().__init__(name, given(threads, affinity))
        self._wanted = threads
        self._threads = threads or 1
        self._sessions = Sessions(name, affinity or ())

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it is like; raises DeviceUnavailableError where ONNX Runtime is not installed."""
        newest_opset()
        return Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=physical_memory(),
            atomic_programs=True,
            software=f"onnxruntime {runtime().__version__}",
        )

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether ONNX Runtime has a kernel."""
        return supports(node, call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return nothing: ONNX Runtime has memory of its own."""
        return ()

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread."""
        newest_opset()
        self._threads = self._wanted or cores or 1
        self._lane.open()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Load the subgraph, unless it is loaded, and bind its inputs and outputs."""
        return OrtProgram(self._sessions.of(subgraph, self._threads), views, self.name)

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return which share of a subgraph's time each node takes, by ONNX Runtime's profiler."""
        return shares_of(subgraph, self._threads, self.name)
