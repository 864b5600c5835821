"""An async source of an asyncio program, for the session's loop to pull from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import suppress

import trio

from ..runtime.async_calls import Await
from ..runtime.streaming.sources import SourceItem


class AsyncioSource(trio.abc.AsyncResource, AsyncIterator[SourceItem]):
    """Yields under trio what a source yields in tasks of an asyncio loop, one at a time.

    Parameters
    ----------
    source : async iterable
    awaits : callable
        Awaits functions on the loop of the source.
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
        """Close the source, if it is a generator."""
        with suppress(RuntimeError):  # its loop is gone, and took it along
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
