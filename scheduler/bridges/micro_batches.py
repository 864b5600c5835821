"""Micro-batches: items that many callers request at the same time run at once, on any loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import trio

from ...graph.values.tensor import Array
from ..errors import SessionError
from ..runtime.plan_holder import Uncopied
from ..runtime.session import Session, get_carrier
from ..runtime.streaming.batch_server import (
    BatchLimits,
    BatchServer,
    MicroBatchesStatus,
    open_batches,
)
from .blocking_session import BlockingSession, check_no_trio, get_loop, run_on
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from .asyncio_session import AsyncioSession

S = TypeVar("S")

Outputs: TypeAlias = dict[str, Array]

Caller: TypeAlias = Callable[[Callable[[], Awaitable[Outputs]]], Awaitable[Outputs]]
"""Awaits something on the loop of the batches."""


class _Batches(Uncopied, Generic[S]):
    INSTEAD = "make one for each session, of a plan that is copied or saved"

    def __init__(
        self,
        session: S,
        *,
        size: int,
        max_delay_s: float = 0.0,
        max_waiting: int = 256,
        pad: str | None = None,
    ) -> None:
        self._session = session
        self._limits = BatchLimits(size, max_delay_s, max_waiting, pad)
        self._server: BatchServer | None = None

    def status(self) -> MicroBatchesStatus:
        """Return the current state and the totals so far; also after closing."""
        return _get_open(self._server).status()


class MicroBatches(_Batches["Session | AsyncioSession"]):
    """Runs single items of many tasks in batches, within ``async with``.

    Items are stacked along the first axis of each input, and outputs are split there. A batch
    starts when the session has a slot for it and it is full or its first item has waited long
    enough. Its items are chosen at that moment.

    Parameters
    ----------
    session : Session or AsyncioSession
        Open; others may use it as well.
    size : int
        The largest number of rows of a batch: items, if each has a first axis of length 1.
    max_delay_s : float, default 0.0
        How long the first item of a batch waits for others although there is a slot. By default not
        at all: a batch consists of the items that came while others ran.
    max_waiting : int, default 256
        The largest number of waiting items; more are refused.
    pad : str, optional
        As for `Session.stream`.

    Raises
    ------
    SessionError
        If the arguments are invalid; on entering, if the graph takes no batches.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> import trio
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", ("batch", 1)), 2.0))
    >>> plan = pl.plan(b.build(), bounds={"batch": 8})
    >>> async def main():
    ...     async with pl.Session(plan) as session, pl.MicroBatches(session, size=8) as batches:
    ...         outputs = await batches.run({"x": np.array([[3]], "float32")}, client="a user")
    ...     print(outputs["y"])
    >>> trio.run(main)
    [[6.]]

    Notes
    -----
    Items whose other axes differ go into different batches. If a batch fails, its items run again,
    each alone, so that only faulty items fail; if the graph has effects, which would happen twice,
    all items fail. The result of a row must not depend on other rows.
    """

    _context: AbstractAsyncContextManager[tuple[BatchServer, Caller | None]] | None = None

    async def __aenter__(self) -> MicroBatches:
        if self._context is not None:
            raise _already_open_error()
        session, limits = self._session, self._limits
        if isinstance(session, Session):
            context = _open_here(session, limits)
        else:
            context = _open_elsewhere(session, limits)
        self._server, self._caller = await context.__aenter__()
        self._context = context
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._context is not None, "it was entered"
        await self._context.__aexit__(kind, error, traceback)

    async def run(
        self, inputs: Mapping[str, Any], *, deadline_s: float | None = None, client: Hashable = None
    ) -> Outputs:
        """Run an item together with others, and return its outputs by name.

        The outputs are copies of the item's own rows, so keeping them does not keep the batch. When
        the call is cancelled, or late, it returns at once, and the other items continue; the batch
        itself is cancelled when no caller waits for it any more.

        Parameters
        ----------
        inputs : Mapping of str to array
            One array per graph input, all with the same number of rows; do not change them until
            the call returns.
        deadline_s : float, optional
            Fail with a DeadlineError after this many seconds, including those in the queue. An item
            that is late in the queue never runs.
        client : Hashable, optional
            The caller's identity; clients are served in rotation, however much each of them
            requests.

        Raises
        ------
        FeedError
            If an input is missing, unknown, or of the wrong dtype or shape, or there are more rows
            than fit into a batch; raised before waiting.
        QueueFullError
            If too many items wait.
        DeadlineError
            If the item misses its deadline.
        SessionError
            If the batches or the session are closed.
        PlaitError
            Any error of running the item alone, after its batch failed.
        """
        run = partial(_get_open(self._server).run, inputs, deadline_s=deadline_s, client=client)
        return await (run() if self._caller is None else self._caller(run))


class BlockingMicroBatches(_Batches[BlockingSession]):
    """Runs single items of many threads in batches, within ``with``.

    Parameters
    ----------
    session : BlockingSession
        Open; others may use it as well.
    size, max_delay_s, max_waiting
        As for `MicroBatches`, which describes how batches are made.

    Raises
    ------
    SessionError
        If the arguments are invalid; on entering, if the graph takes no batches.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", ("batch", 1)), 2.0))
    >>> plan = pl.plan(b.build(), bounds={"batch": 8})
    >>> with (
    ...     pl.BlockingSession(plan) as session,
    ...     pl.BlockingMicroBatches(session, size=8) as batches,
    ... ):
    ...     print(batches.run({"x": np.array([[3]], "float32")})["y"])
    [[6.]]
    """

    _held: _BatchesOnLoop | None = None

    def __enter__(self) -> BlockingMicroBatches:
        check_no_trio()
        if self._held is not None:
            raise _already_open_error()
        self._loop = get_loop(self._session)
        held = _BatchesOnLoop(self._loop, self._limits)
        try:
            # Ctrl-C may come while this waits: started work has to end before the session does.
            self._server = held.opened.result()
        except BaseException:
            held.close()
            held.closed.exception()
            raise
        self._held = held
        return self

    def __exit__(self, *_: object) -> None:
        assert self._held is not None, "it was entered"
        if not self._loop.is_inherited:
            self._held.close()
            self._held.closed.exception()

    def run(
        self, inputs: Mapping[str, Any], *, deadline_s: float | None = None, client: Hashable = None
    ) -> Outputs:
        """Run `inputs` of `client` in a batch within `deadline_s`, like `MicroBatches.run`.

        Raises
        ------
        SessionError
            If the batches or the session are closed, or the caller is a trio task, which would be
            blocked.
        PlaitError
            Any error of running.
        """
        server = _get_open(self._server)
        return run_on(self._loop, partial(server.run, inputs, deadline_s=deadline_s, client=client))


class _BatchesOnLoop:
    """Batches on the loop of a session that runs on a thread of its own."""

    def __init__(self, loop: LoopThread[Session], limits: BatchLimits) -> None:
        self._carrier = get_carrier(loop.session)
        self._limits = limits
        self.opened: Future[BatchServer] = Future()
        # From here on the future cannot be cancelled, so that its result can always be set.
        self.opened.set_running_or_notify_cancel()
        self._job = loop.start(self._serve)
        self._job.outcome.add_done_callback(self._end)

    @property
    def closed(self) -> Future[None]:
        return self._job.outcome

    def close(self) -> None:
        """End everything, without waiting."""
        self._job.cancel()

    async def _serve(self) -> None:
        async with open_batches(self._carrier, self._limits) as server:
            self.opened.set_result(server)
            await trio.sleep_forever()

    def _end(self, outcome: Future[None]) -> None:
        # It ended before it was open: fail the waiting caller.
        if not self.opened.done():
            self.opened.set_exception(outcome.exception() or SessionError("it was closed"))


@asynccontextmanager
async def _open_here(
    session: Session, limits: BatchLimits
) -> AsyncIterator[tuple[BatchServer, Caller | None]]:
    async with open_batches(get_carrier(session), limits) as server:
        yield server, None


@asynccontextmanager
async def _open_elsewhere(
    session: AsyncioSession, limits: BatchLimits
) -> AsyncIterator[tuple[BatchServer, Caller | None]]:
    import asyncio  # for who has its loop; others do without

    from . import asyncio_session
    from .asyncio_results import wait_until_done, wrap_future

    loop = asyncio_session.get_loop(session)
    held = _BatchesOnLoop(loop, limits)
    try:
        # A caller that stops waiting must not cancel the future that the loop's thread will set.
        server = await asyncio.shield(wrap_future(held.opened))
        yield server, partial(asyncio_session.run_on, loop)
    finally:
        if not loop.is_inherited:
            held.close()
            await wait_until_done(wrap_future(held.closed))


def _get_open(server: BatchServer | None) -> BatchServer:
    if server is None:
        raise SessionError("the batches are not open", fix="enter them: with ... as batches")
    return server


def _already_open_error() -> SessionError:
    return SessionError("the batches are open already", fix="make others")
