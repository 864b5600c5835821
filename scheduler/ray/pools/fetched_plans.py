"""A driver's view of plans for some tensors only, which hosts make and run."""

from __future__ import annotations

from functools import partial

import trio

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
        self._found: dict[frozenset[str], Plan] = {}

    async def find(self, fetched: frozenset[str]) -> Plan:
        """Return the plan for some tensors, planning on first use.

        Raises FetchError or PlanError or DeviceError if planning fails.
        """
        if fetched == ALL:
            return self._whole
        if fetched not in self._found:
            make = partial(self._whole.fetching, *sorted(fetched))
            made = await trio.to_thread.run_sync(make)
            while len(self._found) >= KEPT_FETCHES:
                del self._found[next(iter(self._found))]
            self._found[fetched] = made
        return self._found[fetched]
