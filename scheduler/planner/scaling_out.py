"""Chooses replicas of the devices, on fewer cores each, if they make a stream faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ...devices.device import Scaling
from ...devices.errors import DeviceError
from ...devices.kinds import get_kind
from ...devices.memory import HOST
from ...graph.core.nested import acts_outside, walk_nodes
from ...graph.operators.item_order import find_order
from ...graph.values.errors import ShapeError
from ..costs.host import is_on_host
from ..dispatch.core_shares import list_planned
from ..errors import PlanError
from ..plans.partition import Candidate, Decision
from ..plans.plan import Plan
from ..plans.replicas import check_alike, expand_range, list_ranges
from ..plans.request import ON_HOST, PlanRequest
from ..plans.variants import make_variant
from .replanning import replan_ahead
from .simulate import plan_items_in_flight, simulate

GAIN = 0.1
"""The share by which a stream must be predicted faster on replicas."""

SAME = 0.03
"""The share by which an item may be predicted slower, if latency is the objective."""

ROUNDS = 4
"""Simulated items per item in flight, to measure a stream."""

MOST_STEPS = 100_000
"""Longer streams are not simulated."""


def replicate_where_faster(plan: Plan, make: Callable[[PlanRequest], Plan]) -> Plan:
    """Return the plan on replicas if a stream is predicted to be faster there.

    Candidates are the partition as it is, and one by `make` that keeps all that a device with
    scaling programs supports on it. Either all used devices have replicas, or none. If values
    decide lengths, the part before is predicted.
    """
    if plan.request.strategy != "auto" or _explain_never(plan):
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
    if why := _explain_never(plan):
        return why
    used = list_planned(plan)
    told = [name for name in sorted(used) if not _is_replicable(name, plan.request)]
    if told:
        names = " and ".join(told)
        return f"{names} is pinned to, has a number, is an object or is not of this process"
    return (
        "" if used & {*list_scaling(plan.request)} else "no programs there are faster on more cores"
    )


def list_scaling(request: PlanRequest) -> list[str]:
    """Return devices of `request` that may have replicas, and gain by more cores."""
    return [
        name
        for name, device in request.offered.devices.items()
        if isinstance(device, Scaling) and _is_replicable(name, request)
    ]


def _explain_never(plan: Plan) -> str:
    """Return why no partition of `plan` gets replicas; empty if some may."""
    request = plan.request
    if plan.replicas:
        return "the devices name ranges"
    if next(list_ranges("", plan.max_in_flight), None) is None:
        return "there is one core, or one item under way at a time"
    if plan.ends != ON_HOST or request.memory_limits:
        return "memory is limited, or inputs or outputs are on a device"
    acting = [node for node in plan.graph.nodes if acts_outside(node)]
    if (unordered := next((node for node in acting if not find_order(node)), None)) is not None:
        return f"{unordered} has effects, whose order would be lost"
    if len({node.op for node in acting}) > 1:
        return f"{acting[0]} and {acting[1]} have effects, and could run at the same time"
    owning = (node for _, _, node in walk_nodes(plan.graph) if node.operator.owns)
    if (owner := next(owning, None)) is not None:
        return f"{owner} is an instance of a class, and each replica would have its own"
    return "" if list_scaling(request) else "no device may have replicas whose programs scale"


def _is_replicable(name: str, request: PlanRequest) -> bool:
    device, told = request.devices[name], name in request.given or name in request.pins.values()
    offers = device.capabilities
    is_here = isinstance(device, Scaling) or (offers.runs_python and offers.memory == HOST)
    is_numbered = name != get_kind(name)
    return is_here and is_on_host(device) and not told and not is_numbered


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
    if ahead is None or ROUNDS * ahead.in_flight * len(ahead.steps) > MOST_STEPS:
        return None
    return _Judged(plan, ahead, simulate(ahead, items=ROUNDS * ahead.in_flight).items_per_s)


def _list_candidates(plan: Plan, make: Callable[[PlanRequest], Plan]) -> Iterator[Plan]:
    for name in list_scaling(plan.request):
        if not plan.is_static or list_planned(plan) != {name}:
            with suppress(PlanError):  # too little memory, or too many subgraphs
                yield from plan_on_replicas(_plan_mostly_on(name, plan, make))
    if plan.is_static:
        yield from plan_on_replicas(plan)


def _plan_mostly_on(name: str, plan: Plan, make: Callable[[PlanRequest], Plan]) -> Plan:
    request = plan.request
    devices = request.devices
    # The other nodes prefer devices that may have replicas, in any order of naming.
    others = {other: one for other, one in devices.items() if _is_replicable(other, request)}
    ordered = {name: devices[name], **others, **devices}
    made = make(replace(request, strategy="preference", devices=ordered))
    if made.decision is None:
        return made
    chosen = f"{'all' if list_planned(made) == {name} else 'most'} on {name}"
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
