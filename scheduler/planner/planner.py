"""The planner: the best choice for which there is memory, of a graph made simpler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...graph.errors import ShapeError
from ...graph.ir import Graph
from ...graph.passes import Pass, fold_constants, run_passes
from ...graph.state import set_aside
from ..errors import DoesNotFitError
from ..plans.plan import Plan
from ..plans.regions import MemoryPlan
from ..plans.request import PlanRequest
from ..plans.shapes import Bounds, Shapes
from ..shapes.bounds import Template, largest, leeway_of, undecided
from ..shapes.constraints import NONE, DynamicShapeConstraints
from ..shapes.fixed import growing_leeway, worth_apart
from ..shapes.sync_points import has_static_shapes
from ..shapes.whole import with_whole_nodes
from .chains import Lowered, lowered, without_chains
from .memory.limits import check_addressable
from .memory.memory_plan import plan_memory
from .mixed_precision import with_half
from .partition.strategies import choices, merging
from .prologue import with_prologue

WAITS_WORTH = 1.01
"""If steps wait for memory, and that costs more, partitions are tried that may wait for less."""

MOST_TRIED = 6


def within(template: Graph, bounds: Bounds, request: PlanRequest, *, folds: bool) -> Plan:
    """Return the plan for the largest shapes, in whose memory smaller ones run as well."""

    def make(template: Graph, request: PlanRequest) -> Plan:
        one = partial(_within, bounds=bounds, request=request, folds=folds)
        # Where nothing is folded, what runs once may be what decides shapes.
        return with_prologue(template, one) if folds else one(template)

    template = set_aside(without_chains(template))
    shown = _largest(template, bounds, request, folds) if request.precision else None
    return with_half(template, request, make, shown)


def _largest(template: Graph, bounds: Bounds, request: PlanRequest, folds: bool) -> Graph:
    """Return the graph of the largest shapes."""
    lengths = largest(bounds)
    try:
        graph = _symbols(template, request, folds).picked(lengths)
    except ShapeError as error:
        named = ", ".join(f"{symbol} = {length}" for symbol, length in lengths.items())
        error.add_note(f"all is planned for the largest lengths within bounds: {named}")
        raise
    if not has_static_shapes(graph):
        raise undecided(graph)
    return graph


def _symbols(template: Graph, request: PlanRequest, folds: bool) -> Template:
    return Template(template, request.devices, request.pins, folds)


def _within(template: Graph, bounds: Bounds, request: PlanRequest, folds: bool) -> Plan:
    def leeway(template: Graph, graph: Graph) -> DynamicShapeConstraints:
        return leeway_of(_symbols(template, request, folds), bounds, graph)

    graph = _largest(template, bounds, request, folds)
    made = _with_symbols(template, graph, request, leeway)
    return replace(made, bounds=bounds)


def at_shapes(template: Graph, shapes: Shapes, request: PlanRequest) -> Plan:
    """Return the plan for some shapes, beside which those of other lengths run as well.

    What lengths matter to lies apart from all else in it, and can be laid out anew.
    """
    one = partial(_at_shapes, shapes=shapes, request=request)
    return with_prologue(set_aside(without_chains(template)), one)


def _at_shapes(template: Graph, shapes: Shapes, request: PlanRequest) -> Plan:
    graph = _symbols(template, request, folds=True).of(shapes)
    if not has_static_shapes(graph):
        raise undecided(graph)
    return _with_symbols(template, graph, request, lambda one, _: growing_leeway(one))


def _with_symbols(
    template: Graph,
    graph: Graph,
    request: PlanRequest,
    leeway: Callable[[Graph, Graph], DynamicShapeConstraints],
) -> Plan:
    """Return the plan of a graph that is also for other lengths of a template's symbols."""
    apart = replace(request, apart=worth_apart(template))
    return _best(graph, apart, template, leeway)


def decide(graph: Graph, request: PlanRequest, passes: tuple[Pass, ...]) -> Plan:
    """Return the plan of a graph that passes make simpler."""

    def make(graph: Graph, request: PlanRequest) -> Plan:
        one = partial(_best, request=request)
        return with_prologue(graph, one) if has_static_shapes(graph) else one(graph)

    graph = without_chains(graph)
    graph, applied = run_passes(graph, passes, merging(request))
    folds = fold_constants in passes
    graph = with_whole_nodes(graph, request.devices, request.pins, folds=folds)
    made = with_half(set_aside(graph), request, make)
    return replace(made, passes=passes, applied=(*applied, *made.applied))


def _best(
    graph: Graph,
    request: PlanRequest,
    template: Graph | None = None,
    leeway: Callable[[Graph, Graph], DynamicShapeConstraints] = lambda *_: NONE,
) -> Plan:
    """Return the plan by the best choice for which there is memory."""
    devices, slots = request.devices, request.max_in_flight
    limits, costs = request.memory_limits, request.costs
    best: tuple[Lowered, MemoryPlan, float] | None = None
    refusal: DoesNotFitError | None = None
    tried, is_static = 0, has_static_shapes(graph)
    if is_static:
        check_addressable(graph)
    found = choices(graph, request, is_static=is_static, template=template)
    for place, choice in enumerate(found):
        if choice.placement is None:
            return _plan(Lowered(graph, choice), request, None)
        if best is not None and best[2] <= choice.seconds * WAITS_WORTH:
            continue  # it cannot be better by more
        tried += best is not None
        if tried > MOST_TRIED and not choice.is_on_one_device:
            continue  # one device alone must never be missed: a split may not lose to it
        one = lowered(graph, choice, request, template)
        choice = one.choice
        try:
            memory = plan_memory(
                one.graph,
                one.placement,
                devices,
                slots,
                limits=limits,
                costs=costs,
                leeway=NONE if one.template is None else leeway(one.template, one.graph),
            )
        except DoesNotFitError as error:
            refusal = refusal or error
            continue
        seconds = choice.seconds_with(memory)
        if best is None or seconds < best[2]:
            best = one, memory, seconds
        if not place and seconds <= choice.seconds * WAITS_WORTH:
            break  # the first is the best; leaner cuts of it come before others that are faster
    if best is None and request.fuses_chains:
        return _best(graph, replace(request, fuses_chains=False), template, leeway)
    if best is None:
        assert refusal is not None, "there is a choice"
        raise refusal
    return _plan(best[0], request, best[1])


def _plan(made: Lowered, request: PlanRequest, memory: MemoryPlan | None) -> Plan:
    choice = made.choice
    placement = choice.placement
    if placement is not None and memory is not None and memory.added_edges:
        placement = placement.with_waits(memory.added_edges)
    return Plan(
        graph=made.graph,
        request=request,
        partition=choice.partition,
        placement=placement,
        memory=memory,
        passes=(),
        decision=choice.decision,
        applied=made.applied,
        template=made.template,
    )
