"""Readers: items from a file or device, for blocking code and for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Generator
from typing import Any

import trio

from ..bridges.asyncio_results import wait_until_done
from ..runtime.streaming.stamped import AsyncClosableSource, ClosableSource, Stamped


class Reader(ClosableSource, AsyncIterable[Stamped]):
    """Reads one item after the other; closed like a generator.

    Plain iteration reads on the caller's thread, ``async for`` on another thread, under trio or
    asyncio; a cancellation waits for the current read to end. At most one item is read at a time,
    and none ahead.

    Parameters
    ----------
    items : generator of Stamped
        Opens the file or device on the first request, and closes it at the end.
    """

    def __init__(self, items: Generator[Stamped, None, None]) -> None:
        self._items = items

    def send(self, value: None, /) -> Stamped:
        return next(self._items)

    def close(self) -> None:
        self._items.close()

    def __aiter__(self) -> AsyncIterator[Stamped]:
        return _OnThread(self)


class _OnThread(AsyncClosableSource):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # Its own: a device that waits for its next item keeps no thread from others.
        self._limiter = trio.CapacityLimiter(1)

    async def asend(self, value: None, /) -> Stamped:
        if trio.lowlevel.in_trio_run():
            item = await trio.to_thread.run_sync(self._read, limiter=self._limiter)
        else:
            reading = asyncio.get_running_loop().run_in_executor(None, self._read)
            try:
                item = await asyncio.shield(reading)
            except asyncio.CancelledError:
                await wait_until_done(reading)
                raise
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        self._reader.close()

    def _read(self) -> Stamped | None:
        return next(self._reader, None)


def to_feed(feed: str | None, array: Any) -> Any:
    return array if feed is None else {feed: array}
