"""A stream whose source and consumer live on another thread than the session's loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from ..errors import SessionError
from ..item import Item
from ..streaming.options import StreamArguments
from .loop_thread import LoopThread


@dataclass(frozen=True, slots=True)
class End:
    """There are no more results, because of an error if there is one."""

    error: BaseException | None


Delivery: TypeAlias = Item | End


class Bridge:
    """Feeds a stream from elsewhere and delivers its results there.

    Whoever is on the other side sees to it that no more items are alive than it wants.

    Parameters
    ----------
    loop : LoopThread
    arguments : StreamArguments
    deliver : callable
        Called on the loop's thread with every result, and then once with an End.
    """

    def __init__(
        self, loop: LoopThread, arguments: StreamArguments, deliver: Callable[[Delivery], object]
    ) -> None:
        self._session = loop.session
        self._loop = loop
        self._arguments = arguments
        self._deliver = deliver
        self._opened: Future[None] = Future()
        self._send, self._receive = trio.open_memory_channel[Mapping[str, Any]](math.inf)
        self._job = loop.start(self._run)
        self._job.outcome.add_done_callback(self._end)

    @property
    def opened(self) -> Future[None]:
        """Done when the stream is open, or could not be opened."""
        return self._opened

    @property
    def closed(self) -> Future[None]:
        """Done when everything has ended."""
        return self._job.outcome

    def put(self, inputs: Mapping[str, Any]) -> None:
        """Feed an item."""
        with suppress(SessionError):  # the end says so
            self._loop.call_soon(lambda: self._put(inputs))

    def end(self) -> None:
        """Feed no more."""
        with suppress(SessionError):
            self._loop.call_soon(self._send.close)

    def close(self) -> None:
        """Cancel what is under way; does not wait."""
        self._job.cancel()

    def _put(self, inputs: Mapping[str, Any]) -> None:
        with suppress(trio.BrokenResourceError):  # the stream has ended
            self._send.send_nowait(inputs)

    async def _run(self) -> None:
        async with self._session.stream(self._receive, **self._arguments) as results:
            self._opened.set_result(None)
            async for item in results:
                self._deliver(item)

    def _end(self, outcome: Future[None]) -> None:
        error = outcome.exception()
        if not self._opened.done():
            self._opened.set_exception(error or SessionError("the stream was closed"))
        self._deliver(End(error))
