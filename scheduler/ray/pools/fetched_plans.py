"""A driver's view of plans for some tensors only, which hosts make and run."""

from __future__ import annotations

from functools import partial

import trio

from ....graph.values.recent import RecentItems
from ...plans.plan import Plan
from ...runtime.opened.fetch_plan_cache import ALL, KEPT_FETCHES


class FetchedPlans:
    """Plans by fetched tensors; used on the trio thread only.

    Parameters
    ----------
    plan : Plan
        For all outputs.
    """

    def __init__(self, plan: Plan) -> None:
        self._whole = plan
        self._found: RecentItems[frozenset[str], Plan] = RecentItems(KEPT_FETCHES)

    async def find(self, fetched: frozenset[str]) -> Plan:
        """Return the plan for some tensors, planning on first use.

        Raises FetchError or PlanError or DeviceError if planning fails.
        """
        if fetched == ALL:
            return self._whole
        found = self._found.get(fetched)
        if found is None:
            make = partial(self._whole.fetching, *sorted(fetched))
            found = self._found[fetched] = await trio.to_thread.run_sync(make)
        return found
