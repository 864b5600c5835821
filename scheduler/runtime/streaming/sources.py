"""Items on their way out of a source: numbered, timed, and run at once where they are brief.

Sources are iterables, async iterables, trio channels. Every form of stream pulls by this. Where
nothing else of it is in flight, a request for the next result pulls and runs an item there
and then, unless the source has to be awaited; a longer item is left as `pulled`, to
be handed to where items are under way side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial
from typing import Any, TypeAlias

import trio

from ....graph.values.errors import InternalError
from ....graph.values.tensor import Array
from ...errors import SessionError
from ...profile.timestamps import Timestamps
from ..items.item import Item, mark_release
from ..opened.feeds import ItemFeeds, hold_feeds
from ..opened.results import Results
from .options import StreamOptions
from .stamped import Handed, Stamped, unstamp

SourceItem: TypeAlias = Mapping[str, Any] | Array | Stamped
"""The inputs of an item, or the array of the only one; they may be the value of a `Stamped`."""

Source: TypeAlias = Iterable[SourceItem] | AsyncIterable[SourceItem]

RunNow: TypeAlias = Callable[[Mapping[str, Any], Timestamps], Results | None]
"""Runs an item on the calling thread; None, and nothing has happened, where that cannot be."""


Pulled: TypeAlias = tuple[int, Timestamps, Mapping[str, Any]]
"""An item's place in the source, its times, and its inputs."""


def check_source(source: object, *, blocking: bool = False) -> None:
    """Raise SessionError unless `source` yields items, without awaiting them if `blocking`."""
    if isinstance(source, Mapping):
        raise SessionError(
            f"a {type(source).__name__} is one item, not a source of items",
            fix="stream from a list of items: [item]; or run the item",
        )
    if not isinstance(source, Iterable if blocking else Iterable | AsyncIterable):
        kinds = "iterable" if blocking else "iterable or async iterable"
        raise SessionError(
            f"expected a source of items, got {type(source).__name__}",
            fix=f"stream from an {kinds} of mappings of input name to array",
        )


class Puller:
    """Pulls the items of a stream; used by one thread or task at a time.

    An item is `pulled` until it has been run or handed over; `waited_s` is the time since the
    source yielded it. When the source gives no more, `is_exhausted` is true, and `error` is why, if
    it raised.
    """

    waited_s = 0.0

    def __init__(
        self,
        source: Source,
        run_now: RunNow,
        options: StreamOptions,
        now_ns: Callable[[], int],
        number: int,
    ) -> None:
        self._source = source
        self._run_now = run_now
        self._arrange = options.arrange
        self._read_key = options.read_key
        self._hold = partial(hold_feeds, only_input=options.only_input)
        self._now_ns = now_ns
        self._number = number
        self._iterator: Iterator[Any] | None = None
        self._asynchronous: AsyncIterator[Any] | None = None
        self._count = 0
        self._back = deque[Pulled]()
        # The check is slow: once for all items.
        self.may_wait = isinstance(source, AsyncIterable)
        self.pulled: Pulled | None = None
        self.is_exhausted = False
        self.error: Exception | None = None

    def pull(self) -> bool:
        """Ask a source that need not be awaited for an item; False at its end."""
        asked_ns = self._now_ns()
        try:
            if self._iterator is None:
                assert isinstance(self._source, Iterable)
                self._iterator = iter(self._source)
            inputs: Any = next(self._iterator)
            marks = Timestamps(asked_ns, self._now_ns(), stream=self._number)
            if isinstance(inputs, Stamped):
                inputs = unstamp(inputs, marks)
            if self._read_key is not None:
                marks.key, inputs = self._read_key(inputs)
            inputs = ItemFeeds(inputs) if type(inputs) is dict else self._hold(inputs)
        except StopIteration:
            self.is_exhausted = True
        except Exception as error:
            self.is_exhausted, self.error = True, error
        else:
            self.pulled = self._count, marks, inputs
            self._count += 1
        return not self.is_exhausted

    async def pull_soon(self) -> bool:
        # It repeats the end of `pull`: a shared function would be one call more for each item.
        if not self.may_wait:
            return self.pull()
        asked_ns = self._now_ns()
        try:
            if self._asynchronous is None:
                assert isinstance(self._source, AsyncIterable)
                self._asynchronous = aiter(self._source)
            inputs: Any = await anext(self._asynchronous)
            if isinstance(inputs, Handed):
                marks, inputs = inputs
            else:
                marks = Timestamps(asked_ns, self._now_ns(), stream=self._number)
            if isinstance(inputs, Stamped):
                inputs = unstamp(inputs, marks)
            if self._read_key is not None and marks.key is None:  # else a bridge has read it
                marks.key, inputs = self._read_key(inputs)
            inputs = ItemFeeds(inputs) if type(inputs) is dict else self._hold(inputs)
        except StopAsyncIteration:
            self.is_exhausted = True
        except Exception as error:
            self.is_exhausted, self.error = True, error
        else:
            self.pulled = self._count, marks, inputs
            self._count += 1
        return not self.is_exhausted

    def take(self) -> Pulled:
        pulled, self.pulled = self.pulled, self._back.popleft() if self._back else None
        assert pulled is not None
        return pulled

    def put_back(self, pulled: Iterable[Pulled]) -> None:
        later = () if self.pulled is None else (self.pulled,)
        self._back.extend((*pulled, *later))
        self.pulled = self._back.popleft()

    def run(self, on_release: Callable[[Item], object] | None = None) -> Item | None:
        """Run the pulled item; return it with `on_release`, or None if it must be handed over."""
        pulled, results, error = self.pulled, None, None
        assert pulled is not None
        _, marks, inputs = pulled
        try:
            results = self._run_now(inputs, marks)
        except Exception as failure:
            error = failure
        if results is None and error is None:
            return None
        self.pulled = None
        return self.make_item(pulled, results, error, on_release)

    def make_item(
        self,
        pulled: Pulled,
        results: Results | None,
        error: BaseException | None,
        on_release: Callable[[Item], object] | None = None,
    ) -> Item:
        index, marks, _ = pulled
        if isinstance(error, InternalError):  # all that follow would fail with it
            self.is_exhausted, self.error = True, error.again()
        marks.taken_ns = self._now_ns()
        every = (marks,)
        release = partial(mark_release, every, self._now_ns, on_release)
        return Item(index, results, error, release, self._arrange, marks.stamp, every)

    def close(self) -> None:
        self.is_exhausted = True
        source = self._source if self._iterator is None else self._iterator
        if isinstance(source, Generator):
            source.close()

    async def aclose(self) -> None:
        self.close()
        source = self._source if self._asynchronous is None else self._asynchronous
        if isinstance(source, AsyncGenerator | trio.abc.AsyncResource):
            await source.aclose()
