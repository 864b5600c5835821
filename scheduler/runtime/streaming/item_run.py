"""One item of its own, outside of streams: taken to its end, or given up when it is late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from ...dispatch.inline_policy import ON_LOOP, InlineLimit
from ...errors import DeadlineError
from ...plans.fetches import Fetched, Fetches
from ...profile.timestamps import Timestamps
from ..items.deadlines import check_deadline, deadline_error
from ..items.item import ItemRun
from ..opened.fetch_plan_cache import ALL
from ..opened.inline import ParkedItem
from ..opened.results import Results, to_values
from ..queue import QueuePlace
from ..running.inline_runner import InlineTerms
from .carrier import Carrier


async def run_one(
    carrier: Carrier,
    inputs: Mapping[str, Any],
    fetches: Fetches | None,
    deadline_s: float | None,
    place: QueuePlace | None = None,
    limit: InlineLimit = ON_LOOP,
) -> Any:
    """Run `inputs` on `carrier` within `deadline_s`, and return the outputs or the `fetches`.

    It may run at once within `limit`; with a `place` in a queue, when its turn comes.
    """
    check_deadline(deadline_s)
    fetched = None if fetches is None else Fetched(fetches, carrier.plan.fetchable)
    names = ALL if fetched is None else fetched.names
    asked_ns = carrier.now_ns()
    marks = Timestamps(asked_ns, asked_ns)
    if deadline_s is None and place is None:
        results = run_now(carrier, inputs, marks, InlineTerms(names, limit))
        if results is not None:
            await carrier.checkpoint()
            marks.taken_ns = marks.released_ns = carrier.now_ns()
            return results if fetched is None else fetched.arranged(results)
    item_run = ItemRun(on_done=lambda done: carrier.announce(done.marks, done.error), marks=marks)
    item_run.priority = 0 if place is None else place.priority
    try:
        if deadline_s is None:
            await run_item(carrier, inputs, item_run, names, place=place)
        else:
            await run_item_within(deadline_s, carrier, inputs, item_run, names, place)
        marks.taken_ns = marks.released_ns = carrier.now_ns()
        if item_run.error is not None:
            raise item_run.error
        values = to_values(item_run.results)
        return values if fetched is None else fetched.arranged(values)
    finally:
        item_run.let_go()


def run_now(
    carrier: Carrier,
    inputs: Mapping[str, Any],
    marks: Timestamps,
    terms: InlineTerms,
    parked: ParkedItem | None = None,
) -> Results | None:
    """Run `inputs` at once as `terms` say, or the rest of a `parked` item, and announce its end."""
    try:
        results = carrier.run_at_once(inputs, marks, terms) if parked is None else parked.go_on()
    except BaseException as error:
        carrier.announce(marks, error)
        raise
    if results is None or isinstance(results, ParkedItem):
        return results
    carrier.announce(marks, None)
    return to_values(results)


async def run_item_within(
    deadline_s: float,
    runtime: Carrier,
    inputs: Mapping[str, Any],
    item_run: ItemRun,
    fetched: frozenset[str],
    place: QueuePlace | None = None,
) -> None:
    with trio.move_on_after(deadline_s) as scope:
        late = deadline_error(deadline_s)
        await run_item(runtime, inputs, item_run, fetched, late, scope, place)


async def run_item(
    runtime: Carrier,
    inputs: Mapping[str, Any],
    item_run: ItemRun,
    fetched: frozenset[str],
    late: DeadlineError | None = None,
    scope: trio.CancelScope | None = None,
    place: QueuePlace | None = None,
) -> None:
    """Run `item_run` on `inputs` in `runtime` to its end, for the names `fetched`.

    It starts in the turn of `place`; if `scope` cancels it, `late` is the cause.
    """
    try:
        if place is not None:
            await place.wait_first()
        await runtime.admit(runtime.keys.added(inputs), 1, item_run, fetched)
        if place is not None:
            place.leave()
    except BaseException as error:
        item_run.cause = late if scope is not None and scope.cancel_called else None
        item_run.finish(error=error)
        raise
    try:
        if item_run.done.is_set():
            await runtime.checkpoint()
        else:
            await item_run.done.wait()
    except BaseException:
        item_run.cause = late if scope is not None and scope.cancel_called else None
        await runtime.drain({item_run})
        raise
