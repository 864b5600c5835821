"""A stream between a session's loop and another thread, which has the source and the consumer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import trio

from ...graph.values.errors import PlaitError
from ...graph.values.tensor import Array
from ..errors import SessionError
from ..runtime.items.input_staging import InputStagingPool
from ..runtime.items.item import Item
from ..runtime.loop_inbox import LoopQueue
from ..runtime.session import borrow_inputs, find_clock
from ..runtime.streaming.admission import AdmissionQueue
from ..runtime.streaming.batching import Batching
from ..runtime.streaming.options import StreamArguments
from ..runtime.streaming.sources import Pulled, Source
from ..runtime.streaming.stamped import Handed
from .loop_thread import LoopJob, LoopThread


@dataclass(frozen=True, slots=True)
class End:
    """The end of the results, with its error."""

    error: BaseException | None


Delivery: TypeAlias = Item | End


class Bridge:
    """Feeds a stream from another thread and delivers its results there.

    One thread uses it, which also limits the number of items that are alive.

    Parameters
    ----------
    deliver : callable
        Called on the loop's thread with every result, and then once with an End.
    source : Source, optional
        The stream pulls from it, and `put` is not used. Each result is then delivered after
        `resume` was called for the one before.

    Attributes
    ----------
    number : int
        The stream's number in the session; set when it is open.
    batching : Batching or None
        Of a stream in batches, likewise.
    now_ns : callable
        The clock of items' times.
    rooms : Mapping of int to (int, Mapping of str to Array)
        For items that were put and not passed on: their indices, and the arrays of their inputs.
    """

    def __init__(
        self,
        loop: LoopThread[Any],
        arguments: StreamArguments,
        deliver: Callable[[Delivery], object],
        source: Source | None = None,
    ) -> None:
        self.number = 0
        self.batching: Batching | None = None
        self._queue: AdmissionQueue | None = None
        self.now_ns = find_clock(loop.session)
        self._session = loop.session
        self._loop = loop
        self._arguments = arguments
        self._deliver = deliver
        self._opened: Future[None] = Future()
        self._spares = InputStagingPool(loop.session.plan)
        self._spares.most = (arguments["max_in_flight"] or 1) * len(loop.session.plan.graph.inputs)
        self.rooms: dict[int, tuple[int, Mapping[str, Array]]] = {}
        self._count = 0
        wake = partial(loop.call_soon, self._drain_handed)
        self._handed: LoopQueue[list[Handed | int]] = LoopQueue(wake, self._feed)
        self._send, self._receive = trio.open_memory_channel[Handed](math.inf)
        self._source = source
        self._resumed = trio.lowlevel.ParkingLot()
        self._job: LoopJob[None] | None = None

    def open(self, owner: object) -> None:
        """Begin to open the stream, which is closed when `owner` is collected."""
        self._job = self._loop.start(self._run, owner=owner)
        self._job.outcome.add_done_callback(self._end)

    @property
    def is_open(self) -> bool:
        return self._job is not None

    @property
    def opened(self) -> Future[None]:
        return self._opened

    def rest(self) -> None:
        """Release the session until an item is put; call it when the stream is open."""
        self._loop.leave(self._job)

    @property
    def closed(self) -> Future[None]:
        assert self._job is not None, "it was opened"
        return self._job.outcome

    def copy(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return `inputs` with copied arrays, and the copies; the source may reuse its arrays."""
        inputs = borrow_inputs(self._session, inputs)
        room = self._spares.room_for(inputs)
        return self._spares.copy_into(inputs, room), room

    def take_back(self, room: Mapping[str, Array]) -> None:
        self._spares.take_back(room.values())

    def put(self, pulled: Sequence[Pulled], *, is_batch: bool = False) -> list[int]:
        """Feed the items `pulled` by the consumer; return the numbers of their results.

        If they form a batch (`is_batch`), they wait for no others.
        """
        self._loop.claim(self)
        numbers, handed = list[int](), list[Handed | int]()
        for index, marks, inputs in pulled:
            own, room = self.copy(inputs)  # the loop comes to it later
            self.rooms[self._count] = index, room
            handed.append(Handed(marks, own))
            numbers.append(self._count)
            self._count += 1
        if is_batch:
            handed.append(self._count)
        self._handed.post(handed)
        return numbers

    def pass_on(self, item: Item, on_release: Callable[[Item], object]) -> Item:
        """Return `item` under its index in the source; `on_release` is called at its end."""
        if self._source is not None:
            return item.pass_on(item.index, on_release, self.now_ns)
        index, room = self.rooms.pop(item.index)
        self.take_back(room)
        if not self.rooms:
            self._loop.leave(self)
        return item.pass_on(index, on_release, self.now_ns)

    def resume(self, item: Item) -> None:
        """Deliver the next result when it is ready, since the last `item` was released."""
        with suppress(PlaitError):
            self._loop.call_soon(self._resumed.unpark)

    def end(self) -> None:
        """Feed no more items; without any so far, the results end."""
        if self._job is None:
            self._deliver(End(None))
            return
        with suppress(PlaitError):
            self._loop.call_soon(self._send.close)

    def close(self) -> None:
        """Cancel items in flight, without waiting."""
        if self._job is not None:
            self._job.cancel()

    def _drain_handed(self) -> None:
        self._loop.wait_for_turn()
        self._handed.drain()

    def _feed(self, handed: list[Handed | int]) -> None:
        for one in handed:
            if isinstance(one, int):
                assert self._queue is not None
                self._queue.end_batch(one)
                continue
            with suppress(trio.BrokenResourceError):  # the stream has ended
                self._send.send_nowait(one)

    async def _run(self) -> None:
        source = self._receive if self._source is None else self._source
        async with self._session.stream(source, **self._arguments) as results:
            self.number, self.batching = results.number, results.batching
            self._queue = results.queue
            self._opened.set_result(None)
            async for item in results:
                self._deliver(item)
                if self._source is not None:
                    await self._resumed.park()

    def _end(self, outcome: Future[None]) -> None:
        self._loop.leave(self)
        error = outcome.exception()
        if not self._opened.done():
            self._opened.set_exception(error or SessionError("the stream was closed"))
        self._deliver(End(error))
