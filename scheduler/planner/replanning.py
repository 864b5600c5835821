"""Plans from plans: of their graph for other shapes or items, or of another by their request."""

from __future__ import annotations

from dataclasses import replace

from ...graph.ir import Graph
from ...graph.passes import Applied, expand_unsupported, fold_constants, fuse_chains
from ..plans.plan import Plan
from ..plans.request import PlanRequest
from ..plans.shapes import Bounds, Shapes
from ..shapes.bounds import Template, fed_bounds
from ..shapes.specialise import specialised
from ..shapes.sync_points import GraphSplit, cut
from . import planner
from .lowering import AFTER_CHOICE
from .prepare import BoundedLengths, GrowingLengths, Lengths


def request_of(plan: Plan, max_in_flight: int | None = None) -> PlanRequest:
    """Return what a plan was to be like, for a plan to be made."""
    count = plan.max_in_flight if max_in_flight is None else max_in_flight
    return replace(
        plan.request,
        max_in_flight=count,
        fuses_chains=fuse_chains in plan.passes,
        writes_out=expand_unsupported in plan.passes,
        apart=frozenset(),
    )


def replan(plan: Plan, max_in_flight: int | None = None) -> Plan:
    """Return the plan of the same graph and bounds, for another number of items in flight."""
    if not plan.bounds:
        return _fetching_as_much(plan, replan_graph(plan, plan.whole, max_in_flight))
    lengths = BoundedLengths(plan.folds, plan.bounds)
    return _alike(plan, planner.make_plan(plan.fed, request_of(plan, max_in_flight), (), lengths))


def replan_graph(plan: Plan, graph: Graph, max_in_flight: int | None = None) -> Plan:
    """Return the plan of another graph for the same devices and pins."""
    passes = plan.passes if plan.template is None else ()  # they were at work on the template
    lengths = Lengths(fold_constants in passes)
    made = planner.make_plan(graph, request_of(plan, max_in_flight), passes, lengths)
    return replace(made, replicas=plan.replicas, applied=(*_simplified(plan), *made.applied))


def replan_within(plan: Plan, graph: Graph, bounds: Bounds) -> Plan:
    """Return the plan of another graph for the same devices and pins, for lengths in bounds."""
    lengths = BoundedLengths(plan.folds, bounds)
    made = planner.make_plan(graph, request_of(plan), (), lengths)
    return replace(made, passes=plan.passes, replicas=plan.replicas)


def replan_ahead(plan: Plan) -> Plan | None:
    """Return the plan of what runs before values decide lengths; None if that is not known.

    Raises
    ------
    PlanError, ShapeError
        If there is none.
    """
    parts = split_ahead(plan)
    if parts is None or not parts.head.nodes:
        return None
    bounds = fed_bounds(parts.head, plan.computed)
    return replan_within(plan, parts.head, bounds) if bounds else replan_graph(plan, parts.head)


def split_ahead(plan: Plan) -> GraphSplit | None:
    """Return a graph, cut where values decide lengths; None while those of inputs are not known."""
    bounds = fed_bounds(plan.graph, plan.computed)
    if bounds is None:
        return None
    template = Template(plan.graph, plan.prototypes, plan.pins, plan.folds)
    return template.cut(bounds, plan.computed) if bounds else cut(plan.graph, plan.computed)


def replan_for_shapes(plan: Plan, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
    """Return the plan for inputs of these shapes, with memory of its own for just them.

    Raises
    ------
    FeedError, ShapeError
        As `Plan.for_shapes`.
    """
    graph, folded = specialised(plan.fed, shapes, plan.passes)
    source = replace(plan, applied=(*plan.applied, *folded))
    return _fetching_as_much(plan, replan_graph(source, graph, max_in_flight))


def replan_beside(plan: Plan, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
    """Return the plan for inputs of these shapes, beside which those of other lengths run.

    Raises
    ------
    FeedError
        If a shape does not fit its input.
    ShapeError
        If shapes do not fit together inside the graph.
    PlanError
        If values decide shapes.
    """
    lengths = GrowingLengths(plan.folds, shapes=shapes)
    return _alike(plan, planner.make_plan(plan.fed, request_of(plan, max_in_flight), (), lengths))


def _alike(plan: Plan, made: Plan) -> Plan:
    """Return a plan of the same graph with all that the one before says beside it."""
    applied = (*_simplified(plan), *made.applied)
    made = replace(made, passes=plan.passes, replicas=plan.replicas, applied=applied)
    return _fetching_as_much(plan, made)


def _fetching_as_much(plan: Plan, made: Plan) -> Plan:
    return replace(
        made,
        computed=plan.computed,
        source=plan.source,
        dead=plan.dead,
        unneeded=plan.unneeded,
    )


def _simplified(plan: Plan) -> tuple[Applied, ...]:
    """Return what was done before nodes were given to devices."""
    return tuple(one for one in plan.applied if one.name not in AFTER_CHOICE)
