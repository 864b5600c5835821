"""The cpu device: numpy kernels on a lane thread. Always there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ..graph.ir import Graph, Node
from ..graph.operator import Call, Specs
from ..graph.tensor import TensorSpec
from . import program as programs
from .blas import lift_limit, limit_threads
from .device import Capabilities, OnDone, Program, Support
from .event import Event
from .lane import ThreadLane
from .memory import HOST, SHARED, Arena, SharedArena, View, host_arena, host_view
from .program import BoundProgram


class CpuDevice:
    """Runs numpy kernels, and Python functions, in order on one thread of this process."""

    def __init__(self, name: str = "cpu") -> None:
        self.name = name
        self.capabilities = Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=physical_memory(),
            runs_python=True,
        )
        self._lane = ThreadLane(f"plait-{name}")

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether there is a kernel."""
        return programs.supports(node, "cpu", runs_python=True)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the kernel's scratch buffers."""
        return programs.scratch(node, "cpu", call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread."""
        if cores is not None:
            limit_threads(self, cores)
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
        """Bind kernels to views; constants are used where they lie."""
        return programs.bind(np, self.name, subgraph, views, subgraph.constants, measure=measure)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue on the lane."""
        assert isinstance(program, BoundProgram)
        event = Event(on_done)
        self._lane.put(event, partial(program.run_measured, event) if program.measures else program)
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
        self._lane.put(event, lambda: np.copyto(target.array, source.array))
        return event

    def close(self) -> None:
        """Finish what is queued, end the thread."""
        self._lane.close()
        lift_limit(self)


def physical_memory() -> int | None:
    """Return this machine's memory in bytes, None where it cannot be told."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
