"""Devices for tests: ones with memory of their own, and ones whose pace the test decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from plait.devices.cpu import CpuDevice
from plait.devices.device import OnDone, Program, Support
from plait.devices.event import Event
from plait.devices.memory import Arena, View, host_arena
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call, Specs
from plait.graph.values.tensor import TensorSpec
from random_graphs import expected

POISON = 0xA5


class PrivateDevice(CpuDevice):
    """A cpu whose kernels reach only a memory of its own, which starts out poisoned."""

    def __init__(self, name: str, *, lacks: Sequence[str] = (), nbytes: int | None = None) -> None:
        super().__init__(name)
        self._lacks = lacks
        self.capabilities = replace(
            self.capabilities,
            memory=f"memory of {name}",
            accesses=frozenset({f"memory of {name}"}),
            memory_bytes=nbytes,
        )

    def supports(self, node: Node, call: Call) -> Support:
        if node.op in self._lacks:
            return Support(False, f"no kernel for {node.op!r} on this device")
        return super().supports(node, call)

    def arena(self, memory: str, nbytes: int) -> Arena:
        arena = host_arena(nbytes)
        arena.buffer.fill(POISON)
        return Arena(memory, nbytes, arena.buffer)


class AtomicDevice(CpuDevice):
    """A cpu whose programs are one piece: each works on copies, and its outputs appear first.

    Whoever places an output on an input that is still to be read sees it ruined.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.capabilities = replace(self.capabilities, atomic_programs=True)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return ()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        assert set(views) == {*subgraph.inputs, *subgraph.outputs}
        return _AtomicProgram(subgraph, views)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        assert isinstance(program, _AtomicProgram)
        event = Event(on_done)
        self._lane.put(event, program)
        return event


class _AtomicProgram:
    def __init__(self, graph: Graph, views: Mapping[str, View]) -> None:
        self.graph = graph
        self._arrays = {name: view.array for name, view in views.items()}

    def __call__(self) -> None:
        for name in self.graph.outputs:
            self._arrays[name].reshape(-1).view(np.uint8).fill(POISON)
        results = expected(self.graph, self._arrays)
        for name in reversed(self.graph.outputs):
            self._arrays[name][...] = results[name]


class SteppedDevice(PrivateDevice):
    """A device whose work waits until the test lets it go on, one piece at a time, in order."""

    def __init__(self, name: str, *, private: bool = True) -> None:
        super().__init__(name)
        if not private:
            self.capabilities = CpuDevice(name).capabilities
        self.queue: list[tuple[Event, Callable[[], Any]]] = []
        self.is_open = False

    def open(self, cores: int | None = None) -> None:
        self.is_open = True

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        assert self.is_open
        return super().compile(subgraph, views, measure=measure)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        event = Event(on_done)
        self.queue.append((event, program))  # type: ignore[arg-type]
        return event

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        event = Event(on_done)
        self.queue.append((event, lambda: np.copyto(target.array, source.array)))
        return event

    def step(self) -> None:
        """Run the oldest piece of work to its end, callbacks included."""
        event, work = self.queue.pop(0)
        event.run(work)

    def close(self) -> None:
        while self.queue:
            self.step()
        self.is_open = False
