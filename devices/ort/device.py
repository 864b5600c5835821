"""The ort device: whole subgraphs run by ONNX Runtime, on plait's buffers, on a lane thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from ..cpu import physical_memory
from ..device import Capabilities, OnDone, Program, Support
from ..event import Event
from ..lane import ThreadLane
from ..memory import HOST, SHARED, Arena, SharedArena, View, host_arena, host_view
from .program import OrtProgram
from .runtime import newest_opset
from .session import Sessions
from .support import supports


class OrtDevice:
    """Hands subgraphs to ONNX Runtime, which reads and writes the planned buffers in place.

    Parameters
    ----------
    name : str
        ``"ort"``, or ``"ort:"`` and anything.
    threads : int, optional
        On how many threads each subgraph computes; the session's share of the cores when left out.

    Notes
    -----
    ONNX Runtime joins and reorders nodes, so a program is one piece: there are no times of single
    nodes, and what lies between its nodes is in ONNX Runtime's own memory, which the memory plan
    does not count. A running program stops when it is cancelled, between two of its nodes.
    """

    def __init__(self, name: str = "ort", *, threads: int | None = None) -> None:
        self.name = name
        self._wanted = threads
        self._threads = threads or 1
        self._lane = ThreadLane(f"plait-{name}")
        self._sessions = Sessions(name)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it is like; raises DeviceUnavailableError where ONNX Runtime is not installed."""
        newest_opset()
        return Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=physical_memory(),
            atomic_programs=True,
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

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate in this process's memory, or in shared memory."""
        return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a numpy view."""
        return host_view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Load the subgraph, unless it is loaded, and bind its inputs and outputs."""
        return OrtProgram(self._sessions.of(subgraph, self._threads), views, self.name)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue on the lane."""
        assert isinstance(program, OrtProgram)
        event = Event(on_done)
        self._lane.put(event, partial(program.run, event))
        return event

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue a copy between host memories on the lane."""
        event = Event(on_done)
        self._lane.put(event, partial(np.copyto, target.array, source.array))
        return event

    def close(self) -> None:
        """Finish what is queued, end the thread."""
        self._lane.close()
