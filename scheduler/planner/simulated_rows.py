"""Rows in simulations: what the batches of a plan's `Each` nodes do, for any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from ...graph.operators.each import EACH
from ..costs import Costs
from ..plans.placement import Step, Transfer
from ..plans.plan import Plan
from ..plans.variants import variant
from ..simulation.lanes import merged_lanes, together, work_of
from ..simulation.workload import RowCall, RowWork, Workload
from .bounded_shapes import BoundedShapes


def with_rows(
    variants: Sequence[Plan], bodies: Mapping[str, Sequence[Plan]]
) -> tuple[Workload, dict[str, RowWork]]:
    """Return the steps of a plan as work on lanes, and by queue that of its batches.

    Plans are given for each variant, those of the batches for full ones.
    """
    works = [work_of(one) for plans in (variants, *bodies.values()) for one in plans]
    lanes = merged_lanes(works)

    def on_lanes(plans: Sequence[Plan]) -> Workload:
        work = together([work_of(one) for one in plans], lanes)
        return replace(work, calls=_calls(plans[0].steps, bodies))

    def row_work(plans: Sequence[Plan]) -> RowWork:
        size, fitted = _fitting(plans)
        memory = plans[0].memory
        assert memory is not None, "it is planned for a full batch"
        at = cache(lambda rows: on_lanes(fitted(rows)))
        return RowWork(size, plans[0].max_in_flight, on_lanes(plans), at, memory.regions)

    return on_lanes(variants), {queue: row_work(plans) for queue, plans in bodies.items()}


def priced_bodies(plan: Plan, costs: Costs) -> dict[str, list[Plan]]:
    """Return the plans of batches by queue, for each variant, where shapes are known."""
    found = {}
    for queue, body in plan.bodies.items():
        if body.is_static:
            priced = replace(body, request=replace(body.request, costs=costs))
            found[queue] = [variant(priced, index) for index in range(body.variants)]
    return found


def _calls(steps: Sequence[Step], queues: Mapping[str, object]) -> dict[int, RowCall]:
    """Return the steps that hand rows to queues."""
    found = {}
    for step in steps:
        if step.awaited is None or isinstance(step.work, Transfer):
            continue
        (node,) = step.work.graph.nodes  # what is awaited is a subgraph of its own
        if node.op == EACH and (queue := node.attributes["queue"]) in queues:
            rows = step.work.graph.tensors[node.inputs[0]].static_shape[0]
            found[step.index] = RowCall(queue, rows, node.attributes["max_delay_s"])
    return found


def _fitting(plans: Sequence[Plan]) -> tuple[int, Callable[[int], Sequence[Plan]]]:
    """Return how many rows a batch has at most, and what returns the plans for so many."""
    first = plans[0]
    template = first.template
    if template is None:  # a row at a time, and all else is known
        return 1, lambda _: plans
    rows = str((template.tensors[template.inputs[0]].shape or ())[0])
    largest = {symbol: most for symbol, (_, most) in first.bounds.items()}
    fits = [BoundedShapes(one) for one in plans]

    def fitted(count: int) -> Sequence[Plan]:
        lengths = {**largest, rows: count}
        shapes = {
            name: tuple(
                lengths[dim] if isinstance(dim, str) else dim
                for dim in template.tensors[name].shape or ()
            )
            for name in template.inputs
        }
        return [fit.fit(shapes) or plan for fit, plan in zip(fits, plans, strict=True)]

    return largest[rows], fitted
