"""The provenance of open plans, so that they can be made again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ...plans.plan import Plan
from ...plans.shapes import Shapes


@dataclass(frozen=True, slots=True)
class BoundedParent:
    """The plan with bounds that others run in."""

    key: Hashable
    make: Callable[[int], Plan]
    """Returns the plan for a variant."""
    shapes: Shapes
    """Shapes of the inputs of the plan that is to run in it."""


@dataclass(frozen=True, slots=True)
class PlanProvenance:
    """The plan from which an open plan was made."""

    key: Hashable
    make: Callable[[int], Plan]
    """Returns the plan for a variant."""
    kept: int | None
    """How many plans may stay open beside it; None for the usual number."""
    stands_in: bool
    """True if it replaces that plan on the remaining devices."""
    within: BoundedParent | None = None
