"""A device with a memory of its own, which runs numpy kernels and operators with resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from plait import Graph, Node, TensorSpec
from plait.devices import (
    Arena,
    BoundProgram,
    Capabilities,
    Event,
    OnDone,
    OperatorInstances,
    Program,
    Support,
    ThreadLane,
    View,
    host_arena,
    host_view,
    program,
)
from plait.operators import Call, Specs

KIND = "acme"


class AcmeDevice:
    """Has its own memory, as a GPU has, with copies in and out; see docs/devices.md."""

    def __init__(self, name: str = KIND) -> None:
        self.name = name
        self.capabilities = Capabilities(
            memory=name, accesses=frozenset({name}), runs_python=True, software="acme 1.0"
        )
        self._lane = ThreadLane(f"plait-{name}")

    def supports(self, node: Node, call: Call) -> Support:
        """Support nodes with a kernel, and Python functions."""
        return program.supports(node, KIND, runs_python=True, keeps_lives=True, call=call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the buffers that the kernel needs."""
        return program.scratch(node, KIND, call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Start the thread."""
        self._lane.open()

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate."""
        return Arena(memory, nbytes, host_arena(nbytes).buffer)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a numpy view."""
        return host_view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Bind kernels to arrays."""
        return program.bind(np, self.name, subgraph, views, subgraph.constants, measure=measure)

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Bind nodes with resources, which are opened, used and closed on one thread."""
        constants = subgraph.constants
        living = lives.of(self.name, subgraph, views, self._lane.call)
        return program.bind(
            np, self.name, subgraph, views, constants, measure=measure, living=living
        )

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a program."""
        assert isinstance(program, BoundProgram)
        event = Event(on_done)
        self._lane.put(event, lambda: program.run(event))
        return event

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue a copy."""
        event = Event(on_done)
        self._lane.put(event, lambda: np.copyto(target.array, source.array))
        return event

    def close(self) -> None:
        """End the thread, when all is done."""
        self._lane.close()
