"""Chooses replicas of the devices, on fewer cores each, if they make a stream faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ...devices.errors import DeviceError
from ...graph.values.errors import ShapeError
from ..dispatch.core_shares import list_planned
from ..errors import PlanError
from ..plans.partition import Candidate, Decision
from ..plans.plan import Plan
from ..plans.replicas import check_alike, expand_range, list_ranges
from ..plans.request import PlanRequest
from ..plans.variants import make_variant
from .partition.choose import name_single
from .partition.replicable import explain_never, is_replicable, list_scaling
from .replanning import replan_ahead
from .simulate import MOST_PREDICTED, ROUNDS, plan_items_in_flight, simulate

GAIN = 0.1
"""The share by which a stream must be predicted faster on replicas."""

SAME = 0.03
"""The share by which an item may be predicted slower, if latency is the objective."""


def replicate_where_faster(plan: Plan, make: Callable[[PlanRequest], Plan]) -> Plan:
    """Return the plan on replicas if a stream is predicted to be faster there.

    Candidates are the partition as it is, and one by `make` that keeps all that a device with
    scaling programs supports on it. Either all used devices have replicas, or none. If values
    decide lengths, the part before is predicted.
    """
    if plan.request.strategy != "auto" or explain_never(plan.graph, plan.request, plan.replicas):
        return plan
    with suppress(PlanError, ShapeError):  # by its costs it takes years, or opening it will fail
        return _choose_fastest(plan, make)
    return plan


def plan_on_replicas(plan: Plan) -> Iterator[Plan]:
    """Yield the plan on 2, 4, 8 replicas of its devices, which share the items in flight."""
    if explain_single(plan):
        return
    used = sorted(list_planned(plan))
    every = zip(*(list_ranges(name, plan.max_in_flight) for name in used), strict=True)
    for groups in (tuple(map(expand_range, ranges)) for ranges in every):
        with suppress(PlanError, DeviceError):  # too little memory, or no more of the kind
            for names in groups:
                check_alike(names)
            firsts = tuple((one, names[0]) for one, names in zip(used, groups, strict=True))
            share = -(-plan.max_in_flight // len(groups[0]))
            first = plan_items_in_flight(make_variant(replace(plan, replicas=firsts), 1), share)
            yield replace(first, replicas=groups, beside=())


def explain_single(plan: Plan) -> str:
    """Return why a plan gets no automatic replicas of its devices; empty if it may."""
    if why := explain_never(plan.graph, plan.request, plan.replicas):
        return why
    used = list_planned(plan)
    told = [name for name in sorted(used) if not is_replicable(name, plan.request)]
    if told:
        names = " and ".join(told)
        return f"{names} is pinned to, has a number, is an object or is not of this process"
    return (
        "" if used & {*list_scaling(plan.request)} else "no programs there are faster on more cores"
    )


class _Judged(NamedTuple):
    """A plan, its predictable part, and the items per second of a stream."""

    plan: Plan
    ahead: Plan
    per_s: float


def _choose_fastest(plan: Plan, make: Callable[[PlanRequest], Plan]) -> Plan:
    alone = _predict(plan)
    if alone is None:
        return plan
    best, most_s = alone, inf
    if plan.request.objective == "latency":
        most_s = simulate(alone.ahead).makespan_s * (1 + SAME)
    for one in filter(None, map(_predict, _list_candidates(plan, make))):
        if one.per_s > best.per_s * (1 + GAIN) and simulate(one.ahead).makespan_s <= most_s:
            best = one
    if best is alone:
        return plan
    decision = _make_decision(alone, best)
    return replace(best.plan, decision=decision, has_automatic_replicas=True)


def _predict(plan: Plan) -> _Judged | None:
    """Predict a stream of the plan; None if impossible, or if that takes long."""
    ahead = plan if plan.is_static else replan_ahead(plan)
    if ahead is None or ROUNDS * ahead.in_flight * len(ahead.steps) > MOST_PREDICTED:
        return None
    return _Judged(plan, ahead, simulate(ahead, items=ROUNDS * ahead.in_flight).items_per_s)


def _list_candidates(plan: Plan, make: Callable[[PlanRequest], Plan]) -> Iterator[Plan]:
    for name in list_scaling(plan.request):
        # As the plan is it gets no replicas if other nodes are where none may be.
        if not plan.is_static or not _is_mostly_on(name, plan) or explain_single(plan):
            with suppress(PlanError):  # too little memory, or too many subgraphs
                yield from plan_on_replicas(_plan_mostly_on(name, plan, make))
    if plan.is_static:
        yield from plan_on_replicas(plan)


def _is_mostly_on(name: str, plan: Plan) -> bool:
    names = [name_single(name, is_whole=is_whole) for is_whole in (True, False)]
    return plan.decision is not None and plan.decision.chosen in names


def _plan_mostly_on(name: str, plan: Plan, make: Callable[[PlanRequest], Plan]) -> Plan:
    request = plan.request
    devices = request.devices
    # The other nodes prefer devices that may have replicas, in any order of naming.
    others = {other: one for other, one in devices.items() if is_replicable(other, request)}
    ordered = {name: devices[name], **others, **devices}
    made = make(replace(request, strategy="preference", devices=ordered))
    if made.decision is None:
        return made
    chosen = name_single(name, is_whole=list_planned(made) == {name})
    why = f"what {name} supports is there, whole"
    return replace(made, decision=replace(made.decision, chosen=chosen, why=why))


def _make_decision(alone: _Judged, best: _Judged) -> Decision | None:
    before, found, count = alone.plan.decision, best.plan.decision, best.plan.variants
    if before is None or found is None:
        return found
    chosen = f"{found.chosen} on {count} replicas"
    gain = f"{best.per_s / alone.per_s:.1f} times as fast on {count} as on one"
    known = "" if best.plan.is_static else ", up to where values decide lengths"
    is_streamed = before.objective == "throughput"
    items = f"{best.plan.in_flight} items are in flight"
    judged = "" if is_streamed else f"replicas are for streams, as {items}: "
    seconds = 1 / best.per_s if is_streamed else simulate(best.ahead).makespan_s
    taken = Candidate(chosen, seconds, len(best.plan.subgraphs), best.plan.device_names)
    weighed = (
        replace(one, note="the best on one") if one.name == before.chosen else one
        for one in before.candidates
    )
    return replace(
        before,
        chosen=chosen,
        why=f"{found.why}; {judged}a stream is predicted {gain}{known}",
        candidates=(taken, *weighed) if before.candidates else (),
        ask=found.ask,
    )
