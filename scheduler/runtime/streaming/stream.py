"""Streams: items admitted while there are permits, results returned to one consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from ....devices.forking import register_for_forks
from ....graph.values.errors import InternalError
from ...dispatch.inline_policy import STREAMED_ON_LOOP
from ...dispatch.way_choice import WayChoice, read_busy_ns
from ...errors import forked_session_error
from ...profile.timestamps import Timestamps
from ..items.item import Item, ItemRun
from ..opened.results import to_values
from ..running.inline_runner import InlineTerms
from ..tasks import TaskPermits, open_nursery
from .admission import AdmissionQueue
from .batching import Batching, find_batching
from .carrier import Carrier
from .item_run import run_now
from .live_buffer import LiveBuffer
from .options import StreamOptions, check_order
from .sources import Pulled, Puller, Source, check_source

if TYPE_CHECKING:
    from .stacked_items import StackedItems


class Results:
    """The results of a stream; iterate once, in one task.

    Attributes
    ----------
    number : int
        The number of the stream in its session.
    batching : Batching or None
        How items become batches, if they do.
    buffer : LiveBuffer or None
        The buffer that a task must `fill` if the source is read without back-pressure.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> import trio
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", (1,)), 2.0))
    >>> plan = pl.plan(b.build(), max_in_flight=2)
    >>> async def main():
    ...     feeds = ({"x": np.array([n], "float32")} for n in range(3))
    ...     async with pl.Session(plan) as session, session.stream(feeds) as results:
    ...         async for item in results:
    ...             print(item["y"])
    >>> trio.run(main)
    [0.]
    [2.]
    [4.]
    """

    def __init__(
        self,
        runtime: Carrier,
        source: Source,
        options: StreamOptions,
        batching: Batching | None,
        number: int,
    ) -> None:
        make_queue: type[AdmissionQueue] = AdmissionQueue
        if options.has_keyed_batches:
            from .keyed_queue import KeyedQueue

            make_queue = KeyedQueue
        self.queue = make_queue(runtime, options, batching, self._note, self._is_stuck)
        self._runtime = runtime
        self._options = options
        self.number, self.batching = number, batching
        self._permits = TaskPermits(options.max_in_flight)
        # In order: all that were pulled and not handed out. By completion: those of them done.
        self._queue: deque[ItemRun] = deque()
        self._unfinished = 0
        self._news = trio.lowlevel.ParkingLot()
        self._item: Item | None = None
        self._terms = InlineTerms(options.names, STREAMED_ON_LOOP, options.slots)
        run = partial(run_now, runtime, terms=self._terms)
        self._inline = Puller(source, run, options, runtime.now_ns, number)
        self.buffer: LiveBuffer | None = None
        if options.kept is not None:
            drop = options.drop or "oldest"
            self.buffer = LiveBuffer(self._inline, runtime, options.kept, drop)
        self._puller = self.buffer or self._inline
        # While the consumer pulls and runs items itself, the feeding task rests.
        may_stack, may_wait = self.queue.may_stack, self._puller.may_wait
        self._may_be_here = (self.queue.starts_at_once or may_stack) and not may_wait
        self._stacks = batching if may_stack and not may_wait else None
        self._divided = deque[Item]()  # of the batch that it ran last: yet to be handed out
        stacked = 1 if self._stacks is None else self._stacks.size
        lanes = len(runtime.plan.every_device)
        most_ns = STREAMED_ON_LOOP.most_ns(lanes) // stacked
        self._ways = WayChoice(  # the source is asked for items before the consumer asks
            options.max_in_flight,
            lanes,
            most_ns,
            lambda: runtime.item_ns // stacked,
            runtime.way_memory,
            starts_here=self._stacks is not None,
            stacked=stacked,
        )
        self._asks = self._is_resting = self._is_parked = self._is_item_here = False
        self._feeding = trio.lowlevel.ParkingLot()
        self._has_ended = False
        self._breakdown: InternalError | None = None
        self._is_inherited = False
        register_for_forks(self)

    def __aiter__(self) -> Results:
        return self

    async def __anext__(self) -> Item:
        """Release the last result and return the next one.

        Raises StopAsyncIteration: after the last; SessionError: in a process that was forked from
        that of the stream; Exception: the error of the source, after the results of its earlier
        items; or the error of an item, if the stream was opened with ``on_error="raise"``.
        """
        if self._is_inherited:
            raise forked_session_error()
        self._asks = True
        try:
            if self._is_resting or (self._queue and self._is_ready):
                await self._runtime.checkpoint()
            if self._divided:
                self._release_last()
                self._item = self._take_divided()
                return self._item.checked(self._options.on_error)
            while not (self._queue and self._is_ready):
                if self._is_resting and not self._unfinished:
                    item = self._run_here() if self._stacks is None else await self._run_stacked()
                    if item is not None:
                        self._item = item
                        return item if item.error is None else item.checked(self._options.on_error)
                self._release_last()
                if self._has_ended and not self._unfinished:
                    error, self._puller.error = self._puller.error, None
                    raise error or StopAsyncIteration  # where no handler is: it keeps its cause
                self.queue.look_again()
                await self._news.park()
            self._release_last()
            return self._hand_out().checked(self._options.on_error)
        finally:
            self._asks = False
            # While the consumer waits for something else, it pulls ahead.
            if self._is_parked and not self._divided:
                self._is_parked = False
                self._feeding.unpark_all()

    async def feed(self) -> None:
        """Pull items from the source into the queue while there are permits."""
        puller, stacks = self._puller, self._stacks
        try:
            while self._breakdown is None:
                self.queue.look_again()
                if self._may_be_here:
                    await self._rest()
                if stacks is not None:
                    if not await self._feed_stacked(self._begin_stack(stacks)):
                        break
                    continue
                if self._permits.take():
                    await self._runtime.checkpoint()
                else:
                    await self._permits.waiting.park()
                if not puller.pulled and (puller.is_exhausted or not await puller.pull_soon()):
                    break
                await self._feed_one(puller.take(), puller.waited_s)
            puller.error = puller.error or self._breakdown
        except Exception as error:
            puller.error = error
        finally:
            with trio.CancelScope(shield=True):
                await puller.aclose()
            self._has_ended = True
            self.queue.end()
            self._news.unpark_all()

    async def _feed_one(self, pulled: Pulled, waited_s: float = 0.0) -> None:
        index, marks, inputs = pulled
        item_run = self.queue.new_item_run(index, marks)
        inputs = self._runtime.keys.added(self._runtime.borrowed(inputs))
        self._unfinished += 1
        if self._options.ordered:
            self._queue.append(item_run)
        await self.queue.put(item_run, inputs, waited_s)

    def _begin_stack(self, batching: Batching) -> StackedItems:
        from .stacked_items import StackedItems  # most streams have no batches

        return StackedItems(batching)

    async def _feed_stacked(self, stacked: StackedItems) -> bool:
        """Pull and feed the batch `stacked`; the consumer may take over between two of them."""
        while not stacked.is_complete:
            if self._permits.take():
                await self._runtime.checkpoint()
            else:
                await self._permits.waiting.park()
            if not stacked.pull(self._inline):
                self._permits.give_back()
                break
        for pulled in stacked.pulled:
            await self._feed_one(pulled)
        if stacked.pulled:
            self.queue.end_batch(stacked.pulled[-1][0] + 1)
        return bool(stacked.pulled)

    async def _rest(self) -> None:
        puller = self._puller
        while (self._asks or self._divided) and self._ways.is_here:
            if puller.pulled or puller.is_exhausted:
                break
            self._is_resting = self._is_parked = True
            if self._news:  # it began to wait before
                self._news.unpark_all()
            await self._feeding.park()
        self._is_resting = False

    def _run_here(self) -> Item | None:
        """Pull an item from a source that does not wait, and run it in the consumer's own task.

        None at the end, or if it may take longer: then the feeding task continues with it.
        """
        item = None
        has_permit = self._keep_permit()
        try:
            if has_permit and self._inline.pull():
                item = self._inline.run(self._permits.give_back)
        finally:
            if item is None and has_permit:
                self._permits.give_back()
        if item is None:
            self._leave_to_feed()
        else:
            self._is_item_here = True
            ways = self._ways
            ways.left -= 1
            if not ways.left:
                ways.advance(self._runtime.now_ns(), read_busy_ns(ways.is_here))
        return item

    def _leave_to_feed(self) -> None:
        if not self._puller.is_exhausted or self._puller.pulled:
            self._ways.refuse()
        self._is_resting = self._is_parked = False
        self._feeding.unpark_all()

    async def _run_stacked(self) -> Item | None:
        """Pull a batch, run it, and return its first result; None as for `_run_here`."""
        assert self._stacks is not None
        self._release_last()
        stacked, found = self._begin_stack(self._stacks), None
        try:
            while stacked.pull(self._inline):
                await self._runtime.checkpoint()
            if stacked.pulled:
                found = stacked.run(self._runtime, self._terms)
        finally:
            if stacked.pulled and found is None:
                self._inline.put_back(stacked.pulled)
        if found is None:
            self._leave_to_feed()
            return None
        self._permits.take(len(found))
        for pulled, outcome in zip(stacked.pulled, found, strict=True):
            item = self._inline.make_item(pulled, *outcome, self._permits.give_back)
            self._divided.append(item)
        return self._take_divided()

    @trio.lowlevel.enable_ki_protection
    def _take_divided(self) -> Item:
        ways = self._ways
        ways.left -= 1
        if not ways.left:
            ways.advance(self._runtime.now_ns(), read_busy_ns(ways.is_here))
        self._is_item_here = False
        return self._divided.popleft()

    @trio.lowlevel.enable_ki_protection
    def _keep_permit(self) -> bool:
        """Release the last result, and keep its permit for the next item; False if none is left."""
        if self._is_item_here and self._item is not None and self._item.release_marked():
            return True
        self._release_last()
        return self._permits.take()

    @trio.lowlevel.enable_ki_protection
    async def drain(self) -> None:
        """Cancel items in flight, wait for them to end, and release all memory."""
        if self._is_inherited:  # the task that would end it is in the parent
            return
        self._release_last()
        await self.queue.drain()
        while self._queue:
            self._queue.popleft().let_go()

    def give_up(self) -> None:
        """Leave items in flight to the parent of this forked process."""
        self._is_inherited = True

    @property
    def _is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0].done.is_set()

    def _is_stuck(self) -> bool:
        return bool(self._news and self._permits.waiting)

    def _note(self, item_run: ItemRun) -> None:
        self._unfinished -= 1
        if isinstance(item_run.error, InternalError):  # all that follow would fail with it
            self._breakdown = item_run.error.again()
        if not self._options.ordered:
            self._queue.append(item_run)
        if self._news and self._is_ready:
            self._news.unpark_all()

    @trio.lowlevel.enable_ki_protection  # an item that left the queue must be released
    def _hand_out(self) -> Item:
        item_run = self._queue.popleft()
        taken_ns, every = self._runtime.now_ns(), _list_marks(item_run)
        for marks in every:
            marks.taken_ns = taken_ns
        if self._may_be_here:
            ways = self._ways
            ways.left -= 1
            if not ways.left:
                ways.advance(taken_ns, read_busy_ns(ways.is_here))
            self.queue.runs_here = ways.is_here
        release = partial(self._release, item_run)
        self._is_item_here = False
        self._item = Item(
            item_run.index,
            to_values(item_run.results),
            item_run.error,
            release,
            self._options.arrange,
            item_run.marks.stamp,
            every,
        )
        return self._item

    @trio.lowlevel.enable_ki_protection
    def _release_last(self) -> None:
        if self._item is not None:
            self._item.release()
            self._item = None

    @trio.lowlevel.enable_ki_protection
    def _release(self, item_run: ItemRun, item: Item) -> None:
        released_ns = self._runtime.now_ns()
        for marks in _list_marks(item_run):
            marks.released_ns = released_ns
        if not self._options.copy:
            item.forget()
        item_run.let_go()
        self._permits.give_back()


@asynccontextmanager
async def open_stream(
    runtime: Carrier, source: Source, options: StreamOptions, number: int
) -> AsyncIterator[Results]:
    """Yield the results of `source` on `runtime`; on exit, cancel and drain the items under way.

    The stream has `options`, and `number` among those of its session.
    """
    check_source(source)
    plan = await runtime.plan_for(options.names)
    check_order(plan, options, runtime.plan)
    batching: Batching | None = None
    if options.key is not None:
        batching = await runtime.begin_keys(options)
    elif options.batch is not None:
        batching = find_batching(
            plan.fed,
            options.batch,
            plan.bounds,
            unneeded=plan.unneeded,
            copy=options.copy,
            pad=options.pad,
        )
    if not options.has_keyed_batches:
        await runtime.prepare(options.slots, options.names)
    results = Results(runtime, source, options, batching, number)
    try:
        async with open_nursery() as nursery:
            nursery.start_soon(results.feed)
            if results.buffer is not None:
                nursery.start_soon(results.buffer.fill)
            nursery.start_soon(results.queue.run)
            if results.queue.deadlines is not None:
                nursery.start_soon(results.queue.deadlines.run)
            try:
                yield results
            finally:
                nursery.cancel_scope.cancel()
    finally:
        await results.drain()  # now that nothing more is fed


def _list_marks(item_run: ItemRun) -> list[Timestamps]:
    return [item_run.marks] if item_run.batch is None else [item_run.marks, item_run.batch.marks]
