"""A session for synchronous code: its loop runs on a thread of its own, from opening to closing."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

import trio

from ...graph.tensor import Array
from ..carried import Carried
from ..errors import SessionError
from ..fetches import Fetches
from ..planning import Plan
from ..profile import Profile
from ..profile.status import Status
from ..session import Session, borrowed
from ..streaming.options import StreamArguments, stream_options
from ..streaming.sources import check_source
from .blocking_results import BlockingResults
from .loop_thread import Job, LoopThread, SessionArguments

T = TypeVar("T")


class BlockingSession:
    """Owns devices, arenas and lanes until it is closed, as a `Session` does.

    Parameters
    ----------
    plan : Plan
    **arguments
        As for a `Session`.

    Raises
    ------
    PlaitError
        Whatever opening a session raises.

    Examples
    --------
    ::

        with pl.BlockingSession(plan) as session:
            outputs = session.run({"x": image})
            for item in session.stream(frames, max_in_flight=4):
                show(item["boxes"])

    Notes
    -----
    Any thread may run items, several at once. One that is dropped without being closed is closed
    when it is collected, or when the interpreter ends.
    """

    def __init__(self, plan: Plan, **arguments: Unpack[SessionArguments]) -> None:
        self._loop = LoopThread(Session(plan, **arguments))
        self._close = weakref.finalize(self, self._loop.close)

    @overload
    def run(
        self, inputs: Mapping[str, Any], fetches: None = None, *, deadline_s: float | None = None
    ) -> dict[str, Array]: ...

    @overload
    def run(
        self, inputs: Mapping[str, Any], fetches: Fetches, *, deadline_s: float | None = None
    ) -> Any: ...

    def run(
        self,
        inputs: Mapping[str, Any],
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Any:
        """Run one item and return its outputs, or what is fetched, as `Session.run` does.

        Raises
        ------
        SessionError
            If the session is closed, or a trio task calls, which would be blocked.
        PlaitError
            Whatever running raises.
        """
        check_no_trio()
        session = self._loop.session
        own = borrowed(session, inputs)
        return self._done(partial(session.run, own, fetches, deadline_s=deadline_s))

    def stream(
        self, source: Iterable[Mapping[str, Any]], **arguments: Unpack[StreamArguments]
    ) -> BlockingResults:
        """Run the items of a source, several at a time; iterate over what is returned.

        Parameters
        ----------
        source : iterable of Mapping
            Asked for items on the thread that iterates, while that waits for the next result. A
            generator is closed at the end.
        **arguments
            As for `Session.stream`. Results are always copies.

        Raises
        ------
        SessionError
            If the session is closed, a trio task calls, or the arguments make no sense.
        PlaitError
            Whatever opening a stream raises.

        Notes
        -----
        A stream that is not iterated to its end is closed when it is dropped; used as a context
        manager, or by `close`, it is closed at once.
        """
        check_no_trio()
        check_source(source, blocking=True)
        options = stream_options(self._loop.session.plan, arguments)
        return BlockingResults(self._loop, source, options, owner=self)

    @property
    def variables(self) -> Mapping[str, Array]:
        """What all variables hold at one moment, as `fetch_variables` returns it."""
        return self.fetch_variables()

    def assign(self, values: Mapping[str, Any]) -> None:
        """Have variables hold other values, as `Session.assign` does."""
        self._done(partial(self._loop.session.assign, values))

    def fetch_variables(self) -> dict[str, Array]:
        """Return what all variables hold at one moment, as `Session.fetch_variables` does."""
        return self._done(self._loop.session.fetch_variables)

    def reset_variables(self, names: Iterable[str] | None = None) -> None:
        """Have variables hold again what they began with, as `Session.reset_variables` does."""
        self._done(partial(self._loop.session.reset_variables, names))

    def carry_variables(self, values: Mapping[str, Any]) -> Carried:
        """Have variables hold another graph's values, as `Session.carry_variables` does."""
        return self._done(partial(self._loop.session.carry_variables, values))

    def save_variables(self, path: str | os.PathLike[str]) -> None:
        """Write what all variables hold to a file, as `Session.save_variables` does."""
        self._done(partial(self._loop.session.save_variables, path))

    def load_variables(self, path: str | os.PathLike[str]) -> None:
        """Have variables hold what is in a file, as `Session.load_variables` does."""
        self._done(partial(self._loop.session.load_variables, path))

    def _done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for something on the loop, which Ctrl-C cancels."""
        check_no_trio()
        job: Job[T] = self._loop.start(work)
        return job.result()

    def profile(self) -> Profile:
        """Return when everything ran, as `Session.profile` does; also when it is closed."""
        return self._loop.session.profile()

    def status(self) -> Status:
        """Return what happens at this moment, as `Session.status` does."""
        check_no_trio()
        status: Status = self._loop.status().result()
        return status

    def close(self) -> None:
        """Free everything; what is under way is cancelled. Closing twice is allowed."""
        self._close()

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_no_trio() -> None:
    """Raise SessionError in trio tasks, which what waits here would block."""
    if trio.lowlevel.in_trio_run():
        raise SessionError(
            "this would block the trio task it is called from",
            fix="async with Session(plan) as session: await session.run(inputs)",
        )
