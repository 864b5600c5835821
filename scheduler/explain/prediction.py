"""What a plan is predicted to take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..costs import Costs
from ..planning import Plan
from ..simulation.simulate import simulate
from ..simulation.simulation import Simulation

MOST_STEPS = 100_000
"""Longer streams are not simulated in passing."""

ROUNDS = 4
"""How many times as many items as are in flight tell how fast a stream is."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long things are predicted to take.

    Attributes
    ----------
    seconds : float
        Of one item.
    items_per_s : float
        Of a stream with as many items in flight as the plan says; of one over replicas at most.
    """

    seconds: float
    items_per_s: float


def predicted(plan: Plan, costs: Costs | None = None) -> Prediction | None:
    """Return what a plan is predicted to take, by other costs if given; None without shapes."""
    if not plan.is_static:
        return None
    one = simulate(plan, costs=costs)
    seconds, items = one.makespan_s, ROUNDS * plan.max_in_flight
    if plan.max_in_flight == 1 or items * len(plan.steps) > MOST_STEPS:
        per_s = 1 / seconds if seconds else 0.0
    else:
        per_s = simulate(replace(plan, replicas=()), items=items, costs=costs).items_per_s
    if plan.replicas:
        per_s = min(per_s * plan.variants, 1 / (_least_s(plan, one) or 1.0))
    return Prediction(seconds, per_s)


def _least_s(plan: Plan, one: Simulation) -> float:
    """Return what an item of a stream takes at least: of the busiest lane, the cores, the loop."""
    work, host = one.workload, one.host
    sharing = {names[0]: len(names) for names in plan.replicas}
    busy = [0.0] * len(work.lanes)
    for lane, seconds in zip(work.lane, work.duration_s, strict=True):
        busy[lane] += seconds
    lanes = list(zip(work.lanes, busy, strict=True))
    longest = max((s / sharing.get(lane.device, 1) for lane, s in lanes), default=0.0)
    on_host = sum(s for lane, s in lanes if lane.on_host)
    return max(longest, on_host / (host.cores or len(lanes)), host.feed_s + host.land_s)
