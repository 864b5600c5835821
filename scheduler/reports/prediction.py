"""Predicted time of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..costs import Costs
from ..planner.simulate import simulate
from ..plans.plan import Plan

MOST_STEPS = 100_000
"""Longer streams are not simulated: a report has to be quick."""

ROUNDS = 4
"""Length of the simulated stream, in multiples of the items in flight."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a plan."""

    seconds: float
    """Time of one item."""
    items_per_s: float
    """Rate of a stream with `plan.in_flight` items in flight."""


def predict(plan: Plan, costs: Costs | None = None) -> Prediction | None:
    """Simulate `plan`, by default with its own costs; return None while shapes are open."""
    if not plan.is_static:
        return None
    seconds, items = simulate(plan, costs=costs).makespan_s, ROUNDS * plan.in_flight
    if plan.in_flight == 1 or items * len(plan.steps) > MOST_STEPS:
        return Prediction(seconds, 1 / seconds if seconds else 0.0)
    return Prediction(seconds, simulate(plan, items=items, costs=costs).items_per_s)
