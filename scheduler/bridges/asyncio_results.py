"""Results of a stream for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import trio

from ...graph.values.tensor import Array
from ..dispatch.back_pressure import Permits
from ..dispatch.hand_over import get_hand_over_ns
from ..dispatch.inline_policy import STREAMED_ON_LOOP
from ..errors import SessionError
from ..runtime.async_calls import Await
from ..runtime.items.item import Item
from ..runtime.loop_inbox import LoopQueue
from ..runtime.opened.results import Results
from ..runtime.streaming.batching import Batching
from ..runtime.streaming.options import StreamOptions
from ..runtime.streaming.sources import Pulled, Puller, Source, SourceItem
from ..runtime.streaming.stacked_items import StackedItems
from ..runtime.virtual_time import TURN
from .asyncio_calls import await_on
from .bridge import Bridge, Delivery, End
from .inline import StreamHere
from .loop_thread import LoopThread
from .submitted_items import AwaitedItem, ItemSubmitter

T = TypeVar("T")


class Pause:
    """Awaited between items that run on asyncio's own thread, so that other tasks can run."""

    def __init__(self) -> None:
        self.turn_ns = 0

    async def __call__(self) -> None:
        """Let other tasks of the loop run, unless they ran recently."""
        if time.perf_counter_ns() >= self.turn_ns:
            await asyncio.sleep(0)
            self.turn_ns = time.perf_counter_ns() + TURN * get_hand_over_ns()


class _Done(NamedTuple):
    """The result of an item that did not go through the bridge."""

    item: Item


