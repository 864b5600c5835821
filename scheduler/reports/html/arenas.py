"""Memory over time: each buffer is a rectangle of its lifetime and size.

Time is the order of the plan's points: the feeding, each step's nodes, the fetching. If steps run
at once, other orders are possible, but buffers that share bytes have the same order in all of them.
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
from ...shapes.bounds import find_plan_constraints
from .columns import Texts

SCRATCH = "\0scratch"
"""Separates a node's name from the number of its scratch buffer."""


def list_arenas(plan: Plan, texts: Texts) -> dict[str, Any] | None:
    """Return regions and buffers of `plan` by memory, as plain values; None if shapes are open.

    Strings are replaced by numbers in `texts`.
    """
    if plan.placement is None or plan.memory is None:
        return None
    order = HappensBefore(plan.steps)
    axis = _Axis(plan, plan.placement, order)
    boxes: dict[tuple[str, str], list[list[Any]]] = {}
    for buffer, start in _locate_buffers(plan, plan.placement, plan.memory, order):
        box = _make_box(buffer, start.offset, axis, texts)
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
            for region in _list_regions(plan.memory)
        ],
    }


def _locate_buffers(
    plan: Plan, placement: Placement, memory: MemoryPlan, order: HappensBefore
) -> Iterator[tuple[Buffer, Location]]:
    """Yield the buffers of `plan` with their locations in `memory`.

    Concatenated tensors are one buffer or several, whichever the planner found smaller; their
    offsets show it. `placement` and `order` are those of the plan's steps.
    """
    graph, devices, constraints = plan.graph, plan.prototypes, find_plan_constraints(plan)
    for joins in (True, False):
        buffers = collect_buffers(
            graph, placement, devices, order, joins=joins, constraints=constraints
        )
        starts = [_find_starts(buffer, memory) for buffer in buffers]
        if all(len(found) == 1 for found in starts):
            break
    for buffer, found in zip(buffers, starts, strict=True):
        yield buffer, found.pop()


def _find_starts(buffer: Buffer, memory: MemoryPlan) -> set[Location]:
    found = set()
    for placed, offset in buffer.offsets.items():
        location = memory.locations[placed]
        found.add(replace(location, offset=location.offset - offset))
    return found


def _list_regions(memory: MemoryPlan) -> Iterator[dict[str, Any]]:
    for region in memory.regions:
        yield {
            "memory": region.memory,
            "name": region.name,
            "nbytes": region.nbytes,
            "copies": region.copies,
        }


def _make_box(buffer: Buffer, offset: int, axis: _Axis, texts: Texts) -> list[Any]:
    places = sorted(axis.place[point] for point in buffer.accesses)
    names = dict.fromkeys(_name_tensor(name) for name, _ in buffer.offsets)
    return [places, offset, buffer.nbytes, texts.numbers(names)]


def _name_tensor(name: str) -> str:
    node, scratch, number = name.partition(SCRATCH)
    return f"scratch {number} of {node}" if scratch else name


class _Axis:
    """The points of a plan in one order: place by point, and step and node by place."""

    def __init__(self, plan: Plan, placement: Placement, order: HappensBefore) -> None:
        number = {node.name: index for index, node in enumerate(plan.graph.nodes)}
        self.place: dict[Point, int] = {START: 0}
        self.steps, self.nodes = [-1], [-1]
        for step in placement.steps:
            for offset, node in enumerate(_list_points(plan, step)):
                self.place[order.point(step, offset)] = len(self.steps)
                self.steps.append(step.index)
                self.nodes.append(number.get(node, -1))
        self.place[order.end] = len(self.steps)
        self.steps.append(len(placement.steps))
        self.nodes.append(-1)


def _list_points(plan: Plan, step: Step) -> list[str]:
    atomic = plan.prototypes[step.device].capabilities.atomic_programs
    if isinstance(step.work, Transfer) or atomic:
        return [""]
    return [node.name for node in step.work.graph.nodes]
