"""The slots of an open plan, handed out to items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from .errors import SessionError
from .open_plan import OpenPlan, Slot

MADE_AHEAD = 16
"""Slots beyond this number are made when first needed."""


class Slots:
    """Hands out the slots of an open plan; used on the trio thread only, but for `fill`.

    Slots are made when first needed, up to the number that memory was planned for. `on_thread`
    calls what makes one; a slot being made is held already, so its plan is not idle meanwhile.
    """

    def __init__(
        self,
        open_plan: OpenPlan,
        count: int,
        on_thread: Callable[[Callable[[], Slot]], Awaitable[Slot]],
    ) -> None:
        self.open_plan = open_plan
        self._count = count
        self._on_thread = on_thread
        self._permits = trio.Semaphore(count)
        self._free: list[Slot] = []
        self._claims = 0
        self._closing = False

    @property
    def is_idle(self) -> bool:
        """True when no item holds a slot or waits for one."""
        return self._claims == 0

    def fill(self) -> None:
        """Make the slots now, within reason; blocks."""
        while len(self._free) < min(self._count, MADE_AHEAD):
            self._free.append(self.open_plan.make_slot())

    def refuse(self) -> None:
        """Give no more slots, and turn away whoever waits for one."""
        self._closing = True
        for _ in range(self._permits.statistics().tasks_waiting):
            self._permits.release()

    async def acquire(self) -> Slot:
        """Wait for a free slot.

        Raises
        ------
        SessionError
            If the session is being closed.
        DeviceError
            If the slot has to be made and a device refuses.
        """
        self._claims += 1
        try:
            await self._acquire_permit()
            try:
                if self._free:
                    return self._free.pop()
                return await self._on_thread(self.open_plan.make_slot)
            except BaseException:
                self._permits.release()
                raise
        except BaseException:
            self._claims -= 1
            raise

    def release(self, slot: Slot) -> None:
        """Give a slot back."""
        self._claims -= 1
        self._free.append(slot)
        self._permits.release()

    async def _acquire_permit(self) -> None:
        try:
            self._permits.acquire_nowait()  # saves a turn of the loop, 10 µs
        except trio.WouldBlock:
            await self._permits.acquire()
        if self._closing:
            raise session_closed()


def session_closed() -> SessionError:
    """Return what callers see who are overtaken by the end of their session."""
    return SessionError(
        "the session was closed before the item was done",
        fix="leave the session when all its runs and streams have ended",
    )
