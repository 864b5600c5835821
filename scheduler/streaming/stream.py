"""Streams: items admitted while there is room, results handed out to one consumer.

A permit is held from before an item is pulled from the source until the consumer is through with
its result, so no more than `max_in_flight` items are ever alive: a channel of that size would not
do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from ...devices.forking import give_up_in_children
from ..errors import forked_session
from ..running.item import Flight, Item
from ..running.marks import Marks
from .batching import Batching, batching_of
from .carrier import Carrier
from .line import Line
from .options import StreamOptions, check_order
from .sources import Source, check_source, iterate


class Results:
    """The results of a stream; iterate once, in one task."""

    def __init__(
        self, runtime: Carrier, options: StreamOptions, batching: Batching | None, number: int
    ) -> None:
        self.line = Line(runtime, options, batching, self._note, self._is_stuck)
        self._runtime = runtime
        self._options = options
        self._number = number
        self._permits = trio.Semaphore(options.max_in_flight)
        # In order: all that were pulled and not handed out. By completion: those of them done.
        self._queue: deque[Flight] = deque()
        self._unfinished = 0
        self._news = trio.lowlevel.ParkingLot()
        self._exhausted = False
        self._source_error: Exception | None = None
        self._item: Item | None = None
        self._is_inherited = False
        give_up_in_children(self)

    def __aiter__(self) -> Results:
        return self

    async def __anext__(self) -> Item:
        """Release the last result and return the next one.

        Raises
        ------
        StopAsyncIteration
            After the last.
        SessionError
            In a process that was forked from that of the stream.
        Exception
            What the source raised, after the results of what it had given; what the item failed
            with, if the stream was opened with ``on_error="raise"``.
        """
        if self._is_inherited:
            raise forked_session()
        self._release_last()
        if self._is_ready:
            await trio.lowlevel.checkpoint()
        while not self._is_ready:
            if self._exhausted and not self._unfinished:
                error, self._source_error = self._source_error, None
                raise error or StopAsyncIteration  # outside of any handler: it keeps its own cause
            self.line.look_again()
            await self._news.park()
        return self._hand_out().checked(self._options.on_error)

    async def feed(self, source: Source) -> None:
        """Pull items from the source and put them in the line, while permits last."""
        iterator = iterate(source)
        index = 0
        try:
            while True:
                self.line.look_again()
                await self._permits.acquire()
                flight = self.line.new_flight()
                flight.index, flight.marks.stream = index, self._number
                flight.marks.asked_ns = self._runtime.now_ns()
                try:
                    inputs = self._runtime.borrowed(await anext(iterator))
                except StopAsyncIteration:
                    break
                inputs = self._runtime.keys.added(inputs)
                flight.marks.given_ns = self._runtime.now_ns()
                index += 1
                self._unfinished += 1
                if self._options.ordered:
                    self._queue.append(flight)
                await self.line.put(flight, inputs)
        except Exception as error:
            self._source_error = error
        finally:
            with trio.CancelScope(shield=True):
                await iterator.aclose()
            self.line.end()
            self._exhausted = True
            self._news.unpark_all()

    @trio.lowlevel.enable_ki_protection
    async def drain(self) -> None:
        """Cancel what is under way, wait for it to end, and let go of all memory."""
        if self._is_inherited:  # who would end it is in the parent
            return
        self._release_last()
        await self.line.drain()
        while self._queue:
            self._queue.popleft().let_go()

    def give_up(self) -> None:
        """Leave what is under way to the parent of this process, which was forked."""
        self._is_inherited = True

    @property
    def _is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0].done.is_set()

    def _is_stuck(self) -> bool:
        """Say whether source and consumer both wait for something to be done."""
        return bool(self._news) and self._permits.statistics().tasks_waiting > 0

    def _note(self, flight: Flight) -> None:
        """Take note that an item is done."""
        self._unfinished -= 1
        if not self._options.ordered:
            self._queue.append(flight)
        if self._news and self._is_ready:
            self._news.unpark_all()

    @trio.lowlevel.enable_ki_protection  # whoever has no place in the line any more is released
    def _hand_out(self) -> Item:
        flight = self._queue.popleft()
        for marks in _marks(flight):
            marks.taken_ns = self._runtime.now_ns()
        release = partial(self._release, flight)
        self._item = Item(
            flight.index, flight.results, flight.error, release, self._options.arrange
        )
        return self._item

    @trio.lowlevel.enable_ki_protection
    def _release_last(self) -> None:
        if self._item is not None:
            self._item.release()
            self._item = None

    @trio.lowlevel.enable_ki_protection
    def _release(self, flight: Flight, item: Item) -> None:
        for marks in _marks(flight):
            marks.released_ns = self._runtime.now_ns()
        if not self._options.copy:
            item.forget()
        flight.let_go()
        self._permits.release()


@asynccontextmanager
async def open_stream(
    runtime: Carrier, source: Source, options: StreamOptions, number: int
) -> AsyncIterator[Results]:
    """Start feeding a source; on exit, cancel and drain what is still under way."""
    check_source(source)
    plan = await runtime.plan_for(options.names)
    check_order(plan, options)
    batching = None
    if options.batch is not None:
        batching = batching_of(
            plan.fed, options.batch, plan.bounds, unneeded=plan.unneeded, copy=options.copy
        )
    await runtime.prepare(options.slots, options.names)
    results = Results(runtime, options, batching, number)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(results.feed, source)
            nursery.start_soon(results.line.run)
            if results.line.deadlines is not None:
                nursery.start_soon(results.line.deadlines.run)
            try:
                yield results
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # One error is the nursery's wrapping, not the caller's.
        failure = group.exceptions[0] if len(group.exceptions) == 1 else group
    finally:
        await results.drain()  # now that nothing more is fed
    if failure is not None:
        raise failure  # outside of the handler: it keeps its own cause


def _marks(flight: Flight) -> list[Marks]:
    """Return where to note what becomes of an item: a batch has the marks of its last one."""
    return [flight.marks] if flight.batch is None else [flight.marks, flight.batch.flight.marks]
