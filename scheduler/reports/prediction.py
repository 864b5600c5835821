"""Predicted time of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..costs import Costs
from ..planner.simulate import simulate
from ..plans.plan import Plan

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
        Of a stream with as many items in flight as the plan says.
    """

    seconds: float
    items_per_s: float


def predicted(plan: Plan, costs: Costs | None = None) -> Prediction | None:
    """Return what a plan is predicted to take, by other costs if given; None without shapes."""
    if not plan.is_static:
        return None
    seconds, items = simulate(plan, costs=costs).makespan_s, ROUNDS * plan.in_flight
    if plan.in_flight == 1 or items * len(plan.steps) > MOST_STEPS:
        return Prediction(seconds, 1 / seconds if seconds else 0.0)
    return Prediction(seconds, simulate(plan, items=items, costs=costs).items_per_s)
