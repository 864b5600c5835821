"""The buffer between a live source and its stream, which drops items that do not fit.

A live source, such as a camera, does not wait: it is read as fast as it gives, by a task of its
own, and items without room in a slow stream are dropped. Everything after the buffer is as in other
streams. An item leaves it when the stream has a permit for one more, so that results that are not
takes hold items back here, where a newer one may take their place.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, NamedTuple

import trio

from ....graph.values.tensor import Array
from ..items.input_staging import InputStagingPool
from .carrier import Carrier
from .options import Drop
from .sources import Pulled, Puller


class _Held(NamedTuple):
    """An item in the buffer, the arrays that its inputs were copied into, and when it came."""

    pulled: Pulled
    room: dict[str, Array]
    given_s: float


class LiveBuffer:
    """Pulls by a `Puller`, and is pulled from as one; used on the trio thread only.

    The source is read without back-pressure, on a thread if it blocks. `waited_s` is how long the
    item that was pulled last had been here.
    """

    may_wait = True

    def __init__(self, puller: Puller, runtime: Carrier, keep: int, drop: Drop) -> None:
        self._puller = puller
        self._runtime = runtime
        self._keep, self._drop = keep, drop
        self._held: deque[_Held] = deque()
        self._handed_over: _Held | None = None
        self._arrivals = trio.lowlevel.ParkingLot()
        self._ended = False
        self._room: dict[str, Array] = {}
        self._spares = InputStagingPool(runtime.plan)
        # Those that are held, the one that is copied, and the one that was pulled.
        self._spares.most = (keep + 2) * len(runtime.plan.graph.inputs)
        self._limiter = trio.CapacityLimiter(1)  # a read may last: no thread of others waits for it
        self.pulled: Pulled | None = None
        self.is_exhausted = False
        self.waited_s = 0.0

    @property
    def error(self) -> Exception | None:
        """Why the source gives no more, if it raised, or else None."""
        return self._puller.error

    @error.setter
    def error(self, error: Exception | None) -> None:
        self._puller.error = error

    async def fill(self) -> None:
        """Read the source to its end, and close it."""
        puller = self._puller
        try:
            while await self._pull():
                await self._hold(puller.take())
        except Exception as error:  # there may be no memory
            puller.error = error
        finally:
            with trio.CancelScope(shield=True):
                await puller.aclose()
            self._ended = True
            self._arrivals.unpark_all()

    async def pull_soon(self) -> bool:
        """Wait for an item; return False if no more come."""
        # What was pulled before has been started, or copied to where it waits for a slot.
        self._spares.take_back(self._room.values())
        self._room = {}
        if not self._held and not self._ended:
            await self._arrivals.park()
        held, self._handed_over = self._handed_over, None
        if held is None and not self._held:
            self.is_exhausted = True
            return False
        self.pulled, self._room, given_s = held or self._held.popleft()
        self.waited_s = trio.current_time() - given_s
        return True

    def take(self) -> Pulled:
        """Return the pulled item; its arrays may be read until the next one is requested."""
        pulled, self.pulled = self.pulled, None
        assert pulled is not None
        return pulled

    async def aclose(self) -> None:
        """Leave the source to `fill`, which may be reading it."""
        self.is_exhausted = True

    async def _pull(self) -> bool:
        puller = self._puller
        if not puller.may_wait:
            return await trio.to_thread.run_sync(puller.pull, limiter=self._limiter)
        await trio.lowlevel.checkpoint()  # the source need not wait for anything
        return await puller.pull_soon()

    async def _hold(self, pulled: Pulled) -> None:
        given_s = trio.current_time()
        if len(self._held) == self._keep:  # then the reader does not wait
            self._runtime.count_dropped()
            if self._drop == "newest":
                return
            self._spares.take_back(self._held.popleft().room.values())
        index, marks, inputs = pulled
        inputs = self._runtime.borrowed(inputs)
        room = self._spares.room_for(inputs)
        own: Any = await self._runtime.copying(
            room.values(), partial(self._spares.copy_into, inputs, room)
        )
        held = _Held((index, marks, own), room, given_s)
        if self._arrivals:
            # It is taken: more may come before the stream continues, and must not take its place.
            self._handed_over = held
            self._arrivals.unpark_all()
        else:
            self._held.append(held)
