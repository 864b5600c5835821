"""Streams: items admitted while slots last, results handed out in order.

A permit is held from before an item is pulled from the source until the consumer asks for the next
result, so no more than `max_in_flight` items are ever alive: a channel of that size would not do.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import isasyncgen, isgenerator
from typing import Any, TypeAlias

import trio

from .errors import SessionError
from .item import Flight, Item
from .runtime import Runtime

Source: TypeAlias = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


class Results:
    """The results of a stream, in the order of the source; iterate once, in one task."""

    def __init__(self, runtime: Runtime, max_in_flight: int) -> None:
        self._runtime = runtime
        self._max_in_flight = max_in_flight
        self._permits = trio.Semaphore(max_in_flight)
        self._send, self._receive = trio.open_memory_channel[Flight](max_in_flight)
        self._alive: set[Flight] = set()
        self._head: Flight | None = None
        self._delivered = False
        self._index = -1
        self._source_error: Exception | None = None

    def __aiter__(self) -> Results:
        return self

    async def __anext__(self) -> Item:
        """Return the next result; failures stay with their item.

        Raises
        ------
        StopAsyncIteration
            After the last.
        Exception
            What the source raised, after the results of what it had given.
        """
        self._release()
        if self._head is None:
            self._head = await self._next()
        await self._head.done.wait()
        self._delivered = True
        self._index += 1
        return Item(self._index, self._head.results, self._head.error)

    async def _next(self) -> Flight:
        with suppress(trio.EndOfChannel):
            return await self._receive.receive()
        error, self._source_error = self._source_error, None
        raise error or StopAsyncIteration  # outside of any handler: it keeps its own cause

    def _release(self) -> None:
        """Let go of the result that was handed out last."""
        if self._delivered and self._head is not None:
            self._alive.discard(self._head)
            self._head, self._delivered = None, False
            self._permits.release()

    async def feed(self, source: Source) -> None:
        """Pull items from the source and start them, while permits last."""
        async with self._send:
            iterator = _iterate(source)
            try:
                while True:
                    await self._permits.acquire()
                    try:
                        inputs = await anext(iterator)
                    except StopAsyncIteration:
                        return
                    flight = Flight()
                    self._send.send_nowait(flight)
                    await self._start(inputs, flight)
            except Exception as error:
                self._source_error = error
            finally:
                with trio.CancelScope(shield=True):
                    await iterator.aclose()

    async def _start(self, inputs: Mapping[str, Any], flight: Flight) -> None:
        try:
            await self._runtime.admit(inputs, self._max_in_flight, flight)
        except BaseException as error:
            flight.finish(error=error)
            if not isinstance(error, Exception):  # a cancellation, not a failure of the item
                raise
        else:
            self._alive.add(flight)

    async def drain(self) -> None:
        """Cancel what is under way and wait for it to end."""
        await self._runtime.drain(self._alive)


@asynccontextmanager
async def open_stream(
    runtime: Runtime, source: Source, max_in_flight: int
) -> AsyncIterator[Results]:
    """Start feeding a source; on exit, cancel and drain what is still under way."""
    if not isinstance(source, AsyncIterable | Iterable):
        raise SessionError(
            f"a {type(source).__name__} is no source of items",
            fix="stream from an iterable or async iterable of mappings of input name to array",
        )
    await runtime.prepare(max_in_flight)
    results = Results(runtime, max_in_flight)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(results.feed, source)
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


async def _iterate(source: Source) -> Any:
    """Yield from a source of either kind; generators are closed at the end."""
    if isinstance(source, AsyncIterable):
        asynchronous = aiter(source)
        try:
            async for inputs in asynchronous:
                yield inputs
        finally:
            if isasyncgen(asynchronous):
                await asynchronous.aclose()
    else:
        synchronous = iter(source)
        try:
            for inputs in synchronous:
                yield inputs
        finally:
            if isgenerator(synchronous):
                synchronous.close()
