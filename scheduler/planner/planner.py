"""The planner: the phases from a graph to its plan, in order.

==================  ======================================================  =======================
phase               decides                                                 in
==================  ======================================================  =======================
`prepare`           the graph to plan: simpler, with known lengths          `prepare`
`convert_to_half`   the nodes in float16, where that is allowed             `mixed_precision`
`split_prologue`    the nodes that run once, when the plan is opened        `prologue`
`list_choices`      the devices: partitions, the best first                 `partition.choose`
`lower`             the form in which devices get their nodes, the steps    `lowering`, `placement`
`plan_memory`       every offset                                            `memory.memory_plan`
==================  ======================================================  =======================

Among the alternatives of a phase, the first that fits into memory is taken. `api` and `request`
convert the user's arguments to a request before; `scaling_out` may put the plan on replicas after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ...graph.core.ir import Graph
from ...graph.passes.pipeline import Pass
from ..errors import DoesNotFitError
from ..plans.plan import Bounds, Plan
from ..plans.regions import MemoryPlan
from ..plans.request import PlanRequest
from ..shapes.bounds import UndecidedError, find_computed_symbols
from ..shapes.fixed import select_apart
from ..shapes.sync_points import has_static_shapes
from .lowering import Lowered, lower, move_to_measured
from .memory.memory_plan import check_addressable, plan_memory
from .mixed_precision import convert_to_half
from .partition.choose import list_choices
from .prepare import BoundedLengths, Lengths, prepare, simplify
from .prologue import split_prologue, with_prologue

WAITS_WORTH = 1.01
"""Factor by which waits for memory may slow down a plan before other partitions are tried."""

MOST_TRIED = 6


def plan_within(
    graph: Graph, bounds: Bounds, request: PlanRequest, passes: tuple[Pass, ...]
) -> Plan:
    """Plan `graph` for all shapes within `bounds`, as `request` says, after `passes`.

    If values decide lengths, each stage is planned for all lengths within bounds.
    """
    part, simplified, bounds = simplify(graph, request, passes, bounds)
    folds, made = request.options.folds, None
    if bounds and find_computed_symbols(part).keys().isdisjoint(bounds):
        with suppress(UndecidedError):
            made = make_plan(part, request, (), BoundedLengths(folds, bounds))
    if made is None:
        made = replace(make_plan(part, request, (), Lengths(folds)), computed=bounds)
    return replace(made, passes=passes, applied=(*simplified, *made.applied))


def make_plan(
    graph: Graph, request: PlanRequest, passes: tuple[Pass, ...], lengths: Lengths
) -> Plan:
    """Plan `graph` for `request` and `lengths` of its symbols, after `passes`.

    Raises the errors of `plait.plan`.
    """
    prepared, applied = prepare(graph, request.offered, passes, lengths)
    refusals = list[DoesNotFitError]()
    for converted in convert_to_half(prepared, request, lengths):
        for attempt in _list_attempts(converted.graph, converted.request, lengths):
            try:
                made = _plan_items(attempt, lengths)
                if attempt.prologue is not None:
                    made = with_prologue(made, attempt.prologue)
            except DoesNotFitError as error:
                refusal = error
            else:
                made = converted.finish(made)
                return replace(made, passes=passes, applied=(*applied, *made.applied))
        refusals.append(refusal)
    raise refusals[0]


class _Attempt(NamedTuple):
    """The graph to plan for each item, and the prologue."""

    graph: Graph
    request: PlanRequest
    prologue: Graph | None = None


def _list_attempts(graph: Graph, request: PlanRequest, lengths: Lengths) -> Iterator[_Attempt]:
    """Yield a request's graph for lengths in its fastest form, then in forms that take less memory.

    Items that compute the prologue themselves share the memory of its results, and nodes outside of
    chains can lie on different devices.
    """
    fused = [request]
    if request.options.fuses_chains:
        fused.append(replace(request, options=request.options._replace(fuses_chains=False)))
    parts = split_prologue(graph) if lengths.may_split(graph) else None
    if parts is not None:
        yield from (_Attempt(parts.rest, one, parts.prologue) for one in fused)
    yield from (_Attempt(graph, one) for one in fused)


def _plan_items(attempt: _Attempt, lengths: Lengths) -> Plan:
    template = lengths.template(attempt.graph)
    graph, request = lengths.pick(attempt.graph, attempt.request), attempt.request
    if template is not None:
        request = replace(request, apart=select_apart(template))
    is_static = has_static_shapes(graph)
    if is_static:
        check_addressable(graph)
    best: _LaidOut | None = None
    refusals = list[DoesNotFitError]()
    tried = 0
    for place, choice in enumerate(
        list_choices(graph, request.offered, is_static=is_static, template=template)
    ):
        if choice.placement is None:
            return _assemble(Lowered(graph, choice), request, None, lengths)
        if best is not None and best.seconds <= choice.seconds * WAITS_WORTH:
            continue  # it cannot be much better
        tried += best is not None
        if tried > MOST_TRIED and not choice.is_on_one_device:
            continue  # always try single devices: a split must not be slower
        try:
            lowered = lower(graph, choice, request, template)
            if request.choices is not None and template is None:
                lowered = move_to_measured(lowered, request, request.choices)
            memory = plan_memory(
                lowered.graph,
                lowered.placement,
                request.devices,
                request.max_in_flight,
                limits=request.memory_limits,
                costs=request.costs,
                constraints=lengths.constraints(
                    lowered.template or lowered.graph, lowered.graph, request
                ),
            )
        except DoesNotFitError as error:
            refusals.append(error)
            continue
        one = _LaidOut(lowered, memory, lowered.choice.seconds_with(memory))
        if best is None or one.seconds < best.seconds:
            best = one
        if not place and one.seconds <= choice.seconds * WAITS_WORTH:
            break  # the first is the best; leaner cuts of it precede faster ones of others
    if best is None:
        raise refusals[0]
    return _assemble(best.lowered, request, best.memory, lengths)


class _LaidOut(NamedTuple):
    """A choice with a place for every buffer."""

    lowered: Lowered
    memory: MemoryPlan
    seconds: float
    """The predicted time including waits for memory."""


def _assemble(
    lowered: Lowered, request: PlanRequest, memory: MemoryPlan | None, lengths: Lengths
) -> Plan:
    choice = lowered.choice
    placement = choice.placement
    if placement is not None and memory is not None and memory.added_edges:
        placement = placement.with_waits(memory.added_edges)
    return Plan(
        graph=lowered.graph,
        request=request,
        partition=choice.partition,
        placement=placement,
        memory=memory,
        passes=(),
        decision=choice.decision,
        bounds=lengths.bounds,
        applied=lowered.applied,
        template=lowered.template,
    )
