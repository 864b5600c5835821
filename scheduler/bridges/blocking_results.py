"""Results of a stream for synchronous code: a plain iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from ..dispatch.inline_policy import STREAMED
from ..errors import forked_session_error
from ..runtime.items.item import Item
from ..runtime.streaming.options import StreamOptions
from ..runtime.streaming.sources import Puller, SourceItem
from .bridge import Bridge, Delivery, End
from .inline import StreamHere
from .loop_thread import LoopThread


class BlockingResults:
    """The results of a stream; iterate once, on one thread.

    `owner` is what must not be collected meanwhile.
    """

    def __init__(
        self,
        loop: LoopThread[Any],
        source: Iterable[SourceItem],
        options: StreamOptions,
        owner: object,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._options = options
        is_live = options.kept is not None
        self._room = _Room(0 if is_live else options.max_in_flight)
        self._item: Item | None = None
        self._is_item_here = False
        self._deliveries: SimpleQueue[Delivery] = SimpleQueue()
        arguments, own = options.beyond_threads(), _plain(source) if is_live else None
        self._bridge = Bridge(loop, arguments, self._deliveries.put, self, own)
        self._is_closed = False
        self._bridge.opened.result()
        if not is_live:
            self._bridge.rest()
        self._on_release = self._bridge.resume if is_live else self._room.leave
        self._here = StreamHere(loop, options, STREAMED)
        pulled_here = () if is_live else source  # the loop has a live one read on another thread
        number, now_ns = self._bridge.number, self._bridge.now_ns
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
            What the source raised, after the results of what it had given; what the item failed
            with, if the stream was opened with ``on_error="raise"``.
        """
        item = self._item
        if item is not None and not (self._is_item_here and item.release_marked()):
            item.release()
        if self._is_closed:
            raise StopIteration
        if self._loop.is_inherited:
            raise forked_session_error()
        while self._room.free and not self._puller.is_exhausted and self._may_pull:
            item = self._pull()
            if item is not None:
                self._item, self._is_item_here = item, True
                self._here.note()
                return item if item.error is None else item.checked(self._options.on_error)
        self._is_item_here = False
        delivery = self._deliveries.get()
        if isinstance(delivery, End):
            self.close()
            error = delivery.error or self._puller.error
            raise error or StopIteration
        self._item = self._bridge.pass_on(delivery, self._on_release)
        self._here.note()
        return self._item.checked(self._options.on_error)

    def close(self) -> None:
        """Cancel items in flight, wait for them to end, and close a source that is a generator."""
        self._is_closed = True
        self._bridge.close()
        try:
            self._puller.close()
        finally:
            if not self._loop.is_inherited:
                self._bridge.closed.exception()

    def __enter__(self) -> BlockingResults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _may_pull(self) -> bool:
        """False where the next item is to run here, once those that were handed over are done."""
        return not (self._bridge.rooms and self._here.is_due)

    def _pull(self) -> Item | None:
        """Ask the source for an item, and return what came of it if it could be run here."""
        puller = self._puller
        try:
            if puller.pull():
                item = puller.run()
                if item is None:
                    position, marks, inputs = puller.take()
                    self._bridge.put(inputs, position, marks)
                    self._room.free -= 1
                elif puller.is_exhausted:
                    self._bridge.end()
                return item
        except Exception as error:  # it cannot be copied
            puller.is_exhausted, puller.error = True, error
        self._bridge.end()
        return None


def _plain(source: Iterable[SourceItem]) -> Iterator[SourceItem]:
    """Return an iterator that is no async one: the loop has it read on another thread."""
    yield from source


class _Room:
    """How many more items may be alive; items know of it, and so do not keep a stream open."""

    def __init__(self, free: int) -> None:
        self.free = free

    def leave(self, item: Item) -> None:
        self.free += 1
