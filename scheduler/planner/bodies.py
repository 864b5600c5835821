"""Plans of the graphs whose rows are run in batches: for up to a batch, on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...graph.ir import Graph, Node
from ...graph.nested import all_nodes
from ...graph.operators.control import CONTROL_FLOW
from ...graph.operators.each import ROWS, bodies_in
from ..errors import PlanError
from ..plans.plan import Plan
from ..plans.request import ON_HOST, Pins, pin_of
from ..shapes.bounds import all_bounds
from . import planner
from .replanning import request_of

UNDER_WAY = 2
"""Batches at once: one is computed while the next is put together. More would not fill as well."""


def plan_bodies(plan: Plan) -> Mapping[str, Plan]:
    """Return the plans of the graphs whose rows go in batches, by the queue that the rows wait in.

    Raises
    ------
    PlanError
        If a length in there has no bound, or two graphs share a queue.
    DoesNotFitError
        If there is no memory for a batch.
    """
    found: dict[str, Plan] = {}
    if not any(device.capabilities.awaits for device in plan.prototypes.values()):
        return found  # the nodes of these graphs are part of the items then
    for node, body in bodies_in(plan.fetchable):
        queue = node.attributes["queue"]
        if queue not in found:
            made = _plan_body(plan, node, body)
            found[queue] = made
            for inner, one in made.bodies.items():
                if found.setdefault(inner, one).source != one.source:
                    raise _shared_queue_error(inner, node)
        elif found[queue].source != body:
            raise _shared_queue_error(queue, node)
    return found


def _shared_queue_error(queue: str, node: Node) -> PlanError:
    return PlanError(
        f"rows of two graphs would wait in the queue {queue!r}",
        at=str(node),
        fix="give one of the nodes another name",
    )


def _plan_body(plan: Plan, node: Node, body: Graph) -> Plan:
    given = {**plan.computed, **plan.bounds}
    bounds: dict[str, tuple[int, int]] = {}
    for name in body.inputs:
        rows, *others = body.tensors[name].shape or (ROWS,)
        bounds[str(rows)] = (1, node.attributes["batch"])
        bounds.update((dim, given[dim]) for dim in others if isinstance(dim, str) and dim in given)
    request = replace(
        request_of(plan, UNDER_WAY), pins=_pins_inside(plan.pins, node), ends=ON_HOST, halved={}
    )
    made = planner.plan_within(body, all_bounds(body, bounds), request, plan.passes)
    return replace(made, replicas=plan.replicas, source=body)


def _pins_inside(pins: Pins, node: Node) -> Pins:
    """Return the pins of the nodes of a body, by their names there."""
    inside = (
        (path, pin_of(replace(inner, name=f"{node.name}/{path}"), pins))
        for path, _, inner in all_nodes(node.attributes["body"])
        if inner.op not in CONTROL_FLOW
    )
    return {path: pins[pattern] for path, pattern in inside if pattern is not None}
