"""Plans by fetched tensors; `shape_plan_cache` has them by shapes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from ....graph.values.recent import RecentItems
from ...planner.replanning import plan_rows
from ...plans.plan import Plan
from ..virtual_time import VirtualTimeDriver
from .open_plans import OpenPlans
from .shape_plan_cache import ShapePlanCache

if TYPE_CHECKING:
    from ...shapes.lifted_rows import LiftedGraph

KEPT_FETCHES = 64
"""Sets of fetched tensors whose plans are kept; the least recently used are dropped first."""

ALL: frozenset[str] = frozenset()
"""Stands for all outputs and all effects."""


class FetchPlanCache:
    """Finds or makes the plans for fetched tensors, on the trio thread only."""

    def __init__(self, plan: Plan, open_plans: OpenPlans, driver: VirtualTimeDriver) -> None:
        self._plan = plan
        self._open_plans = open_plans
        self._driver = driver
        self.whole = ShapePlanCache(plan, open_plans)
        self._found: RecentItems[frozenset[str], ShapePlanCache] = RecentItems(KEPT_FETCHES)
        self._for_rows: RecentItems[object, tuple[ShapePlanCache, LiftedGraph]] = RecentItems(
            KEPT_FETCHES
        )
        self._planning = trio.Lock()

    def find(self, names: frozenset[str]) -> ShapePlanCache | None:
        return self._found.get(names) if names else self.whole

    async def open(self, names: frozenset[str]) -> ShapePlanCache:
        """Return the cache of plans that fetch `names`, planned on first use.

        Raises FetchError or PlanError if there are none.
        """
        async with self._planning:
            found = self.find(names)
            if found is None:
                make = partial(self._plan.fetching, *sorted(names))
                plan = await self._driver.on_thread(make)
                is_all = plan is self._plan
                found = self.whole if is_all else ShapePlanCache(plan, self._open_plans, names)
                self._found[names] = found
            return found

    async def open_rows(
        self, names: frozenset[str], batch: int, slots: int
    ) -> tuple[ShapePlanCache, LiftedGraph]:
        """Return a cache of plans for batches of items with keys, and the lifted graph.

        Batches fetch `names` of up to `batch` items, and have `slots` slots. Raises SessionError
        if the graph mixes items, and as `open`.
        """
        plan = (self.find(names) or await self.open(names)).plan
        key = names, batch, slots
        async with self._planning:
            found = self._for_rows.get(key)
            if found is None:
                made, lifted = await self._driver.on_thread(partial(plan_rows, plan, batch, slots))
                found = self._for_rows[key] = ShapePlanCache(made, self._open_plans, key), lifted
            return found
