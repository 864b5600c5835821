"""Plans from plans: for other shapes or items, for another graph, for some tensors, for batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.core.ir import Graph, Node, find_needed
from ...graph.core.nested import has_effects, walk_nodes
from ...graph.operators.bounded_call import calls_function
from ...graph.operators.control import CONTROL_FLOW
from ...graph.operators.each import ROWS, iterate_bodies
from ...graph.passes.pipeline import Applied
from ...graph.values.errors import suggest_names
from ..errors import FetchError, PlanError
from ..plans.plan import NO_BOUNDS, Bounds, Plan, Shapes
from ..plans.replicas import check_in_turn
from ..plans.request import ON_HOST, IoDevices, PassOptions, Pins, PlanRequest, find_pin
from ..shapes.bounds import Template, find_computed_symbols, find_fed_bounds, resolve_bounds
from ..shapes.specialise import specialise_with_passes
from ..shapes.sync_points import GraphSplit, cut
from . import planner
from .lowering import AFTER_CHOICE
from .prepare import BoundedLengths, GrowingLengths, Lengths

if TYPE_CHECKING:
    from ..shapes.lifted_rows import LiftedGraph


def request_of(plan: Plan, max_in_flight: int | None = None) -> PlanRequest:
    count = plan.max_in_flight if max_in_flight is None else max_in_flight
    if plan.request.commit == "item" and count > 1:
        check_in_turn(plan.graph)
    return replace(
        plan.request,
        max_in_flight=count,
        overlaps=count > 1 or bool(plan.replicas or plan.beside),
        options=PassOptions.from_passes(plan.passes),
        apart=frozenset(),
    )


def replan(plan: Plan, max_in_flight: int | None = None) -> Plan:
    if not plan.bounds:
        return _copy_sources(plan, replan_graph(plan, plan.whole, max_in_flight))
    lengths = BoundedLengths(plan.folds, plan.bounds)
    return _copy_context(
        plan, planner.make_plan(plan.fed, request_of(plan, max_in_flight), (), lengths)
    )


def replan_graph(plan: Plan, graph: Graph, max_in_flight: int | None = None) -> Plan:
    passes = plan.passes if plan.template is None else ()  # they ran on the template
    lengths = Lengths(PassOptions.from_passes(passes).folds)
    made = planner.make_plan(graph, request_of(plan, max_in_flight), passes, lengths)
    return replace(
        made, replicas=plan.replicas, applied=(*_list_simplifications(plan), *made.applied)
    )


def replan_within(plan: Plan, graph: Graph, bounds: Bounds) -> Plan:
    lengths = BoundedLengths(plan.folds, bounds)
    made = planner.make_plan(graph, request_of(plan), (), lengths)
    return replace(made, passes=plan.passes, replicas=plan.replicas)


def replan_ahead(plan: Plan) -> Plan | None:
    """Plan the part of `plan` that runs before values decide lengths, or return None.

    Raises PlanError or ShapeError if that is impossible.
    """
    parts = split_ahead(plan)
    if parts is None or not parts.head.nodes:
        return None
    bounds = find_fed_bounds(parts.head, plan.computed)
    return replan_within(plan, parts.head, bounds) if bounds else replan_graph(plan, parts.head)


def split_ahead(plan: Plan) -> GraphSplit | None:
    """Cut the graph of `plan` where values decide lengths; return None if inputs' are open."""
    bounds = find_fed_bounds(plan.graph, plan.computed)
    if bounds is None:
        return None
    template = Template(plan.graph, plan.prototypes, plan.pins, plan.folds)
    return template.cut(bounds, plan.computed) if bounds else cut(plan.graph, plan.computed)


