"""Which plan an item runs: it follows from what is fetched. In which shapes, `by_shapes` says."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import trio

from ..planning import Plan
from .by_shapes import ByShapes
from .open_plans import OpenPlans
from .pace import Pace

KEPT_FETCHES = 64
"""Sets of fetched tensors whose plans are kept; the least recently used are forgotten first."""

ALL: frozenset[str] = frozenset()
"""What stands for all outputs, and all effects."""


class ByFetches:
    """Finds the plans for what is fetched, and has them made; on the trio thread only.

    Parameters
    ----------
    plan : Plan
        For all outputs.
    open_plans : OpenPlans
    pace : Pace
    """

    def __init__(self, plan: Plan, open_plans: OpenPlans, pace: Pace) -> None:
        self._plan = plan
        self._open_plans = open_plans
        self._pace = pace
        self.whole = ByShapes(plan, open_plans)
        self._found: OrderedDict[frozenset[str], ByShapes] = OrderedDict()
        self._planning = trio.Lock()

    def find(self, names: frozenset[str]) -> ByShapes | None:
        """Return the plans for some tensors, if they were fetched before."""
        if not names:
            return self.whole
        found = self._found.get(names)
        if found is not None:
            self._found.move_to_end(names)
        return found

    async def open(self, names: frozenset[str]) -> ByShapes:
        """Return the plans for some tensors, planned unless somebody did meanwhile.

        Raises
        ------
        FetchError, PlanError
            If there are none.
        """
        async with self._planning:
            found = self.find(names)
            if found is None:
                make = partial(self._plan.fetching, *sorted(names))
                plan = await self._pace.on_thread(make)
                is_all = plan is self._plan
                found = self.whole if is_all else ByShapes(plan, self._open_plans, names)
                self._found[names] = found
                if len(self._found) > KEPT_FETCHES:
                    self._found.popitem(last=False)
            return found
