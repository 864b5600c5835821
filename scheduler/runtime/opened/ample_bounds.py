"""Bounds for a plan without any, found from the shapes that came.

A session plans anew for each combination of shapes that it is fed. Where ever new ones come, that
takes longer than the items: then one plan is made with room for longer inputs, as if the user had
given bounds, and items are bound to their lengths in it. Lengths that were the same for all items
get no room, so that passes see them as known.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd

from ....graph.core.ir import Graph
from ...errors import PlanError
from ...planner.replanning import replan
from ...plans.plan import Bounds, Plan, Shapes
from .open_plans import KEPT_PLANS
from .stage_bindings import Lengths, read_lengths

FEW_SHAPES = 6
"""Shapes that get plans of their own, before one plan with room is made for all others."""

GROWTH = 1.5
"""The room for each length, relative to the longest that came."""

MOST_MEMORY = KEPT_PLANS
"""The largest memory of a plan with room, relative to the largest plan without, of which as many
would be kept."""

SMALL_NBYTES = 1 << 20
"""Memory that a plan with room may always take."""


class AmpleBounds:
    """Grows bounds with the shapes that inputs have.

    Parameters
    ----------
    graph : Graph
        Has inputs of known ranks.

    Attributes
    ----------
    bounds : Mapping of str to (int, int)
        The smallest and the largest length of each symbol; empty while few shapes have come.
    """

    def __init__(self, graph: Graph) -> None:
        self._dims = {name: graph.tensors[name].shape or () for name in graph.inputs}
        self._met: set[tuple[int, ...]] = set()
        self._longest: Lengths = {}
        self._divisors: Lengths = {}
        self.bounds: Bounds = {}

    def find(self, shapes: Shapes) -> Bounds | None:
        lengths = read_lengths(self._dims, shapes)
        bounds = self.bounds
        are_within = all(
            s in bounds and bounds[s][0] <= n <= bounds[s][1] for s, n in lengths.items()
        )
        return bounds if bounds and are_within else None

    def extend(self, shapes: Shapes) -> Bounds | None:
        """Extend the bounds to `shapes` and return them; None for few shapes or empty inputs."""
        lengths = read_lengths(self._dims, shapes)
        if not all(lengths.values()):
            return None
        for symbol, length in lengths.items():
            self._longest[symbol] = max(length, self._longest.get(symbol, 0))
            self._divisors[symbol] = gcd(length, self._divisors.get(symbol, 0))
        if len(self._met) < FEW_SHAPES:
            self._met.add(tuple(lengths.values()))
            return None
        if self.find(shapes) is None:
            self.bounds = {symbol: self._find_bound(symbol) for symbol in lengths}
        return self.bounds

    def _find_bound(self, symbol: str) -> tuple[int, int]:
        # Some models take multiples of a number alone.
        longest, unit = self._longest[symbol], self._divisors[symbol]
        if longest == unit:  # so were all
            return longest, longest
        return 1, ceil(GROWTH * longest / unit) * unit


def may_be_ample(plan: Plan) -> bool:
    """Return whether `plan` has open shapes and no other conditions."""
    asked = plan.request
    if plan.is_static or plan.bounds or plan.computed or plan.ends.devices or plan.graph.variables:
        return False
    if asked.memory_limits or asked.precision or not plan.folds:
        return False
    return all(plan.graph.tensors[name].shape is not None for name in plan.graph.inputs)


def plan_amply(plan: Plan, bounds: Bounds, max_in_flight: int, most_nbytes: int) -> Plan:
    """Make `plan` again for `max_in_flight` items of any lengths within `bounds`.

    Raises PlanError if values decide shapes, or it takes more than `MOST_MEMORY` times
    `most_nbytes`.
    """
    made = replan(replace(plan, bounds=bounds), max_in_flight)
    nbytes = made.memory.nbytes if made.memory is not None else 0
    if nbytes > max(MOST_MEMORY * most_nbytes, SMALL_NBYTES):
        raise PlanError(f"one plan for all shapes takes {nbytes:,} bytes")
    return made
