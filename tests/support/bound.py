"""A graph bound on an open device of any kind, each tensor in a place of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

import numpy as np
from patience import WAIT_S
from plait.devices import Device, Program, scratch_specs
from plait.devices.device import OnDone
from plait.devices.event import Event
from plait.devices.memory import View, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec

POISON = 0x5A


def submit_from_threads(submit: Callable[[], Event], times: int) -> list[Event]:
    """Have four threads submit at once, each so many times; return the events, all complete."""
    events: list[Event] = []
    threads = [
        threading.Thread(target=lambda: events.extend(submit() for _ in range(times)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for event in events:
        event.wait(WAIT_S)
    return events


class Bound:
    """What a session does for one subgraph, one step at a time, waiting for each.

    Parameters
    ----------
    device : Device
        Open; it stays so.
    graph : Graph
    measure : bool, default False
    onto : Mapping of str to str, optional
        Tensors that lie on another one's bytes.
    memory : str, optional
        The one among those that the device accesses; its own when left out.

    Attributes
    ----------
    views, hosts : dict of str to View
        Every tensor on the device, and a place in host memory for each input and output.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        *,
        measure: bool = False,
        onto: Mapping[str, str] | None = None,
        memory: str | None = None,
    ) -> None:
        self.device, self.graph = device, graph
        self._arenas = ExitStack()
        specs = moving(device, graph)
        outside = {n: specs[n] for n in (*graph.inputs, *graph.outputs) if n in specs}
        self.views = self.place(specs, memory or device.capabilities.memory, onto)
        self.hosts = self.place(outside, None)
        self.program: Program | None = None
        try:
            self.program = device.compile(graph, self.views, measure=measure)
        except BaseException:
            self.close()
            raise

    def place(
        self,
        specs: Mapping[str, TensorSpec],
        memory: str | None,
        onto: Mapping[str, str] | None = None,
    ) -> dict[str, View]:
        """Return views of tensors one behind the other, in a new arena; None is the host's."""
        offsets, end = dict[str, int](), 0
        for name, spec in specs.items():
            offsets[name] = end
            end += room(spec, self.device.capabilities.alignment)
        arena = host_arena(end) if memory is None else self.device.arena(memory, end)
        self._arenas.callback(arena.close)
        offsets.update({name: offsets[other] for name, other in (onto or {}).items()})
        return {n: self.device.view(arena, offsets[n], spec) for n, spec in specs.items()}

    def put(self, inputs: Mapping[str, Array]) -> None:
        """Copy inputs onto the device."""
        for name, value in inputs.items():
            np.copyto(self.hosts[name].array, value, casting="no")
        _wait([self.device.copy(self.views[name], self.hosts[name]) for name in inputs])

    def submit(self, waits: Sequence[Event] = (), on_done: OnDone | None = None) -> Event:
        """Submit the program."""
        assert self.program is not None
        return self.device.submit(self.program, waits, on_done)

    def get(self) -> dict[str, Array]:
        """Copy the outputs back; what the device does not write there stays poison."""
        constants = self.graph.constants
        computed = [name for name in self.graph.outputs if name not in constants]
        for name in computed:
            self.hosts[name].array.reshape(-1).view(np.uint8).fill(POISON)
        _wait([self.device.copy(self.hosts[name], self.views[name]) for name in computed])
        return {
            name: constants[name] if name in constants else self.hosts[name].array.copy()
            for name in self.graph.outputs
        }

    def run(self, inputs: Mapping[str, Array] | None = None, /, **named: Array) -> dict[str, Array]:
        """Copy inputs in, run the program, copy its outputs out."""
        self.put({**(inputs or {}), **named})
        self.submit().wait(WAIT_S)
        return self.get()

    def close(self) -> None:
        """Free the arenas, and with the program what it alone uses."""
        self.program = None
        self.views.clear()
        self.hosts.clear()
        self._arenas.close()

    def __enter__(self) -> Bound:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _wait(events: Sequence[Event]) -> None:
    """Wait for all, the last first: on a lane the others are complete then."""
    for event in reversed(events):
        event.wait(WAIT_S)


def room(spec: TensorSpec, alignment: int) -> int:
    """Return how many bytes a tensor takes up to the next one; some even when it has none."""
    return -(-max(spec.nbytes, 1) // alignment) * alignment


def moving(device: Device, graph: Graph) -> dict[str, TensorSpec]:
    """Return the specs of all tensors but the constants, and of scratch buffers."""
    specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
    for node in graph.nodes:
        specs.update(scratch_specs(device, graph, node))
    return specs
