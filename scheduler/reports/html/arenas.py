"""Memory over time: each buffer a rectangle, as long as it is needed and as high as it is large.

Time is the order of the plan's points: the feeding, each step's nodes, the fetching. Where steps
run at once that order is one of several, but whatever shares bytes is in order in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...planner.memory.buffers import Buffer, collect_buffers
from ...planner.memory.happens_before import START, HappensBefore, Point
from ...plans.placement import Placement, Step, Transfer
from ...plans.plan import Plan
from ...plans.regions import Location, MemoryPlan
from ...shapes.bounds import constraints_in
from .columns import Texts

SCRATCH = "\0scratch"
"""What separates a node's name from the number of its scratch buffer."""


def arenas(plan: Plan, texts: Texts) -> dict[str, Any] | None:
    """Return the regions of all memories and what lies in them; None while shapes are open."""
    if plan.placement is None or plan.memory is None:
        return None
    order = HappensBefore(plan.steps)
    axis = _Axis(plan, plan.placement, order)
    boxes: dict[tuple[str, str], list[list[Any]]] = {}
    for buffer, start in _laid_out(plan, plan.placement, plan.memory, order):
        box = _box(buffer, start.offset, axis, texts)
        boxes.setdefault((start.memory, start.region), []).append(box)
    return {
        "axis": {"step": axis.steps, "node": axis.nodes},
        "pools": [
            {
                "memory": name,
                "nbytes": pool.nbytes,
                "lower_bound": pool.lower_bound,
                "tensors_nbytes": pool.tensors_nbytes,
            }
            for name, pool in plan.memory.pools.items()
        ],
        "regions": [
            {**region, "boxes": boxes.get((region["memory"], region["name"]), [])}
            for region in _regions(plan.memory)
        ],
    }


def _laid_out(
    plan: Plan, placement: Placement, memory: MemoryPlan, order: HappensBefore
) -> Iterator[tuple[Buffer, Location]]:
    """Yield the buffers and where they start.

    What is concatenated is one buffer or several, whichever the planner found smaller: the plan's
    offsets tell which.
    """
    graph, devices, constraints = plan.graph, plan.prototypes, constraints_in(plan)
    for joins in (True, False):
        buffers = collect_buffers(
            graph, placement, devices, order, joins=joins, constraints=constraints
        )
        starts = [_starts(buffer, memory) for buffer in buffers]
        if all(len(found) == 1 for found in starts):
            break
    for buffer, found in zip(buffers, starts, strict=True):
        yield buffer, found.pop()


def _starts(buffer: Buffer, memory: MemoryPlan) -> set[Location]:
    """Return where a buffer starts, going by each tensor placed in it: one, if they agree."""
    found = set()
    for placed, offset in buffer.offsets.items():
        location = memory.locations[placed]
        found.add(replace(location, offset=location.offset - offset))
    return found


def _regions(memory: MemoryPlan) -> Iterator[dict[str, Any]]:
    for region in memory.regions:
        yield {
            "memory": region.memory,
            "name": region.name,
            "nbytes": region.nbytes,
            "copies": region.copies,
        }


def _box(buffer: Buffer, offset: int, axis: _Axis, texts: Texts) -> list[Any]:
    """Return the places where it is used, its offset, bytes and the names of what lies there."""
    places = sorted(axis.place[point] for point in buffer.accesses)
    names = dict.fromkeys(_named(name) for name, _ in buffer.offsets)
    return [places, offset, buffer.nbytes, texts.numbers(names)]


def _named(name: str) -> str:
    node, scratch, number = name.partition(SCRATCH)
    return f"scratch {number} of {node}" if scratch else name


class _Axis:
    """The points of a plan in one order: place by point, and step and node by place."""

    def __init__(self, plan: Plan, placement: Placement, order: HappensBefore) -> None:
        number = {node.name: index for index, node in enumerate(plan.graph.nodes)}
        self.place: dict[Point, int] = {START: 0}
        self.steps, self.nodes = [-1], [-1]
        for step in placement.steps:
            for offset, node in enumerate(_nodes(plan, step)):
                self.place[order.point(step, offset)] = len(self.steps)
                self.steps.append(step.index)
                self.nodes.append(number.get(node, -1))
        self.place[order.end] = len(self.steps)
        self.steps.append(len(placement.steps))
        self.nodes.append(-1)


def _nodes(plan: Plan, step: Step) -> list[str]:
    """Return the names of a step's nodes; of what is one point, nothing but that."""
    atomic = plan.prototypes[step.device].capabilities.atomic_programs
    if isinstance(step.work, Transfer) or atomic:
        return [""]
    return [node.name for node in step.work.graph.nodes]
