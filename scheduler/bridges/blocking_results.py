"""Results of a stream for synchronous code: a plain iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

from ...graph.values.tensor import Array
from ..dispatch.back_pressure import Permits
from ..dispatch.inline_policy import STREAMED
from ..errors import forked_session_error
from ..profile.timestamps import Timestamps
from ..runtime.items.item import Item
from ..runtime.opened.inline import Park, ParkedItem
from ..runtime.opened.results import NOT_RUN, NOTHING, Outcome, Results
from ..runtime.session import take_stream_number
from ..runtime.streaming.batching import Batching
from ..runtime.streaming.options import StreamOptions
from ..runtime.streaming.sources import Pulled, Puller, SourceItem
from ..runtime.streaming.stacked_items import StackedItems
from .bridge import Bridge, Delivery, End
from .inline import StreamHere
from .item_threads import ItemThreads
from .loop_thread import LoopThread


class BlockingResults:
    """The results of a stream; iterate once, on one thread.

    `owner` must stay alive until then.
    """

    def __init__(
        self,
        loop: LoopThread[Any],
        source: Iterable[SourceItem],
        options: StreamOptions,
        owner: object,
        threads: ItemThreads | None = None,
    ) -> None:
        loop.check_own()
        if loop.is_closed:
            raise loop.closed_error()
        self._owner = owner
        self._loop = loop
        self._options = options
        is_live = options.kept is not None
        self._permits = Permits(0 if is_live else options.max_in_flight)
        self._item: Item | None = None
        self._is_item_here = False
        # In order: all pulled items without a returned result. By completion: those of them done.
        self._queue: deque[_Pending] = deque()
        self._is_ordered = options.ordered and not is_live
        self._at_loop: dict[int, _Pending] = {}  # by the index of their results
        self._on_threads = 0
        self._deliveries: SimpleQueue[Delivery | _Unit] = SimpleQueue()
        arguments, own = options.beyond_threads(), _iterate(source) if is_live else None
        self._bridge = Bridge(loop, arguments, self._deliveries.put, own)
        self._is_closed = False
        self._is_live = is_live
        self._opening = options.max_in_flight, options.names
        self._on_release = self._bridge.resume if is_live else self._permits.give_back
        self._here = StreamHere(loop, options, STREAMED, stacks=True)
        # The loop need not know of items that it never gets; the first such stream finds errors.
        is_plain = self._here.may_run and options.key is None and options.batch is None
        if is_live or not is_plain or loop.streamed != self._opening:
            self._open_bridge()
        # The loop stacks items where it has to run them.
        self._batching = self._bridge.batching if self._here.may_run else None
        self._stacked = 1 if self._batching is None else self._batching.size
        self._stack: type[StackedItems] = StackedItems
        self._here.pace = getattr(self._batching, "pace", None)
        self._is_keyed = self._here.pace is not None
        if self._is_keyed:
            from ..runtime.streaming.keyed_batch import KeyedItems

            self._stack = KeyedItems
        self._threads = threads
        self._units = _QueuedUnits(self._here, self._deliveries.put)
        pulled_here = () if is_live else source  # the loop has a live one read on another thread
        number = self._bridge.number or take_stream_number(loop.session)
        now_ns = self._bridge.now_ns
        self._puller = Puller(pulled_here, self._here, options, now_ns, number)

    def __iter__(self) -> BlockingResults:
        return self

    def __next__(self) -> Item:
        """Release the last result and return the next one.

        Raises
        ------
        StopIteration
            After the last, or when the stream is closed.
        SessionError
            If the session was closed, or is that of a process which forked this one.
        Exception
            The error of the source, after the results of its items; that of the item, if the stream
            was opened with ``on_error="raise"``.
        BaseException
            Ctrl-C, or what the source raises of that kind; it closes the stream.
        """
        try:
            item = self._item
            if item is not None and not (self._is_item_here and item.release_marked()):
                item.release()
            if self._is_closed:
                raise StopIteration
            if self._loop.is_inherited:
                raise forked_session_error()
            item = None
            self._is_item_here = False
            while item is None:
                while self._may_pull:
                    item = self._pull()
                    if item is not None:
                        self._item, self._is_item_here = item, True
                        self._here.note()
                        return item if item.error is None else item.checked(self._options.on_error)
                if self._queue and self._queue[0].item is not None:
                    item = self._queue.popleft().item
                else:
                    self._receive(self._deliveries.get())
            self._item = item
            self._here.note()
            return item.checked(self._options.on_error)
        except BaseException as error:
            if not isinstance(error, Exception):  # a result may have been lost
                self.close()
            raise

    def close(self) -> None:
        """Cancel items in flight, wait for them to end, and close a source that is a generator."""
        self._is_closed = True
        self._bridge.close()
        self._deliveries.put(End(None))  # another thread may wait for a result
        if not self._loop.is_inherited:  # else a thread of the parent may have had the lock
            self._units.drop()
        try:
            self._puller.close()
        finally:
            if not self._loop.is_inherited:
                if self._bridge.is_open:
                    self._bridge.closed.exception()
                if self._threads is not None and not self._threads.has_caller:
                    self._units.ended.wait()  # one of the threads may be awaited by the others

    def __enter__(self) -> BlockingResults:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _may_pull(self) -> bool:
        """Whether the next item may use the same way as earlier ones; else it waits for them."""
        here = self._here
        if self._puller.is_exhausted or not self._permits.free:
            return False
        is_due = here.is_due
        if self._permits.free < self._stacked and (is_due or not self._is_keyed):
            return False
        if is_due:
            return not (self._queue or self._at_loop or self._on_threads)
        if here.uses_threads:  # they refuse items while the loop works
            return not self._at_loop
        # The loop must not get it before items that threads may yet refuse.
        return not self._on_threads

    def _pull(self) -> Item | None:
        """Pull an item from the source, or some to be stacked; return it if it ran here."""
        puller = self._puller
        try:
            if self._batching is not None and (self._here.is_due or not self._is_keyed):
                self._pull_stacked(self._batching)
                return None
            if puller.pull():
                item = puller.run()
                if item is None:
                    self._permits.take()
                    self._hand_over(_Unit([_Pending(puller.take())]))
                elif puller.is_exhausted:
                    self._end()
                return item
        except Exception as error:  # it cannot be copied
            puller.is_exhausted = True
            puller.error = self._loop.closed_error() if self._loop.is_closed else error
        self._end()
        return None

    def _pull_stacked(self, batching: Batching) -> None:
        stacked = self._stack(batching)
        while stacked.pull(self._puller):
            pass
        if stacked.pulled:
            self._permits.take(len(stacked.pulled))
            parts = [*map(_Pending, stacked.pulled)]
            unit = _Unit(parts, None if self._is_keyed else stacked)
            unit.results = self._here.run_stacked(stacked)
            if unit.results is None:
                self._hand_over(unit)
            else:
                if self._is_ordered:
                    self._queue += unit.parts
                self._settle_unit(unit)
                left = [pending for pending in parts if pending.item is None]
                if left:
                    self._hand_to_loop(_Unit(left))
        if self._puller.is_exhausted:
            self._end()

    def _hand_over(self, unit: _Unit) -> None:
        if self._on_threads or self._here.uses_threads:  # these may just refuse earlier ones
            if unit.stacked is None:
                (pending,) = unit.parts
                position, marks, inputs = pending.pulled
                own, unit.room = self._bridge.copy(inputs)
                pending.pulled = position, marks, own
            assert self._threads is not None
            self._on_threads += 1
            self._units.put(unit, self._threads)
        else:
            self._hand_to_loop(unit)
        if self._is_ordered:
            self._queue += unit.parts

    def _open_bridge(self) -> None:
        self._bridge.open(self)
        self._bridge.opened.result()
        self._loop.streamed = self._opening
        if not self._is_live:
            self._bridge.rest()

    def _hand_to_loop(self, unit: _Unit) -> None:
        if not self._bridge.is_open:
            self._open_bridge()
        items = [pending.pulled for pending in unit.parts]
        numbers = self._bridge.put(items, is_batch=unit.stacked is not None)
        self._at_loop.update(zip(numbers, unit.parts, strict=True))

    def _receive(self, delivery: Delivery | _Unit) -> None:
        if isinstance(delivery, End):
            self.close()
            raise delivery.error or self._puller.error or StopIteration
        if isinstance(delivery, _Unit):
            self._receive_from_thread(delivery)
            return
        item = self._bridge.pass_on(delivery, self._on_release)
        pending = self._at_loop.pop(delivery.index, None) or _Pending(PULLED_BY_LOOP)
        pending.item = item
        if not self._is_ordered:
            self._queue.append(pending)

    def _receive_from_thread(self, unit: _Unit) -> None:
        self._on_threads -= 1
        if unit.results is None and unit.error is None:
            self._here.leave_threads()
            self._hand_to_loop(unit)
        else:
            self._settle_unit(unit)
        if not self._on_threads:
            self._here.are_threads_refused = False
        self._bridge.take_back(unit.room)
        if self._puller.is_exhausted:
            self._end()

    def _settle_unit(self, unit: _Unit) -> None:
        found: list[Outcome]
        if isinstance(unit.results, list):
            found = unit.results
        else:
            found = [(unit.results or NOTHING, unit.error)] * len(unit.parts)
        for pending, outcome in zip(unit.parts, found, strict=True):
            if outcome is not NOT_RUN:
                pending.item = self._puller.make_item(
                    pending.pulled, *outcome, self._permits.give_back
                )
        if not self._is_ordered:
            self._queue += [pending for pending in unit.parts if pending.item is not None]

    def _end(self) -> None:
        if not self._on_threads:
            self._bridge.end()


PULLED_BY_LOOP: Pulled = 0, Timestamps(0, 0), {}


class _Pending:
    """An item that was handed over, and its result."""

    __slots__ = ("item", "pulled")

    def __init__(self, pulled: Pulled) -> None:
        self.pulled = pulled
        self.item: Item | None = None


class _Unit:
    """Items that are handed over together, and their results.

    Without results and error, a thread of the stream could not run them.
    """

    __slots__ = ("error", "parts", "results", "room", "stacked")

    def __init__(self, parts: list[_Pending], stacked: StackedItems | None = None) -> None:
        self.parts, self.stacked = parts, stacked
        self.room: Mapping[str, Array] = {}
        self.results: Results | list[Outcome] | None = None
        self.error: BaseException | None = None


class _QueuedUnits:
    """The units of a stream that wait for threads.

    It must not refer to the stream, which could not be collected while threads have it.

    Attributes
    ----------
    ended : Event
        Set when they were dropped and no thread runs others.
    """

    def __init__(self, here: StreamHere, deliver: Callable[[_Unit], object]) -> None:
        self._here = here
        self._deliver = deliver
        self.ended = Event()
        self._waiting = deque[_Unit]()
        self._lock = Lock()
        self._running = 0
        self._is_dropped = False

    def put(self, unit: _Unit, threads: ItemThreads) -> None:
        self._waiting.append(unit)
        if not threads.put(self):  # the session is closed, as the stream will say
            self.refuse_next()

    def run_next(self, begin: Callable[[], object], park: Park) -> None:
        unit = self._take()
        if unit is not None:
            self._run(unit, begin, park)

    def refuse_next(self) -> None:
        unit = self._take()
        if unit is not None:
            self._end(unit)

    def drop(self) -> None:
        with self._lock:
            self._is_dropped = True
            self._waiting.clear()
            if not self._running:
                self.ended.set()

    def _take(self) -> _Unit | None:
        with self._lock:
            if not self._waiting:
                return None
            self._running += 1
            return self._waiting.popleft()

    def _run(
        self,
        unit: _Unit,
        begin: Callable[[], object],
        enqueue: Park,
        parked: ParkedItem | None = None,
    ) -> None:
        if parked is not None:
            del parked.end  # which refers to it
            unit.results = None
        park = None if unit.stacked else enqueue
        try:
            pulled = unit.stacked or unit.parts[0].pulled
            unit.results = self._here.run_on(pulled, begin, park, parked)
        except BaseException as error:  # the stream waits for it
            unit.error = error
        if isinstance(unit.results, ParkedItem):
            again = unit.results
            again.end = partial(self._run, unit, begin, enqueue, again)
            again.arrive()
        else:
            self._end(unit)

    def _end(self, unit: _Unit) -> None:
        self._deliver(unit)
        with self._lock:
            self._running -= 1
            if self._is_dropped and not self._running:
                self.ended.set()


def _iterate(source: Iterable[SourceItem]) -> Iterator[SourceItem]:
    yield from source