class _AwaitedPermits(Permits):
    """Permits that one task waits for. Items refer to it, and not to the stream."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._freed = asyncio.Event()

    async def acquire(self) -> None:
        while not self.take():
            self._freed.clear()
            await self._freed.wait()

    def give_back(self, _: object = None) -> None:
        self.free += 1
        self._freed.set()


class _SubmittedItem(AwaitedItem):
    """An item of a stream that was submitted, with copies of its inputs in a `room`."""

    def __init__(self, owner: object, pulled: Pulled, room: Mapping[str, Array]) -> None:
        super().__init__(owner, None, None)
        self.pulled, self.room = pulled, room


class _SubmittedItems:
    """Submits items of a stream, and delivers their results on the asyncio loop.

    It does not refer to the stream, which would never be collected. `owner` lives while items do.
    """

    def __init__(
        self,
        owner: object,
        submitter: ItemSubmitter,
        bridge: Bridge,
        make_item: Callable[[Pulled, Results | None, BaseException | None], Item],
        deliver: Callable[[_Done], object],
        *,
        is_ordered: bool,
    ) -> None:
        self._owner, self._submitter, self._bridge = owner, submitter, bridge
        self._make_item, self._deliver = make_item, deliver
        self._is_ordered = is_ordered
        self.pending: deque[_SubmittedItem] = deque()
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._arrived: LoopQueue[_SubmittedItem] = LoopQueue(
            lambda: loop.call_soon_threadsafe(self._arrived.drain), self._take
        )

    def put(self, pulled: Pulled) -> None:
        """Submit an item; raises SessionError if the session is closed."""
        index, marks, inputs = pulled
        own, room = self._bridge.copy(inputs)
        item = _SubmittedItem(self._owner, (index, marks, own), room)
        self._submitter.submit(item, own, None, None, 0, marks)
        self.pending.append(item)
        item.ended.add_done_callback(lambda _: self._arrived.post(item))

    async def wait(self) -> None:
        """Wait until all results are delivered."""
        while self.pending:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """Cancel the items, and wait until none runs."""
        items = [*self.pending]
        for item in items:
            item.cancel()
        await wait_until_done(*(wrap_future(item.ended) for item in items))

    def _take(self, item: _SubmittedItem) -> None:
        self._bridge.take_back(item.room)
        if self._is_ordered:
            while self.pending and self.pending[0].ended.done():
                self._pass_on(self.pending.popleft())
        else:
            self.pending.remove(item)
            self._pass_on(item)
        self._ended.set()

    def _pass_on(self, item: _SubmittedItem) -> None:
        if item.cancelled():  # the stream was closed
            return
        error = item.exception()
        results = None if error is not None else item.result()
        self._deliver(_Done(self._make_item(item.pulled, results, error)))


class AsyncioResults:
    """The results of a stream: enter it, then iterate once, in one task.

    Items may be submitted, which keeps their `owner` alive.
    """

    def __init__(
        self,
        loop: LoopThread[Any],
        source: Source,
        options: StreamOptions,
        owner: object,
        submitter: ItemSubmitter,
    ) -> None:
        self._loop = loop
        self._owner, self._submitter = owner, submitter
        self._submitted: _SubmittedItems | None = None
        self._source = source
        self._options = options
        self._arguments = options.beyond_threads()
        self._permits = _AwaitedPermits(options.max_in_flight)
        self._deliveries: asyncio.Queue[Delivery | _Done] = asyncio.Queue()
        # While the consumer pulls and runs items itself, the feeding task rests.
        self._rest: asyncio.Event | None = None
        self._pause = Pause()
        self._bridge: Bridge | None = None
        self._is_open = False
        self._feeding: asyncio.Task[None] | None = None
        self._item: Item | None = None
        self._end: End | None = None

    async def __aenter__(self) -> AsyncioResults:
        if self._bridge is not None:
            raise SessionError("the stream is open already", fix="open another one")
        running = asyncio.get_running_loop()
        is_live = self._options.kept is not None
        own = self._live_source(running) if is_live else None
        arrived: LoopQueue[Delivery] = LoopQueue(
            lambda: running.call_soon_threadsafe(arrived.drain), self._deliveries.put_nowait
        )
        self._bridge = Bridge(self._loop, self._arguments, arrived.post, own)
        self._bridge.open(self)
        try:
            await asyncio.shield(wrap_future(self._bridge.opened))
        except BaseException:
            await self._close(self._bridge)
            raise
        self._is_open = True
        if is_live:
            return self
        self._bridge.rest()
        stacks = not isinstance(self._source, AsyncIterable) and self._options.key is None
        self._here = StreamHere(self._loop, self._options, STREAMED_ON_LOOP, stacks=stacks)
        self._batching = self._bridge.batching if self._here.may_run else None
        number, now_ns = self._bridge.number, self._bridge.now_ns
        self._puller = Puller(self._source, self._here, self._options, now_ns, number)
        if self._here.threads > 1 and self._options.may_be_submitted:
            self._submitted = _SubmittedItems(
                self._owner,
                self._submitter,
                self._bridge,
                partial(self._puller.make_item, on_release=self._permits.give_back),
                self._deliveries.put_nowait,
                is_ordered=self._options.ordered,
            )
        self._feeding = asyncio.create_task(self._feed(self._bridge))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._bridge is not None, "it was entered"
        await self._close(self._bridge)

    def __aiter__(self) -> AsyncioResults:
        return self

    async def __anext__(self) -> Item:
        """Release the last result and return the next one.

        Raises
        ------
        StopAsyncIteration
            After the last.
        SessionError
            If the session was closed, the stream is not open, or the process is a forked child.
        Exception
            The error of the source, after the results of its items; that of the item, if the stream
            was opened with ``on_error="raise"``.
        """
        if self._bridge is None or not self._is_open:
            raise SessionError("the stream is not open", fix="async with session.stream(source)")
        if self._item is not None:
            self._item.release()
        if self._end is not None:
            raise StopAsyncIteration
        self._loop.check_own()
        if self._rest is not None and self._deliveries.empty():
            await self._pause()
            self._item = self._run_inline(self._rest)
            if self._item is not None:
                self._here.note()
                return self._item.checked(self._options.on_error)
        delivery = await self._deliveries.get()
        if isinstance(delivery, End):
            self._end = delivery
            source_error = None if self._feeding is None else self._puller.error
            raise delivery.error or source_error or StopAsyncIteration
        if isinstance(delivery, _Done):
            self._item = delivery.item
        else:
            is_fed = self._feeding is not None
            on_release = self._permits.give_back if is_fed else self._bridge.resume
            self._item = self._bridge.pass_on(delivery, on_release)
        if self._feeding is not None:
            self._here.note()
        return self._item.checked(self._options.on_error)

    def _live_source(self, running: asyncio.AbstractEventLoop) -> Source:
        if isinstance(self._source, AsyncIterable):
            return AsyncioSource(self._source, await_on(running))
        return self._source

    async def _feed(self, bridge: Bridge) -> None:
        """Pull items from the source while there are permits; run them or hand them to `bridge`."""
        puller, submitted = self._puller, self._submitted
        # With room for one item, pull none before the consumer asks for the next.
        may_rest = self._options.max_in_flight == 1 and not puller.may_wait
        try:
            while not puller.is_exhausted:
                await self._permits.acquire()
                if self._batching is not None:
                    await self._feed_stacked(bridge, self._batching)
                    continue
                item = None
                if puller.pulled is None:
                    if not await puller.pull_soon():
                        break
                    if not (bridge.rooms or (submitted and submitted.pending)):
                        item = puller.run(self._permits.give_back)
                if item is None and submitted is not None:
                    submitted.put(puller.take())
                    continue
                if item is None:
                    bridge.put([puller.take()])
                    continue
                self._deliveries.put_nowait(_Done(item))
                if may_rest:
                    self._rest = asyncio.Event()
                    await self._rest.wait()
            if submitted is not None:
                await submitted.wait()
        except Exception as error:
            puller.error = error
        finally:
            try:
                await puller.aclose()
            finally:
                bridge.end()

    async def _feed_stacked(self, bridge: Bridge, batching: Batching) -> None:
        """Pull a batch of `batching`; run it or hand it to `bridge`. The caller has one permit."""
        for _ in range(batching.size - 1):
            await self._permits.acquire()
        stacked, found = StackedItems(batching), None
        while stacked.pull(self._puller):
            await self._pause()
        if stacked.pulled and not bridge.rooms:  # else they would overtake others
            found = self._here.run_stacked(stacked)
        for _ in range(batching.size - len(stacked.pulled)):
            self._permits.give_back()
        if found is None and stacked.pulled:
            bridge.put(stacked.pulled, is_batch=True)
        for pulled, outcome in zip(stacked.pulled, found or (), strict=False):
            item = self._puller.make_item(pulled, *outcome, self._permits.give_back)
            self._deliveries.put_nowait(_Done(item))

    def _run_inline(self, rest: asyncio.Event) -> Item | None:
        """Pull an item from a source that does not wait, and run it in the consumer's own task.

        Without an item, or if it would take longer, sets `rest` and returns None: the feeding task
        continues with it.
        """
        item = self._puller.run() if self._puller.pull() else None
        if item is None:
            self._rest = None
            rest.set()
        return item

    async def _close(self, bridge: Bridge) -> None:
        if self._loop.is_inherited:
            return
        bridge.close()
        closed = wrap_future(bridge.closed)
        if self._feeding is None:
            await wait_until_done(closed)
        else:
            self._feeding.cancel()
            await wait_until_done(self._feeding, closed)
            if self._submitted is not None:
                await self._submitted.close()
            if not self._feeding.cancelled():
                self._feeding.result()  # the source may have failed to close


def wrap_future(future: concurrent.futures.Future[T]) -> asyncio.Future[T]:
    """Return an asyncio version of `future`; its exception need not be retrieved."""
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.exception())
    return wrapped


async def wait_until_done(*futures: asyncio.Future[Any]) -> None:
    cancelled = False
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            # Cancel later: the awaited work uses memory that the caller frees next.
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


class AsyncioSource(trio.abc.AsyncResource, AsyncIterator[SourceItem]):
    """Yields items under trio that a source yields in tasks of an asyncio loop, one at a time.

    `awaits` awaits functions on the loop of the source.
    """

    def __init__(self, source: AsyncIterable[SourceItem], awaits: Await) -> None:
        self._source = source
        self._awaits = awaits
        self._iterator: AsyncIterator[SourceItem] | None = None
        self._given: list[SourceItem] = []

    async def __anext__(self) -> SourceItem:
        await self._awaits(self._pull)
        if not self._given:
            raise StopAsyncIteration
        return self._given.pop()

    async def aclose(self) -> None:
        with suppress(RuntimeError):  # its loop has ended, and closed it
            await self._awaits(self._close)

    async def _pull(self) -> None:
        if self._iterator is None:
            self._iterator = aiter(self._source)
        with suppress(StopAsyncIteration):
            self._given.append(await anext(self._iterator))

    async def _close(self) -> None:
        source = self._source if self._iterator is None else self._iterator
        if isinstance(source, AsyncGenerator):
            await source.aclose()
