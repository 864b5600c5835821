"""One item of its own, outside of streams: taken to its end, or given up when it is late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from .errors import DeadlineError
from .running.item import Flight
from .running.runtime import Runtime
from .streaming.deadlines import deadline_passed


async def fly_within(
    deadline_s: float,
    runtime: Runtime,
    inputs: Mapping[str, Any],
    flight: Flight,
    fetched: frozenset[str],
) -> None:
    """Take an item to its end, and give it up after so many seconds."""
    with trio.move_on_after(deadline_s) as scope:
        late = deadline_passed(deadline_s)
        await fly(runtime, inputs, flight, fetched, late, scope)


async def fly(
    runtime: Runtime,
    inputs: Mapping[str, Any],
    flight: Flight,
    fetched: frozenset[str],
    late: DeadlineError | None = None,
    scope: trio.CancelScope | None = None,
) -> None:
    """Take an item to its end; if that is brought about by a scope, it is late."""
    try:
        await runtime.admit(inputs, 1, flight, fetched)
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
