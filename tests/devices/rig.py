"""A graph streamed through one device by hand: what a session does, without a session.

All items go through one set of device buffers, chained by native waits alone, so nothing but the
device keeps them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import plait as pl
from bound import moving
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices import Device, Program
from plait.devices.event import Event
from plait.devices.memory import Arena, View, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec

SLOT = 512


def place(device: Device, arena: Arena, specs: Mapping[str, TensorSpec]) -> dict[str, View]:
    """Return views of tensors that lie one behind the other."""
    views, offset = {}, 0
    for name, spec in specs.items():
        views[name] = device.view(arena, offset, spec)
        offset += room(spec)
    return views


def room(spec: TensorSpec) -> int:
    return -(-max(spec.nbytes, 1) // SLOT) * SLOT


class Rig:
    """An open device with one graph compiled on it, in buffers that are each their own."""

    def __init__(self, device: Device, graph: Graph, *, measure: bool = False) -> None:
        self.device = device
        self.graph = graph
        device.open()
        specs = moving(device, graph)
        self.arena = device.arena(device.capabilities.memory, sum(map(room, specs.values())))
        self.views = place(device, self.arena, specs)
        self.program: Program | None = device.compile(graph, self.views, measure=measure)
        self._hosts: list[Arena] = []

    def host(self, specs: Mapping[str, TensorSpec]) -> dict[str, View]:
        """Return views of new host memory, one for each spec."""
        arena = host_arena(sum(map(room, specs.values())))
        self._hosts.append(arena)
        return place(self.device, arena, specs)

    def compute(self, waits: Sequence[Event] = ()) -> Event:
        assert self.program is not None
        return self.device.submit(self.program, waits)

    def stream(self, items: Sequence[Mapping[str, Array]]) -> Stream:
        """Submit all items at once."""
        return Stream(self, items)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self.stream([inputs]).results()[0]

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.device.close()
        self.program = None
        self.arena.close()
        for host in self._hosts:
            host.close()


class Stream:
    """Items on their way through one set of buffers: upload, compute, download, each chained.

    An upload waits for the program that read the input before it, a program for its uploads and
    for the downloads that read its outputs before, a download for its program.
    """

    def __init__(self, rig: Rig, items: Sequence[Mapping[str, Array]]) -> None:
        graph = rig.graph
        self.computed: list[Event] = []
        self.uploaded: list[list[Event]] = []
        self.downloaded: list[list[Event]] = []
        self._outputs: list[dict[str, View]] = []
        for item in items:
            given = rig.host({name: graph.tensors[name] for name in graph.inputs})
            for name, value in item.items():
                np.copyto(given[name].array, value)
            fetched = rig.host({name: graph.tensors[name] for name in graph.outputs})
            reader = self.computed[-1:]
            readers = self.downloaded[-1] if self.downloaded else []
            uploads = [rig.device.copy(rig.views[n], given[n], reader) for n in graph.inputs]
            self.uploaded.append(uploads)
            self.computed.append(rig.compute([*uploads, *readers]))
            done = self.computed[-1:]
            self.downloaded.append(
                [rig.device.copy(fetched[n], rig.views[n], done) for n in graph.outputs]
            )
            self._outputs.append(fetched)

    def results(self) -> list[dict[str, Array]]:
        """Wait for all items and return what they give."""
        for downloads in self.downloaded:
            for event in downloads:
                event.wait(WAIT_S)
        return [{n: view.array.copy() for n, view in out.items()} for out in self._outputs]


def chain(*ops: str, n: int = 4, dtype: str = "float32") -> Graph:
    """Return x → op → op → y; Add adds its input to itself."""
    b = pl.GraphBuilder("chain")
    tensor = b.input("x", dtype, (n,))
    for number, op in enumerate(ops):
        twice = (tensor, tensor) if op == "Add" else (tensor,)
        tensor = b.op(op, *twice, name=f"{op.lower()}{number}")
    b.output("y", tensor)
    return b.build()


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of Add, Relu and Identity over one shape, with a constant or two."""
    b = pl.GraphBuilder("drawn")
    shape = draw(st.sampled_from([(3,), (2, 5), (1,), (130,)]))
    tensors = [b.input(f"x{i}", "float32", shape) for i in range(draw(st.integers(1, 2)))]
    tensors += [
        b.constant(np.full(shape, c, np.float32)) for c in draw(st.sets(st.integers(-2, 2)))
    ]
    for _ in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(["Add", "Relu", "Identity"]))
        inputs = [draw(st.sampled_from(tensors)) for _ in range(2 if op == "Add" else 1)]
        tensors.append(b.op(op, *inputs))
    for number in range(draw(st.integers(1, 2))):
        b.output(f"y{number}", draw(st.sampled_from(tensors)))
    return b.build()


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return a graph's outputs, computed the plain way."""
    values: dict[str, Any] = {**graph.constants, **inputs}
    for node in graph.nodes:
        arrays = [values[name] for name in node.inputs]
        if node.op == "Add":
            values[node.outputs[0]] = arrays[0] + arrays[1]
        else:
            values[node.outputs[0]] = arrays[0] * (arrays[0] > 0 if node.op == "Relu" else 1)
    return {name: values[name] for name in graph.outputs}


def some_items(graph: Graph, count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Return inputs of whole numbers, different for each item."""
    rng = np.random.default_rng(seed)
    return [
        {
            name: rng.integers(-50, 50, graph.tensors[name].static_shape).astype(np.float32)
            for name in graph.inputs
        }
        for _ in range(count)
    ]
