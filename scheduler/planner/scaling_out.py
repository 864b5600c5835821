"""One device, or replicas of it on fewer cores each: whichever makes a stream faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf

from ...devices.device import Scaling
from ..dispatch.core_shares import planned_for
from ..errors import PlanError
from ..plans.io_devices import ON_HOST
from ..plans.plan import Plan
from ..plans.replicas import check_no_effects, members, replicas_of
from ..plans.variants import variant
from .simulate import for_items_in_flight, simulate

GAIN = 0.1
"""By what share a stream must be predicted faster on replicas."""

SAME = 0.03
"""By what share an item may be predicted slower, where the time of one is to be short."""

ROUNDS = 4
"""How many times as many items as are in flight tell how fast a stream is."""

MOST_STEPS = 100_000
"""Longer streams are not simulated in passing."""


def replicate_where_faster(plan: Plan) -> Plan:
    """Return the plan on replicas of its only device, where a stream is predicted to be faster.

    The device must be named without a number, which says that its number does not matter, and one
    whose programs scale: replicas of it are as good as it is, and share this process's memory.
    """
    with suppress(PlanError):
        check_no_effects(plan.graph)
        name = _replicable(plan)
        if name is not None:
            return _fastest(plan, name)
    return plan


def _replicable(plan: Plan) -> str | None:
    """Return the device that may have replicas; None where there is none."""
    request, used = plan.request, planned_for(plan)
    if not plan.is_static or plan.replicas or plan.max_in_flight == 1 or len(used) != 1:
        return None
    (name,) = used
    is_told = name in request.given or name in request.pins.values() or request.memory_limits
    if ":" in name or is_told or request.strategy != "auto" or plan.ends != ON_HOST:
        return None
    is_short = ROUNDS * plan.max_in_flight * len(plan.steps) <= MOST_STEPS
    return name if isinstance(plan.prototypes.get(name), Scaling) and is_short else None


def _fastest(plan: Plan, name: str) -> Plan:
    alone_per_s = _items_per_s(plan)
    best, best_per_s, most_s = plan, alone_per_s, inf
    if plan.request.objective == "latency":
        most_s = simulate(plan).makespan_s * (1 + SAME)
    for one in _on_replicas(plan, name):
        per_s = _items_per_s(one)
        if per_s > best_per_s * (1 + GAIN) and simulate(one).makespan_s <= most_s:
            best, best_per_s = one, per_s
    if best is plan or best.decision is None:
        return best
    gain = f"{best_per_s / alone_per_s:.1f} times as fast on {best.variants} as on one"
    why = f"{best.decision.why}; a stream is predicted {gain}"
    return replace(best, decision=replace(best.decision, why=why))


def _on_replicas(plan: Plan, name: str) -> Iterator[Plan]:
    """Yield the same plan on 2, 4, 8 replicas, which share the items in flight."""
    for names in map(members, replicas_of(name, plan.max_in_flight)):
        first = variant(replace(plan, replicas=((name, names[0]),)), 1)
        each = for_items_in_flight(first, -(-plan.max_in_flight // len(names)))
        yield replace(each, replicas=(names,), beside=())


def _items_per_s(plan: Plan) -> float:
    return simulate(plan, items=ROUNDS * plan.in_flight).items_per_s
