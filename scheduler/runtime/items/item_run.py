"""One item of its own, outside of streams: taken to its end, or given up when it is late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from ...dispatch.quick import ON_LOOP, Limit
from ...errors import DeadlineError
from ...plans.fetches import Fetched, Fetches
from ...profile.timestamps import Timestamps
from ..opened.fetch_plan_cache import ALL
from ..queue import Place
from ..streaming.carrier import Carrier
from ..streaming.deadlines import check_deadline, deadline_passed
from .item import ItemRun, Results


async def run_one(
    carrier: Carrier,
    inputs: Mapping[str, Any],
    fetches: Fetches | None,
    deadline_s: float | None,
    place: Place | None = None,
    limit: Limit = ON_LOOP,
) -> Any:
    """Run one item and return its outputs by name, or what is fetched: `Session.run`.

    With a place in a queue it is admitted when its turn comes.
    """
    check_deadline(deadline_s)
    fetched = None if fetches is None else Fetched(fetches, carrier.plan.fetchable)
    names = ALL if fetched is None else fetched.names
    asked_ns = carrier.now_ns()
    if deadline_s is None and place is None:
        marks = Timestamps(asked_ns, asked_ns)
        results = run_now(carrier, inputs, marks, names, limit)
        if results is not None:
            await carrier.checkpoint()
            marks.taken_ns = marks.released_ns = carrier.now_ns()
            return results if fetched is None else fetched.arranged(results)
    flight = ItemRun(on_done=lambda done: carrier.announce(done.marks, done.error))
    flight.marks.asked_ns = flight.marks.given_ns = asked_ns
    try:
        if deadline_s is None:
            await run_item(carrier, inputs, flight, names, place=place)
        else:
            await run_item_within(deadline_s, carrier, inputs, flight, names, place)
        flight.marks.taken_ns = flight.marks.released_ns = carrier.now_ns()
        if flight.error is not None:
            raise flight.error
        return dict(flight.results) if fetched is None else fetched.arranged(flight.results)
    finally:
        flight.let_go()


def run_now(
    carrier: Carrier,
    inputs: Mapping[str, Any],
    marks: Timestamps,
    names: frozenset[str],
    limit: Limit = ON_LOOP,
    slots: int = 1,
) -> Results | None:
    """Run an item on this thread that is likely to keep within a limit; None if it is not."""
    try:
        results = carrier.run_at_once(inputs, slots, marks, names, limit)
    except BaseException as error:
        carrier.announce(marks, error)
        raise
    if results is not None:
        carrier.announce(marks, None)
    return results


async def run_item_within(
    deadline_s: float,
    runtime: Carrier,
    inputs: Mapping[str, Any],
    flight: ItemRun,
    fetched: frozenset[str],
    place: Place | None = None,
) -> None:
    """Take an item to its end, and give it up after so many seconds."""
    with trio.move_on_after(deadline_s) as scope:
        late = deadline_passed(deadline_s)
        await run_item(runtime, inputs, flight, fetched, late, scope, place)


async def run_item(
    runtime: Carrier,
    inputs: Mapping[str, Any],
    flight: ItemRun,
    fetched: frozenset[str],
    late: DeadlineError | None = None,
    scope: trio.CancelScope | None = None,
    place: Place | None = None,
) -> None:
    """Take an item to its end; if that is brought about by a scope, it is late."""
    try:
        if place is not None:
            await place.wait_first()
        await runtime.admit(runtime.keys.added(inputs), 1, flight, fetched)
        if place is not None:
            place.leave()
    except BaseException as error:
        flight.cause = late if scope is not None and scope.cancel_called else None
        flight.finish(error=error)
        raise
    try:
        if flight.done.is_set():
            await runtime.checkpoint()
        else:
            await flight.done.wait()
    except BaseException:
        flight.cause = late if scope is not None and scope.cancel_called else None
        await runtime.drain({flight})
        raise
