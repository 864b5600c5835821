"""The invariants of a session at rest, for the states of docs/life_of_an_item.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from plait.scheduler.runtime.opened.slots import Slots
from plait.scheduler.runtime.runtime import Runtime


@pytest.fixture(autouse=True, scope="session")
def _sessions_end_at_rest() -> Iterator[None]:
    """Fail to close a session that keeps something of an item."""
    close = Runtime._close

    async def close_and_validate(
        runtime: Runtime, errors: list[BaseException], closed: trio.Event
    ) -> None:
        opened = list_slots(runtime)
        await close(runtime, errors, closed)
        if runtime._breakdown.error is None:
            errors += map(AssertionError, validate(runtime, opened))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "_close", close_and_validate)
        yield


def list_slots(runtime: Runtime) -> list[Slots]:
    """Return the slots of all open plans and of those taken out of use."""
    plans = runtime._open_plans
    return [*plans._slots.values(), *plans._retired]


def validate(runtime: Runtime, opened: list[Slots] | None = None) -> list[str]:
    """List the leftovers of ended items: work, places in queues, permits, slots, keys.

    `opened` are the slots to look at if the session is closed, which forgets them.
    """
    launcher, variables = runtime._launcher, runtime.variables
    held = {
        "items under way": len(runtime._item_runs),
        "items that are copied": runtime._item_runs.copying,
        "tasks in admission": runtime._admissions.count,
        "attempts that are kept": len(launcher.replays._attempts),
        "items that start again": len(launcher.replays._waiting),
        "items that wait for a lane": len(runtime._dispatcher._waiting),
        "readers of variables": len(variables._turns._readers),
        "items that wait for variables": len(variables._turns._queue),
        "writers of variables": variables._turns._writer is not None,
        "users of keys": sum(len(one.users) for one in variables.states._states.values()),
        # Their instances may still be closed at this moment.
        "users of dropped keys": sum(len(one.users) for one in variables.states._dropped),
    }
    found = [f"{count} {what}" for what, count in held.items() if count]
    for slots in list_slots(runtime) if opened is None else opened:
        found += _find_leftovers(slots)
    return found


def _find_leftovers(slots: Slots) -> Iterator[str]:
    holders, count = slots._holders, slots.open_plan.plan.max_in_flight
    if holders.claims or holders.waiting:
        yield f"{holders.claims} claims and {len(holders.waiting)} waiting items of {slots.plan}"
    if not holders.closing and holders.permits.free != count:
        yield f"{holders.permits.free} of {count} permits"
    if slots._guard is None and sorted(holders.free) != list(range(count)):
        yield f"slots {sorted(holders.free)} of {count}"
    guards = [slots._order] if slots._guard is None else [slots._order, slots._guard]
    for guard in guards:
        if guard._starts or guard._claims._items:
            yield f"{len(guard._claims._items)} items in {type(guard).__name__}"
    busy = [lane for lane in slots.open_plan.lanes._lanes.values() if not lane.is_idle]
    if busy:
        yield f"{len(busy)} busy lanes"
