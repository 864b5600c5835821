"""A device whose runs take what a model says, on a clock that they move themselves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from plait.devices.cpu import CpuDevice
from plait.devices.device import OnDone, Program
from plait.devices.event import Event
from plait.devices.memory import View
from plait.devices.model import DeviceModel
from plait.graph.core.infer import get_cost
from plait.graph.core.ir import Graph

LIKE = DeviceModel(
    flops_per_s=2e9,
    bytes_per_s=1e9,
    launch_s=1e-6,
    submit_s=5e-5,
    copy_bytes_per_s=4e9,
    copy_latency_s=3e-5,
)


class TimedDevice(CpuDevice):
    """A cpu that takes as long as a model says, on a clock of its own; at times it is disturbed."""

    def __init__(self, disturbed: Sequence[float] = (1.0,), model: DeviceModel = LIKE) -> None:
        super().__init__("timed")
        self._like, self._disturbed, self._dice = model, disturbed, random.Random(0)
        self._now = 0.0
        self.runs: list[str] = []
        self.cores: int | None = None

    def clock(self) -> int:
        return round(self._now * 1e9)

    def open(self, cores: int | None = None) -> None:
        self.cores = cores
        super().open(cores)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        super().compile(subgraph, views, measure=measure)
        return _Nothing(subgraph)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        graph = program.graph
        self.runs.append(f"{len(graph.nodes)} {graph.nodes[0].op} {graph.tensors[graph.inputs[0]]}")
        nodes_s = [self._like.kernel_s(n.op, get_cost(graph, n)) for n in graph.nodes]
        spared_s = (len(graph.nodes) - self.launches(graph)) * self._like.launch_s
        return self._take(self._like.submit_s + sum(nodes_s) - spared_s)

    def launches(self, graph: Graph) -> int:
        return len(graph.nodes)

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        return self._take(self._like.copy_s(source.spec.nbytes))

    def _take(self, seconds: float) -> Event:
        self._now += seconds * self._dice.choice(self._disturbed)
        event = Event()
        event.complete()
        return event


class _Nothing:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph


class RestlessDevice(TimedDevice):
    """One of which no two runs are alike."""

    def _take(self, seconds: float) -> Event:
        return super()._take(seconds * 2 ** self._dice.uniform(0, 12))
