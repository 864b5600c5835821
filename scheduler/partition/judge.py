"""The word on a candidate: its steps on the simulated clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...devices.device import Device
from ...graph.ir import Graph
from ..costs import Costs
from ..placement import Placement, place
from ..simulation.engine import run
from ..simulation.lanes import host_of, workload
from .cutting import cut
from .partition import Partition

ROUNDS = 2
"""For how many times the items in flight the pace is taken, after as many to begin with."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An assignment, cut and placed, and what it is predicted to take."""

    name: str
    assignment: tuple[int, ...]
    partition: Partition
    placement: Placement
    seconds: float

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that do something."""
        return tuple(dict.fromkeys(one.device for one in self.partition.subgraphs))


def judge(
    name: str,
    assignment: Sequence[int],
    graph: Graph,
    devices: Mapping[str, Device],
    costs: Costs,
    in_flight: int,
) -> Judged:
    """Return what an assignment takes: of one item, or per item of a stream if `in_flight`."""
    names = tuple(devices)
    assigned = {
        node.name: names[device] for node, device in zip(graph.nodes, assignment, strict=True)
    }
    partition = Partition(assigned, {}, cut(graph, assigned))
    placement = place(graph, partition, devices)
    work = workload(placement.steps, devices, costs)
    host = host_of(graph)
    if not in_flight:
        seconds = run(work, host=host).makespan_s
    else:
        paced = ROUNDS * in_flight
        items = in_flight + 1 + paced
        landed = run(work, items=items, max_in_flight=in_flight, host=host).landed
        seconds = (landed[-1] - landed[in_flight]) / 1e9 / paced
    return Judged(name, tuple(assignment), partition, placement, seconds)
