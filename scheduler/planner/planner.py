"""The planner: every phase from a graph to its plan, in the order in which they come.

==================  ======================================================  =======================
phase               decides                                                 in
==================  ======================================================  =======================
`prepare`           the graph that is planned: simpler, with known lengths  `prepare`
`convert_to_half`   what is computed in float16, where that is allowed      `mixed_precision`
`split_prologue`    what runs once, when the plan is opened                 `prologue`
`choices`           who runs what: partitions, the best first               `partition.choose`
`lower`             the form in which devices get their nodes, the steps    `lowering`, `placement`
`plan_memory`       every offset                                            `memory.memory_plan`
==================  ======================================================  =======================

Where a phase knows several ways to go on, the first is taken for which there is memory. What users
ask for becomes a request before that (`api`, `request`); the plan may then be put on replicas
(`scaling_out`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ...graph.ir import Graph
from ...graph.passes import Pass, fold_constants
from ..errors import DoesNotFitError
from ..plans.plan import Plan
from ..plans.regions import MemoryPlan
from ..plans.request import PlanRequest
from ..plans.shapes import Bounds
from ..shapes.bounds import UndecidedError, find_computed_symbols
from ..shapes.fixed import select_apart
from ..shapes.sync_points import has_static_shapes
from .lowering import Lowered, lower
from .memory.limits import check_addressable
from .memory.memory_plan import plan_memory
from .mixed_precision import convert_to_half
from .partition.choose import choices
from .prepare import BoundedLengths, Lengths, prepare
from .prologue import split_prologue, with_prologue

WAITS_WORTH = 1.01
"""If steps wait for memory, and that costs more, partitions are tried that may wait for less."""

MOST_TRIED = 6


def plan_within(
    graph: Graph, bounds: Bounds, request: PlanRequest, passes: tuple[Pass, ...]
) -> Plan:
    """Return the plan of a graph for all shapes within bounds, if there are any.

    Where values decide lengths, each stage is planned for all lengths within bounds.
    """
    folds = fold_constants in passes
    if bounds and find_computed_symbols(graph).keys().isdisjoint(bounds):
        with suppress(UndecidedError):
            return make_plan(graph, request, passes, BoundedLengths(folds, bounds))
    made = make_plan(graph, request, passes, Lengths(folds))
    return replace(made, computed=bounds)


def make_plan(
    graph: Graph, request: PlanRequest, passes: tuple[Pass, ...], lengths: Lengths
) -> Plan:
    """Return the plan of a graph for some lengths of its symbols.

    Raises
    ------
    PlaitError
        As `plait.plan`.
    """
    prepared, applied = prepare(graph, request, passes, lengths)
    refusals = list[DoesNotFitError]()
    for converted in convert_to_half(prepared, request, lengths):
        for attempt in _attempts(converted.graph, converted.request, lengths):
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
    """What is planned for each item, and what runs before the first of them."""

    graph: Graph
    request: PlanRequest
    prologue: Graph | None = None


def _attempts(graph: Graph, request: PlanRequest, lengths: Lengths) -> Iterator[_Attempt]:
    """Yield a graph in the form that is fastest to run, then in forms that take less memory.

    Items that compute a prologue for themselves share the memory of its results, and nodes that are
    no chain can lie on different devices.
    """
    fused = [request]
    if request.fuses_chains:
        fused.append(replace(request, fuses_chains=False))
    parts = split_prologue(graph) if lengths.may_split(graph) else None
    if parts is not None:
        yield from (_Attempt(parts.rest, one, parts.prologue) for one in fused)
    yield from (_Attempt(graph, one) for one in fused)


def _plan_items(attempt: _Attempt, lengths: Lengths) -> Plan:
    """Return the plan of what runs for each item.

    It is by the choice that is predicted to be fastest in the memory that there is.
    """
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
    for place, choice in enumerate(choices(graph, request, is_static=is_static, template=template)):
        if choice.placement is None:
            return _assemble(Lowered(graph, choice), request, None, lengths)
        if best is not None and best.seconds <= choice.seconds * WAITS_WORTH:
            continue  # it cannot be better by more
        tried += best is not None
        if tried > MOST_TRIED and not choice.is_on_one_device:
            continue  # one device alone must never be missed: a split may not lose to it
        try:
            lowered = lower(graph, choice, request, template)
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
            break  # the first is the best; leaner cuts of it come before others that are faster
    if best is None:
        raise refusals[0]
    return _assemble(best.lowered, request, best.memory, lengths)


class _LaidOut(NamedTuple):
    """A choice with a place for every buffer."""

    lowered: Lowered
    memory: MemoryPlan
    seconds: float
    """What it is predicted to take where steps wait for memory, too."""


def _assemble(
    lowered: Lowered, request: PlanRequest, memory: MemoryPlan | None, lengths: Lengths
) -> Plan:
    """Return what the phases decided as a plan; there is no memory while shapes are unknown."""
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
