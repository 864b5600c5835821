"""Tasks of trio: permits that they wait for, and nurseries that raise a single error as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ..dispatch.back_pressure import Permits


class TaskPermits(Permits):
    """Permits, each of which goes to the task that has waited longest.

    `waiting` are the tasks that wait; those that are woken hold a permit.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.waiting = trio.lowlevel.ParkingLot()

    async def acquire(self) -> None:
        """Wait for a permit; a checkpoint in any case."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.take():
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self.waiting.park()

    @trio.lowlevel.enable_ki_protection
    def give_back(self, _: object = None) -> None:
        if self.waiting:
            self.waiting.unpark()
        else:
            self.free += 1


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery; a single error is raised without the group that nurseries put around it."""
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        failure = group.exceptions[0] if len(group.exceptions) == 1 else group
    if failure is not None:
        raise failure  # outside of the handler: it keeps its own cause
