"""A graph on an open device without a plan: what kernels and copies take by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from plait.devices import Device, Program, scratch_specs
from plait.devices.device import OnDone
from plait.devices.event import Event
from plait.devices.memory import Arena, View, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec

WAIT_S = 60.0
ROOM = 512


class Times(NamedTuple):
    """Seconds for each of many pieces of work in a row: to hand it over, and to have it done."""

    host_s: float
    total_s: float


class Loaded:
    """A compiled graph whose tensors lie one behind the other.

    Attributes
    ----------
    views, hosts : Mapping of str to View
        All tensors on the device; places in host memory for inputs and outputs.
    """

    def __init__(
        self, device: Device, graph: Graph, arenas: list[Arena], *, measure: bool = False
    ) -> None:
        self._device = device
        self._graph = graph
        specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
        for node in graph.nodes:
            specs.update(scratch_specs(device, graph, node))
        outside = {name: specs[name] for name in (*graph.inputs, *graph.outputs)}
        self.views = place(device, specs, arenas)
        self.hosts = place(device, outside, arenas, on_host=True)
        self._program: Program = device.compile(graph, self.views, measure=measure)

    def submit(self, on_done: OnDone | None = None) -> Event:
        """Queue the graph."""
        return self._device.submit(self._program, (), on_done)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Copy inputs in, compute, copy outputs out."""
        for name, value in feeds.items():
            np.copyto(self.hosts[name].array, value)
            self._device.copy(self.views[name], self.hosts[name]).wait(WAIT_S)
        self.submit().wait(WAIT_S)
        for name in self._graph.outputs:
            self._device.copy(self.hosts[name], self.views[name]).wait(WAIT_S)
        return {name: self.hosts[name].array.copy() for name in self._graph.outputs}

    def times(self, at_least_s: float = 0.1, rounds: int = 5) -> Times:
        """Return what the graph takes, run again and again."""
        return repeated(self.submit, at_least_s, rounds)


@contextmanager
def loaded(device: Device, graph: Graph, *, measure: bool = False) -> Iterator[Loaded]:
    """Compile a graph on an open device; free its memory at the end."""
    arenas: list[Arena] = []
    try:
        yield Loaded(device, graph, arenas, measure=measure)
    finally:
        for arena in arenas:
            arena.close()


def place(
    device: Device, specs: Mapping[str, TensorSpec], arenas: list[Arena], *, on_host: bool = False
) -> dict[str, View]:
    """Return views of tensors in an arena that is added to `arenas`."""
    step = max(ROOM, device.capabilities.alignment)
    rooms = {name: -(-max(spec.nbytes, 1) // step) * step for name, spec in specs.items()}
    total = sum(rooms.values())
    arena = host_arena(total) if on_host else device.arena(device.capabilities.memory, total)
    arenas.append(arena)
    views, offset = {}, 0
    for name, spec in specs.items():
        views[name] = device.view(arena, offset, spec)
        offset += rooms[name]
    return views


def repeated(submit: Callable[[], Event], at_least_s: float = 0.1, rounds: int = 5) -> Times:
    """Return the medians of several rounds, each of which submits many times and then waits."""
    submit().wait(WAIT_S)
    once = _round(submit, 1).total_s
    count = min(1000, max(1, int(at_least_s / rounds / once)))
    found = [_round(submit, count) for _ in range(rounds)]
    return Times(*(float(np.median(side)) for side in zip(*found, strict=True)))


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _round(submit: Callable[[], Event], count: int) -> Times:
    start = time.perf_counter()
    for _ in range(count - 1):
        submit()
    last = submit()
    handed_over = time.perf_counter()
    last.wait(WAIT_S)
    return Times((handed_over - start) / count, (time.perf_counter() - start) / count)
