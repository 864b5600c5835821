"""The host's side of a pool of replicas: a session that runs the items of each call.

Messages consist of mappings, arrays, numbers and text; `remote_errors` writes exceptions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import trio

from ....devices.worker.remote_errors import describe
from ....graph.values.tensor import Array
from ...bridges.asyncio_results import wrap_future
from ...bridges.loop_thread import LoopThread
from ...runtime.session import Session
from ..payload import unpack_plan
from ..remote.commands import Described


class Asked(NamedTuple):
    """An item that a host is to run."""

    number: int
    """Unique in the pool."""
    inputs: Mapping[str, Array]
    fetches: tuple[str, ...] | None = None
    """The tensors to return instead of all outputs."""


class Outcome(NamedTuple):
    """The outcome of an item: results by name, or an exception; neither if it was cancelled."""

    number: int
    results: Mapping[str, Array] | None
    error: Described | None


class Answer(NamedTuple):
    """A host's answer to a call."""

    outcomes: tuple[Outcome, ...]
    busy_s: float
    """Total time so far in which the host had items."""
    done: int
    """Total number of ended items."""


class ServingSessions:
    """The session of a host, on a thread of its own; called in one asyncio loop only."""

    def __init__(self) -> None:
        self._loop: LoopThread[Session] | None = None
        # Used on the session's thread only:
        self._scopes: dict[int, trio.CancelScope] = {}
        self._busy_s = 0.0
        self._since_s = 0.0
        self._done = 0

    async def open(self, *payload: Any) -> Described | None:
        """Open a session of the `payload` for `unpack_plan`; return the error if that fails."""
        try:
            self._loop = await asyncio.to_thread(self._opened, *payload)
        except Exception as error:
            return describe(error)
        return None

    async def run(self, asked: Sequence[Asked]) -> Answer:
        """Run the items `asked`, as many at a time as the plan has memory for."""
        assert self._loop is not None, "it was opened"
        return await wrap_future(self._loop.start(partial(self._answer, asked)).outcome)

    async def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel the running items `numbers`; each ends after its present kernel."""
        if self._loop is not None:
            self._loop.call_soon(partial(self._cancel, numbers))

    async def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            await asyncio.to_thread(loop.close)

    def _opened(self, *payload: Any) -> LoopThread[Session]:
        loop = LoopThread(Session(unpack_plan(*payload), trace=False), owner=self)
        loop.open()
        return loop

    def _cancel(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (scope := self._scopes.get(number)) is not None:
                scope.cancel()

    async def _answer(self, asked: Sequence[Asked]) -> Answer:
        assert self._loop is not None, "it was opened"
        session = self._loop.session
        items = [Asked(*one) for one in asked]
        if not self._scopes:
            self._since_s = time.perf_counter()
        self._scopes.update({one.number: trio.CancelScope() for one in items})
        outcomes: dict[int, Outcome] = {}
        rest = iter(items)  # shared by few tasks, since a task costs as much as a short item

        async def work() -> None:
            for one in rest:
                outcomes[one.number] = await self._outcome(session, one)

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(session.plan.in_flight, len(items))):
                    nursery.start_soon(work)
        finally:
            now_s = time.perf_counter()
            self._busy_s += now_s - self._since_s
            self._since_s = now_s
            for one in items:
                del self._scopes[one.number]
        self._done += len(items)
        return Answer(tuple(outcomes[one.number] for one in items), self._busy_s, self._done)

    async def _outcome(self, session: Session, item: Asked) -> Outcome:
        names = None if item.fetches is None else {name: name for name in item.fetches}
        try:
            with self._scopes[item.number]:
                if names is None:
                    found = await session.run(item.inputs)
                else:
                    found = await session.run(item.inputs, names)
                results = {name: array for name, array in found.items() if array is not None}
                return Outcome(item.number, results, None)
        except Exception as error:
            return Outcome(item.number, None, describe(error))
        return Outcome(item.number, None, None)
