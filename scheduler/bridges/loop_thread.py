"""A trio loop on a thread of its own, with an open session, for callers that run no trio loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import trio

from ...devices.forking import give_up_in_children
from ..errors import SessionError, forked_session_error
from ..plans.plan import Plan
from ..runtime.events import Observer
from ..runtime.faults import FaultPolicy
from ..runtime.streaming.stream import Results
from .event_loop import run_loop

T = TypeVar("T")


class Looped(Protocol):
    """What runs items on a loop: a session, or a pool of replicas."""

    @property
    def plan(self) -> Plan:
        """What it runs."""
        ...

    @property
    def stream(self) -> Callable[..., AbstractAsyncContextManager[Results]]:
        """Run the items of a source."""
        ...

    def status(self) -> Any:
        """Return what happens at this moment."""
        ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None: ...


S = TypeVar("S", bound=Looped)


class SessionArguments(TypedDict, total=False):
    """The arguments of a `Session`, but for the plan."""

    measure: bool
    trace: bool
    on_event: Observer | None
    faults: FaultPolicy | None
    seed: int


class LoopJob(Generic[T]):
    """Something that runs on the loop; methods may be called from any thread.

    Attributes
    ----------
    outcome : Future
        What came of it. It is done when everything has ended, also after a `cancel`.
    """

    def __init__(
        self,
        function: Callable[[], Awaitable[T]],
        call_soon: Callable[[Callable[[], object]], object],
        leave: Callable[[object], object],
    ) -> None:
        self.outcome: Future[T] = Future()
        self.outcome.set_running_or_notify_cancel()  # or a waiter that gives up would cancel it
        self._function = function
        self._call_soon = call_soon
        self._leave = leave
        self._scope = trio.CancelScope()

    def result(self) -> T:
        """Wait for what comes of it and return it; Ctrl-C cancels it, and waits for its end."""
        try:
            return self.outcome.result()
        except KeyboardInterrupt:
            self.cancel()
            self.outcome.exception()
            raise

    def cancel(self) -> None:
        """Have it end early; does not wait."""
        with suppress(SessionError):
            self._call_soon(self._scope.cancel)

    def refuse(self) -> None:
        """Let it never run."""
        self._leave(self)
        self.outcome.set_exception(closed_session_error())

    async def run(self) -> None:
        """Run it, on the loop."""
        try:
            with self._scope:
                result = await self._function()
        except BaseException as error:
            if _is_cancelled(error):  # the session is being closed
                self.refuse()
            else:
                self._leave(self)
                self.outcome.set_exception(error)
        else:
            if self._scope.cancelled_caught:
                self.refuse()
            else:
                self._leave(self)
                self.outcome.set_result(result)


class LoopThread(Generic[S]):
    """The thread and what runs on it; it knows nothing of who uses it, who may be collected.

    While the loop has nothing to do with the session, a thread of the caller's may have it.

    Parameters
    ----------
    session : Session or ReplicaPool
        It is opened there.

    Attributes
    ----------
    is_inherited : bool
        True in a child that was forked: the thread is the parent's, and nothing comes of waiting.

    Raises
    ------
    PlaitError
        Whatever opening a session raises.
    """

    def __init__(self, session: S) -> None:
        self.session = session
        self._stop = trio.Event()
        self._opened: Future[trio.lowlevel.TrioToken] = Future()
        self._failure: BaseException | None = None
        self._nursery: trio.Nursery | None = None
        self._busy: set[object] = set()  # those for whom the loop works with the session
        self._turn = threading.Lock()  # held by a thread of the caller's that has it
        self._holder = 0
        self._is_closing = False
        self.is_inherited = False
        give_up_in_children(self)
        # A daemon, so that the interpreter, when it ends, gets to close it.
        self._thread = threading.Thread(target=self._work, name="plait-session", daemon=True)
        self._thread.start()
        try:
            self._token = self._opened.result()
        except BaseException:
            with suppress(Exception):  # it may have opened, if Ctrl-C is what brought us here
                self._opened.result().run_sync_soon(self._stop.set)
            self._thread.join()
            raise

    def start(self, function: Callable[[], Awaitable[T]]) -> LoopJob[T]:
        """Run something on the loop.

        Raises
        ------
        SessionError
            If the session is closed.
        """
        job = LoopJob(function, self.call_soon, self.leave)
        self.claim(job)
        self.call_soon(lambda: self._spawn(job))
        return job

    def claim(self, who: object) -> None:
        """Keep the session for the loop until `leave`; the loop must `wait_for_turn` then."""
        self._busy.add(who)

    def leave(self, who: object) -> None:
        """Need the session no more; leaving twice is allowed."""
        self._busy.discard(who)

    def wait_for_turn(self) -> None:
        """Wait, on the loop, until no thread of the caller's has the session."""
        with self._turn:
            pass

    def try_here(self, function: Callable[[], T | None]) -> T | None:
        """Call what uses the session on this thread; None if the loop works with it.

        It should not take long: the loop, and other threads, wait for its end.

        Raises
        ------
        SessionError
            In a process that was forked from the one with the loop; in what `function` calls.
        """
        self.check_own()
        self.check_outside()
        if self._busy:
            return None
        with self._turn:  # of a lock that is held like this, Ctrl-C at any moment lets go
            self._holder = threading.get_ident()
            return None if self._busy or self._is_closing else function()

    def check_outside(self) -> None:
        """Raise SessionError in what runs on a thread that has the session: it waits for itself."""
        if self._turn.locked() and self._holder == threading.get_ident():
            raise SessionError(
                "a function that an item calls would wait for the session of that item",
                fix="open another session for what it runs, or submit() it",
            )

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop.

        Raises
        ------
        SessionError
            If the session is closed.
        """
        self.check_own()
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise closed_session_error() from None

    def check_own(self) -> None:
        """Raise SessionError in a process that was forked from the one with the loop."""
        if self.is_inherited:
            raise forked_session_error()

    def status(self) -> Future[Any]:
        """Return what happens when the loop comes to it.

        Raises
        ------
        SessionError
            If the session is closed.
        """
        return self.start(self._status).outcome

    def close(self) -> None:
        """End everything and free it; closing twice is allowed."""
        if self.is_inherited:
            return
        # Before the loop is told: no thread begins an item that nobody would wait for.
        self._is_closing = True
        with suppress(SessionError):
            self.call_soon(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def give_up(self) -> None:
        """Leave the loop to the parent of this process, which was forked."""
        self.is_inherited = True

    def _work(self) -> None:
        try:
            run_loop(self._main)
        except BaseException as error:
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)

    async def _main(self) -> None:
        async with self.session:
            try:
                async with trio.open_nursery() as self._nursery:
                    self._opened.set_result(trio.lowlevel.current_trio_token())
                    await self._stop.wait()
                    self._nursery.cancel_scope.cancel()
            finally:
                self._nursery = None

    async def _status(self) -> Any:
        return self.session.status()

    def _end(self) -> None:
        self.wait_for_turn()
        self._stop.set()

    def _spawn(self, job: LoopJob[T]) -> None:
        self.wait_for_turn()
        # Closed since it was asked for.
        if self._nursery is None or self._stop.is_set():
            job.refuse()
        else:
            self._nursery.start_soon(job.run)


def closed_session_error() -> SessionError:
    """Return what callers see whose session is closed."""
    return SessionError("the session is closed", fix="open another one")


def _is_cancelled(error: BaseException) -> bool:
    """Return whether nothing else went wrong than that a task was cancelled."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)
