"""The slots of an open plan, handed out to items."""

from __future__ import annotations

import trio

from .open_plan import OpenPlan, Slot


class SlotPool:
    """Hands out the slots of an open plan; used on the trio thread only, but for `fill`.

    Slots are made when first needed, up to the number that memory was planned for.
    """

    def __init__(self, open_plan: OpenPlan, slots: int) -> None:
        self.open_plan = open_plan
        self._slots = slots
        self._permits = trio.Semaphore(slots)
        self._free: list[Slot] = []
        self._claims = 0

    @property
    def is_idle(self) -> bool:
        """True when no item holds a slot or waits for one."""
        return self._claims == 0

    def fill(self) -> None:
        """Make all slots now; blocks."""
        while len(self._free) < self._slots:
            self._free.append(self.open_plan.make_slot())

    async def acquire(self) -> Slot:
        """Wait for a free slot.

        Raises
        ------
        DeviceError
            If it has to be made and a device refuses.
        """
        self._claims += 1
        try:
            try:
                self._permits.acquire_nowait()  # saves a turn of the loop, 10 µs
            except trio.WouldBlock:
                await self._permits.acquire()
            try:
                if self._free:
                    return self._free.pop()
                return await trio.to_thread.run_sync(self.open_plan.make_slot)
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