def replan_for_shapes(plan: Plan, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
    """Plan the graph of `plan` for inputs of `shapes`, with memory for just them.

    `max_in_flight` defaults to that of `plan`. Raises FeedError and ShapeError as
    `Plan.for_shapes`.
    """
    graph, folded = specialise_with_passes(plan.fed, shapes, plan.passes)
    source = replace(plan, applied=(*plan.applied, *folded))
    return _copy_sources(plan, replan_graph(source, graph, max_in_flight))


def replan_beside(plan: Plan, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
    """Plan the graph of `plan` for `shapes` so that other lengths can run next to them.

    `max_in_flight` defaults to that of `plan`. Raises FeedError if a shape does not fit its input,
    ShapeError if shapes do not fit together inside the graph, and PlanError if values decide
    shapes.
    """
    lengths = GrowingLengths(plan.folds, shapes=shapes)
    return _copy_context(
        plan, planner.make_plan(plan.fed, request_of(plan, max_in_flight), (), lengths)
    )


def _copy_context(plan: Plan, made: Plan) -> Plan:
    applied = (*_list_simplifications(plan), *made.applied)
    made = replace(made, passes=plan.passes, replicas=plan.replicas, applied=applied)
    return _copy_sources(plan, made)


def _copy_sources(plan: Plan, made: Plan) -> Plan:
    return replace(
        made, computed=plan.computed, source=plan.source, dead=plan.dead, unneeded=plan.unneeded
    )


def _list_simplifications(plan: Plan) -> tuple[Applied, ...]:
    return tuple(one for one in plan.applied if one.name not in AFTER_CHOICE)


def plan_fetching(plan: Plan, names: Collection[str]) -> Plan:
    """Return the plan with the tensors `names` as outputs; itself if it needs all its nodes.

    `names` are tensors of the graph as it was before passes, if that is known. Raises FetchError if
    the graph lacks one, and PlanError and DeviceError as `plait.plan`.
    """
    whole = plan.fetchable
    # From the graph as it was built: tensors removed by passes may be fetched.
    source = select_needed(whole, names)
    # With all nodes needed, the plan and its open programs can be reused.
    if _is_all_that_runs(source, whole):
        return plan
    fed = {name: plan.fed.tensors[name] for name in source.inputs}
    bound = replace(source, tensors={**source.tensors, **fed})
    graph, folded = specialise_with_passes(bound, None, plan.passes)
    ends = IoDevices(
        {name: device for name, device in plan.ends.inputs.items() if name in graph.inputs},
        {name: device for name, device in plan.ends.outputs.items() if name in graph.outputs},
    )
    symbols = {dim for spec in fed.values() for dim in spec.shape or ()}
    symbols.update(find_computed_symbols(graph))
    known = {**plan.bounds, **plan.computed}
    bounds = {symbol: bound for symbol, bound in known.items() if symbol in symbols}
    request = request_of(plan)
    halved = request.halved if plan.source is None else {}
    request = replace(request, ends=ends, halved=halved)
    made = planner.plan_within(graph, bounds, request, plan.passes)
    return replace(
        made,
        replicas=plan.replicas,
        applied=(*folded, *made.applied),
        source=source,
        dead=plan.dead,
        unneeded=plan.unneeded.union(whole.inputs).difference(source.inputs),
    )


def select_needed(graph: Graph, names: Collection[str], *, effects: bool = False) -> Graph:
    """Return the part of `graph` that `names` need; with `effects`, also nodes that have them.

    Raises FetchError for unknown tensors.
    """
    _check_names(graph, names)
    outputs = tuple(dict.fromkeys(names))
    also = {"keeps": has_effects} if effects else {}
    kept = [*find_needed(outputs, graph.nodes, **also)]
    wanted = {*outputs, *(name for node in kept for name in node.inputs)}
    inputs = tuple(name for name in graph.inputs if name in wanted)
    return replace(graph, inputs=inputs, outputs=outputs).with_nodes(kept[::-1])


def _check_names(graph: Graph, names: Collection[str]) -> None:
    if not names:
        raise FetchError("nothing is fetched", fix="name a tensor")
    for name in names:
        if name not in graph.tensors:
            listed = f"fetch one that it has, such as {', '.join(map(repr, graph.outputs))}"
            fix = suggest_names(name, graph.tensors, listed)
            raise FetchError(f"graph {graph.name!r} has no tensor {name!r}", fix=fix)


def _is_all_that_runs(part: Graph, whole: Graph) -> bool:
    if set(part.outputs) != set(whole.outputs) or part.inputs != whole.inputs:
        return False
    return len(part.nodes) == len(select_needed(whole, whole.outputs, effects=True).nodes)


UNDER_WAY = 2
"""Concurrent batches: one is computed while the next is formed. More would be filled less. Of a
Python function there is one: a call for more rows gains more than is lost between two calls."""


def plan_bodies(plan: Plan) -> Mapping[str, Plan]:
    """Return the plans of the graphs in `plan` that run rows in batches, by queue.

    Raises PlanError if a length inside has no bound, or two graphs share a queue, and
    DoesNotFitError if a batch does not fit.
    """
    found: dict[str, Plan] = {}
    if not any(device.capabilities.awaits for device in plan.prototypes.values()):
        return found  # then these nodes are part of the items
    for node, body in iterate_bodies(plan.fetchable):
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
        # A due batch may start with fewer rows.
        bounds[str(rows)] = (1, node.attributes["batch"])
        bounds.update((dim, given[dim]) for dim in others if isinstance(dim, str) and dim in given)
    under_way = 1 if len(body.nodes) == 1 and calls_function(body.nodes[0]) else UNDER_WAY
    inner_pins = _find_inner_pins(plan.pins, node)
    request = replace(request_of(plan, under_way), pins=inner_pins, ends=ON_HOST, halved={})
    made = planner.plan_within(body, resolve_bounds(body, bounds), request, plan.passes)
    return replace(made, replicas=plan.replicas, source=body)


def _find_inner_pins(pins: Pins, node: Node) -> Pins:
    inside = (
        (path, find_pin(replace(inner, name=f"{node.name}/{path}"), pins))
        for path, _, inner in walk_nodes(node.attributes["body"])
        if inner.op not in CONTROL_FLOW
    )
    return {path: pins[pattern] for path, pattern in inside if pattern is not None}


def plan_rows(plan: Plan, batch: int, max_in_flight: int) -> tuple[Plan, LiftedGraph]:
    """Return a variant of `plan` for batches of `batch` items, and the lifted graph.

    Up to `max_in_flight` items are in flight. Raises SessionError if the graph mixes items, and
    PlanError and DeviceError as `plait.plan`.
    """
    from ..shapes.lifted_rows import lift_rows

    source = plan.fetchable
    fed = {name: plan.fed.tensors[name] for name in source.inputs if name in plan.fed.tensors}
    lifted = lift_rows(replace(source, tensors={**source.tensors, **fed}))
    graph, folded = specialise_with_passes(lifted.graph, None, plan.passes)
    bounds = {**plan.bounds, **plan.computed, lifted.rows: (1, batch)}
    symbols = {dim for name in graph.inputs for dim in graph.tensors[name].shape or ()}
    lengths = {symbol: bounds[symbol] for symbol in bounds if symbol in symbols}
    is_bounded = all(isinstance(dim, int) or dim in lengths for dim in symbols)
    request = request_of(plan, -(-max_in_flight // plan.variants))
    request = replace(request, ends=ON_HOST, halved=request.halved if plan.source is None else {})
    made = planner.plan_within(graph, lengths if is_bounded else NO_BOUNDS, request, plan.passes)
    made = replace(made, replicas=plan.replicas, source=lifted.graph)
    return replace(made, applied=(*folded, *made.applied)), lifted
