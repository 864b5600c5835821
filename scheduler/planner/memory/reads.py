"""Reads of each tensor: by nodes, by copies, by atomic programs, at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....devices.device import Device
from ....graph.ir import Graph, Node
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, Placement
from ...plans.regions import PlacedTensor
from ...plans.steps import Step, Transfer
from .happens_before import HappensBefore, Point


def reads_of(
    graph: Graph, placement: Placement, devices: Mapping[str, Device], order: HappensBefore
) -> dict[PlacedTensor, list[Point]]:
    """Return the points that read each placed tensor."""
    reads: dict[PlacedTensor, list[Point]] = {}
    for step in placement.steps:
        for placed, point in _reads_of_step(graph, placement, devices, order, step):
            reads.setdefault(placed, []).append(point)
    for name in graph.outputs:
        if name not in graph.constants:
            reads.setdefault((name, placement.local[name, OUTSIDE]), []).append(order.end)
    for commit in placement.commits:
        reads.setdefault(commit.source, []).append(order.end)
    return reads


def _reads_of_step(
    graph: Graph,
    placement: Placement,
    devices: Mapping[str, Device],
    order: HappensBefore,
    step: Step,
) -> Iterator[tuple[PlacedTensor, Point]]:
    if isinstance(step.work, Transfer):
        if not step.work.arrives:
            yield (step.work.tensor, step.work.source), order.point(step)
    elif is_atomic(step, devices):
        for name in step.work.graph.inputs:
            yield (name, placement.local[name, step.device]), order.point(step)
    else:
        for node, point in points_of(step, step.work, order):
            for name in dict.fromkeys(filter(None, node.inputs)):
                if name not in graph.constants:
                    yield (name, placement.local[name, step.device]), point


def is_atomic(step: Step, devices: Mapping[str, Device]) -> bool:
    """True when a step is one piece, if it runs a program."""
    return devices[step.device].capabilities.atomic_programs


def points_of(step: Step, work: Subgraph, order: HappensBefore) -> Iterator[tuple[Node, Point]]:
    """Yield the nodes of a step, and when each runs."""
    for place, node in enumerate(work.graph.nodes):
        yield node, order.point(step, place)
