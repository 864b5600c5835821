"""A session for asyncio: its trio loop runs on a separate thread, from opening to closing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Never, TypeVar, Unpack, overload

from ...graph.values.tensor import Array
from ..dispatch.inline_policy import ON_LOOP
from ..errors import SessionError, make_keyword_error
from ..planner.plannable import Plannable, to_plan
from ..plans.fetches import Fetches
from ..profile import Profile
from ..runtime.items.deadlines import begin_deadline
from ..runtime.opened.feeds import ItemFeeds, to_feeds
from ..runtime.plan_holder import PlanHolder
from ..runtime.session import Session, borrow_inputs
from ..runtime.status import Status
from ..runtime.streaming.options import StreamArguments, stream_options
from ..runtime.streaming.sources import Source, check_source
from ..runtime.variables.carried import Carried
from .asyncio_calls import await_on
from .asyncio_results import AsyncioResults, Pause, wait_until_done, wrap_future
from .inline import run_item
from .loop_thread import LoopJob, LoopThread, SessionArguments
from .submitted_items import AwaitedItem, ItemSubmitter

T = TypeVar("T")


class AsyncioSession(PlanHolder):
    """An open plan, like `Session`: owns devices, arenas and lanes within ``async with``.

    Parameters
    ----------
    plan : Plan, Graph, path or Pipeline
        A graph, or the model of a path, is planned for ``"auto"``.
    **arguments
        As for a `Session`.

    Examples
    --------
    >>> import asyncio
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", (1,)), 2.0))
    >>> plan = pl.plan(b.build(), max_in_flight=2)
    >>> async def main():
    ...     feeds = ({"x": np.array([n], "float32")} for n in range(3))
    ...     async with pl.AsyncioSession(plan) as session:
    ...         async with session.stream(feeds) as results:
    ...             return [item["y"].item() async for item in results]
    >>> asyncio.run(main())
    [0.0, 2.0, 4.0]

    Notes
    -----
    The session belongs to the asyncio loop in which it is opened; any tasks of that loop may use it
    at the same time. Async functions of the plan are awaited there; `on_event` is called on another
    thread.
    """

    def __init__(self, plan: Plannable, **arguments: Unpack[SessionArguments]) -> None:
        self.plan = to_plan(plan)
        self._arguments = arguments
        self._loop: LoopThread[Session] | None = None
        self._ended: LoopThread[Session] | None = None
        self._submitter: ItemSubmitter  # while the loop is open
        self._pause = Pause()

    async def __aenter__(self) -> AsyncioSession:
        if self._loop is not None:
            raise SessionError("the session is open already", fix="make another session")
        session = Session(self.plan, **self._arguments)
        session._awaits = await_on(asyncio.get_running_loop())
        loop = LoopThread(session, owner=self)
        opening = _on_thread(loop.open)
        try:
            await asyncio.shield(opening)
        except BaseException:
            closing = _on_thread(loop.close)
            await wait_until_done(closing, opening)
            for ended in (closing, opening):
                ended.exception()  # asyncio would log errors that are never read
            raise
        self._loop, self._submitter = loop, ItemSubmitter(loop, owner=self)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop, self._loop = self._open_loop(), None
        self._ended = loop
        if loop.is_inherited:  # asyncio's threads, too, are the parent's
            return
        closing = _on_thread(self._submitter.close)
        await wait_until_done(closing)
        closing.result()

    @overload
    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: None = None,
        *,
        deadline_s: float | None = None,
    ) -> dict[str, Array]: ...

    @overload
    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches,
        *,
        deadline_s: float | None = None,
    ) -> Any: ...

    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
        **unknown: Never,
    ) -> Any:
        """Run `inputs` within `deadline_s`; return the outputs or `fetches`, like `Session.run`.

        Cancelling skips the steps that have not started, and returns when running steps have ended.

        Raises
        ------
        PlaitError
            Any error of running.
        """
        loop = self._open_loop()
        if unknown:
            raise make_keyword_error(unknown, "run", ("fetches", "deadline_s"))
        graph = self.plan.graph
        inputs = ItemFeeds(inputs) if type(inputs) is dict else to_feeds(graph, inputs, fetches)
        check_time = None if deadline_s is None else begin_deadline(deadline_s)
        done = run_item(loop, inputs, fetches, ON_LOOP, check_time)
        if done is not None:
            await self._pause()
            return done[0]
        own = borrow_inputs(loop.session, inputs)
        item = AwaitedItem(self, deadline_s, check_time)
        self._submitter.submit(item, own, fetches, None, priority=0)
        ended = wrap_future(item.ended)
        try:
            if deadline_s is not None and not (await asyncio.wait([ended], timeout=deadline_s))[0]:
                item.expire()
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            item.cancel()
            await wait_until_done(ended)
            raise
        return item.result()

    __call__ = run

    def stream(self, source: Source, **arguments: Unpack[StreamArguments]) -> AsyncioResults:
        """Run the items of a source, several at a time; enter the result to iterate over it.

        Parameters
        ----------
        source : iterable or async iterable of Mapping, array or Stamped
            Read in a task of the asyncio loop, when there is room for one more item. A generator is
            closed at the end.
        **arguments
            As for `Session.stream`. Results are always copies.

        Raises
        ------
        SessionError
            If the session is closed or the arguments are invalid.
        """
        loop = self._open_loop()
        check_source(source)
        options = stream_options(self.plan, arguments)
        return AsyncioResults(loop, source, options, self, self._submitter)

    async def fetch_variables(self, *, key: Hashable = None) -> dict[str, Array]:
        """Return all variables, or a `key`'s, at one moment, like `Session.fetch_variables`."""
        loop = self._open_loop()
        return await run_on(loop, partial(loop.session.fetch_variables, key=key))

    async def assign(self, values: Mapping[str, Any], *, key: Hashable = None) -> None:
        """Set variables, or those of `key`, to new `values`, like `Session.assign`."""
        loop = self._open_loop()
        await run_on(loop, partial(loop.session.assign, values, key=key))

    async def list_keys(self) -> tuple[Hashable, ...]:
        """Return the keys of streams by key, like `Session.list_keys`."""
        loop = self._open_loop()
        return await run_on(loop, loop.session.list_keys)

    async def drop_keys(self, keys: Iterable[Hashable] | None = None) -> None:
        """Forget the state of `keys`, or of all, like `Session.drop_keys`."""
        loop = self._open_loop()
        await run_on(loop, partial(loop.session.drop_keys, keys))

    async def reset_variables(self, names: Iterable[str] | None = None) -> None:
        """Reset all variables, or `names`, to initial values, like `Session.reset_variables`."""
        loop = self._open_loop()
        await run_on(loop, partial(loop.session.reset_variables, names))

    async def carry_variables(self, values: Mapping[str, Any]) -> Carried:
        """Set variables from the `values` of another graph, like `Session.carry_variables`."""
        loop = self._open_loop()
        return await run_on(loop, partial(loop.session.carry_variables, values))

    async def save_variables(self, path: str | os.PathLike[str]) -> None:
        """Write the values of all variables to file `path`, like `Session.save_variables`."""
        loop = self._open_loop()
        await run_on(loop, partial(loop.session.save_variables, path))

    async def load_variables(self, path: str | os.PathLike[str]) -> None:
        """Set variables to the values in file `path`, like `Session.load_variables`."""
        loop = self._open_loop()
        await run_on(loop, partial(loop.session.load_variables, path))

    def profile(self) -> Profile:
        """Return the times of everything that ran, like `Session.profile`; also after the end."""
        return (self._ended or self._open_loop()).session.profile()

    async def status(self) -> Status:
        """Return the current state, like `Session.status`."""
        status: Status = await wrap_future(self._open_loop().status())
        return status

    def _open_loop(self) -> LoopThread[Session]:
        if self._loop is None:
            raise SessionError(
                "the session is not open", fix="async with AsyncioSession(plan) as session"
            )
        return self._loop


def get_loop(session: AsyncioSession) -> LoopThread[Session]:
    return session._open_loop()


async def run_on(loop: LoopThread[Session], work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on `loop`; if cancelled, return after it has ended."""
    job: LoopJob[T] = loop.start(work)
    outcome = wrap_future(job.outcome)
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        job.cancel()
        await wait_until_done(outcome)
        raise


def _on_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, function)
