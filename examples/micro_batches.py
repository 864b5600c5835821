"""Micro-batches for servers: what many tasks ask for at the same moment runs at once.

A stream's `batch=` is for one source. Here the source is whoever asks: every task gets the result
of its own item, the items meet in one stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import plait as pl
from numpy.typing import NDArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class _Request(NamedTuple):
    inputs: Arrays
    answer: asyncio.Future[Arrays]


class MicroBatches:
    """Runs single items of many tasks in batches, from ``async with`` to its end.

    Parameters
    ----------
    session : AsyncioSession
    batch : int
        How many items run at once at most.
    max_delay_s : float
        How long the first of a batch waits for more.
    """

    def __init__(self, session: pl.AsyncioSession, *, batch: int, max_delay_s: float) -> None:
        self._session = session
        self._batch, self._max_delay_s = batch, max_delay_s
        self._asked: asyncio.Queue[_Request] = asyncio.Queue()
        self._under_way: deque[_Request] = deque()
        self._failure: Exception | None = pl.SessionError("nothing is open to run in")

    async def __aenter__(self) -> MicroBatches:
        self._failure = None
        self._answering = asyncio.create_task(self._answer())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answering.cancel()
        await asyncio.wait((self._answering,))
        if not self._answering.cancelled():
            self._answering.result()

    async def run(self, inputs: Arrays, *, deadline_s: float | None = None) -> Arrays:
        """Run one item and return its outputs.

        Raises
        ------
        DeadlineError
            If it is not done in time; its time in the line counts.
        SessionError
            If this is closed.
        PlaitError
            Whatever running raises.
        """
        if self._failure is not None:
            raise self._failure
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(_Request(inputs, answer))
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise pl.DeadlineError(f"the item was not done within {deadline_s} s") from None

    async def _answer(self) -> None:
        """Answer requests until cancelled, or until the session ends; then there is no more."""
        batch, delay_s = self._batch, self._max_delay_s
        failure: Exception = pl.SessionError("the session was closed before the item was done")
        try:
            async with self._session.stream(
                self._wanted(), batch=batch, max_delay_s=delay_s
            ) as results:
                async for item in results:
                    _settle(self._under_way.popleft().answer, item)
        except pl.PlaitError as error:
            failure = error
        finally:
            self._failure = failure
            while not self._asked.empty():
                self._under_way.append(self._asked.get_nowait())
            for request in self._under_way:
                if not request.answer.done():
                    request.answer.set_exception(failure)

    async def _wanted(self) -> AsyncIterator[Arrays]:
        """Yield what is asked for, but for what nobody waits for any more."""
        while True:
            request = await self._asked.get()
            if not request.answer.done():
                self._under_way.append(request)
                yield request.inputs


def _settle(answer: asyncio.Future[Arrays], item: pl.Item) -> None:
    if answer.done():
        return  # whoever asked has gone
    if item.error is not None:
        answer.set_exception(item.error)
    else:
        answer.set_result(item.outputs)
