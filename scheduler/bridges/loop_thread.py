"""A trio loop on a separate thread, with an open session, for callers without one."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import trio

from ...devices.forking import register_for_forks
from ...devices.lane import is_work, start_thread
from ...graph.values.errors import InternalError, PlaitError
from ..errors import SessionError, forked_session_error, make_broken_session_error
from ..plans.plan import Plan
from ..runtime.events import Observer
from ..runtime.faults import FaultPolicy
from ..runtime.queue import QueuePlace
from ..runtime.session import is_caller
from ..runtime.streaming.stream import Results
from .owners import Bell, OwnerRef

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Looped(Protocol):
    """A session or a pool of replicas, which runs items on a loop."""

    @property
    def plan(self) -> Plan: ...

    @property
    def stream(self) -> Callable[..., AbstractAsyncContextManager[Results]]: ...

    def status(self) -> Any: ...

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
    """A function that runs on the loop; methods may be called from any thread.

    The `outcome` is done when everything has ended, also after a `cancel`.
    """

    def __init__(
        self,
        function: Callable[[], Awaitable[T]],
        loop: LoopThread[Any],
        place: QueuePlace | None,
        owner: OwnerRef | None,
    ) -> None:
        self.outcome: Future[T] = Future()
        self.outcome.set_running_or_notify_cancel()  # or a cancelled waiter would cancel it
        self._function = function
        self._loop = loop
        self._place = place
        self._owner = owner
        self._scope = trio.CancelScope()

    def result(self) -> T:
        """Wait for the result and return it; Ctrl-C cancels the job and waits for its end."""
        try:
            return self.outcome.result()
        except KeyboardInterrupt:
            self.cancel()
            self.outcome.exception()
            raise

    def cancel(self) -> None:
        with suppress(PlaitError):
            self._loop.call_soon(self._scope.cancel)

    def cancel_if_abandoned(self) -> None:
        """Cancel it if its owner has been collected; on the loop."""
        if self._owner is not None and self._owner() is None:
            self._scope.cancel()

    def begin(self, nursery: trio.Nursery) -> None:
        if self._place is not None:
            self._place.enter()
        nursery.start_soon(self._run)

    def fail(self, error: BaseException) -> None:
        """End the job with `error`, unless it has ended; call it on the loop, or after its end."""
        self._loop.forget(self)
        self._owner = None
        if not self.outcome.done():
            self.outcome.set_exception(error)

    async def _run(self) -> None:
        try:
            with self._scope:
                result = await self._function()
        except BaseException as error:
            is_closing = _is_cancelled(error)
            self.fail(self._loop.closed_error() if is_closing else error)
        else:
            if self._scope.cancelled_caught:
                self.fail(self._loop.closed_error())
                return
            self._loop.forget(self)
            self._owner = None
            if not self.outcome.done():
                self.outcome.set_result(result)


class LoopThread(Generic[S]):
    """A thread with an open session, which ends when its owner is collected.

    While the loop does not use the session, a thread of the caller's may.

    Parameters
    ----------
    session : Session or ReplicaPool
        It is opened on the thread.

    Attributes
    ----------
    is_inherited : bool
        True in a forked child: the thread is the parent's, and waiting would never end.
    streamed : tuple of object
        Identifies the opening of a plan that the last stream did without an error.
    replicas : SimpleQueue of int
        The replicas on which no thread runs an item.
    """

    def __init__(self, session: S, owner: object) -> None:
        self.session = session
        self._bell = Bell()
        self._owner = OwnerRef.to(owner, self._bell.ring)
        self._opening = trio.CancelScope()
        self._stop = trio.Event()
        self._opened: Future[trio.lowlevel.TrioToken] = Future()
        self._opened.set_running_or_notify_cancel()  # waiters must not cancel it
        self._failure: BaseException | None = None
        self._breakdown: InternalError | None = None
        self._nursery: trio.Nursery | None = None
        # Sets and their single operations are atomic. Neither is iterated while a thread may add.
        self._busy: set[object] = set()  # for these the loop works with the session
        self._jobs: set[LoopJob[Any]] = set()
        self._turn = threading.Lock()  # held by a thread of the caller's that has the session
        self._holder = 0
        # Threads share a turn: their number, and their stream, or this loop.
        self._sharing = threading.Lock()
        self._sharers, self._shared_by = set[object](), object()
        self._callers = set[int]()  # threads that have a turn alone, or wait for one
        self._is_closing = self._has_ended = False
        self.is_inherited = False
        self.streamed: tuple[object, ...] = ()
        self.replicas: SimpleQueue[int] = SimpleQueue()
        # A daemon, so that the interpreter can close it at its end.
        self._thread = threading.Thread(target=self._work, name="plait-session", daemon=True)
        self._ident = 0

    def open(self) -> None:
        """Start the thread and wait until the session is open.

        Raises the errors of opening a session.
        """
        register_for_forks(self)
        try:
            start_thread(self._thread, "the session")
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def start(
        self,
        function: Callable[[], Awaitable[T]],
        place: QueuePlace | None = None,
        owner: object = None,
    ) -> LoopJob[T]:
        """Run a function on the loop, and return its job.

        A `place` is entered on the loop, in the order of these calls. The job is cancelled when an
        `owner` is collected. Raises SessionError if the session is closed, InternalError if an
        exception of plait's own has closed it.
        """
        ref = None if owner is None else OwnerRef.to(owner, self._bell.ring)
        job = LoopJob(function, self, place, ref)
        try:
            self.claim(job)
            self._jobs.add(job)
            self.call_soon(partial(self._spawn, job))
        except BaseException:
            self.forget(job)
            raise
        return job

    def claim(self, user: object) -> None:
        """Reserve the session for `user` until `leave`; the loop must then `wait_for_turn`."""
        self._busy.add(user)

    def leave(self, user: object) -> None:
        self._busy.discard(user)

    def forget(self, job: LoopJob[Any]) -> None:
        self.leave(job)
        self._jobs.discard(job)

    def wait_for_turn(self) -> None:
        """Wait, on the loop, until no thread of the caller's uses the session."""
        with self._turn:
            pass

    def try_here(self, function: Callable[..., T | None], *arguments: Any) -> T | None:
        """Call a function that uses the session on this thread; None if the loop is using it.

        It should be short: the loop, and other threads, wait for its end.

        Raises SessionError in a process that was forked from the one with the loop; in `function`.
        """
        if self.is_inherited:
            raise forked_session_error()
        thread = threading.get_ident()
        if thread == self._holder or thread == self._ident or self._sharers:
            self.check_outside()
        if self._busy or self._breakdown is not None:
            return None
        self._callers.add(thread)  # first this, then look: threads that share a turn do so, too
        try:
            if self._sharers:
                return None
            with self._turn:  # Ctrl-C at any moment releases a lock held like this
                try:
                    self._holder = thread
                    return None if self._busy or self._is_closing else function(*arguments)
                finally:
                    self._holder = 0  # or this thread would be taken for the next one to hold it
        finally:
            self._callers.discard(thread)

    def join_turn(self, stream: object) -> bool:
        """Let this thread share a turn with others, or those of `stream`, until `leave_turn`.

        Returns False if the loop, or another thread, uses the session or waits for it. Raises
        SessionError in a function of an item on this thread.
        """
        thread = threading.get_ident()
        if thread in self._sharers:
            self.check_outside()
        # Items that wait for earlier ones share a turn with those of their stream alone.
        user = stream if self.session.plan.ordered_functions else self
        with self._sharing:
            if self._busy or self._is_closing or self._breakdown is not None or self.is_inherited:
                return False
            is_first = not self._sharers
            if not is_first and self._shared_by is not user:
                return False
            self._sharers.add(thread)
            if is_first:
                if self._callers or not self._turn.acquire(blocking=False):
                    self._sharers.discard(thread)
                    return False
                self._shared_by = user
        if self._busy or self.is_closed:  # since the turn was taken the loop waits for its end
            self.leave_turn()
            return False
        return True

    def leave_turn(self) -> None:
        """End this thread's share of the turn; the last thread releases it."""
        with self._sharing:
            self._sharers.discard(threading.get_ident())
            if not self._sharers:
                self._turn.release()

    def pass_turn(self, giver: object, taker: object) -> None:
        """Let `taker`, a thread or an item that is parked, share the turn instead of `giver`."""
        with self._sharing:
            self._sharers.discard(giver)
            self._sharers.add(taker)

    def check_outside(self) -> None:
        """Raise SessionError in a function that an item calls, since it would wait for itself."""
        thread = threading.get_ident()  # a later one may have that of the loop, which has ended
        is_on_loop = threading.current_thread() is self._thread
        is_in_item = thread == self._holder or thread in self._sharers
        if is_on_loop or is_in_item or is_caller(self.session):
            raise SessionError(
                "a function that an item calls would wait for the session of that item",
                fix="open another session for what it runs, or submit() it",
            )

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call `function` on the loop; raise SessionError or InternalError if that has ended."""
        self.check_own()
        if self._has_ended or self._breakdown is not None:
            raise self.closed_error()
        try:
            token = self._opened.result()
            token.run_sync_soon(self._call, function)
        except trio.RunFinishedError:
            raise self.closed_error() from None

    def check_own(self) -> None:
        if self.is_inherited:
            raise forked_session_error()

    @property
    def is_closed(self) -> bool:
        return self._is_closing or self._breakdown is not None

    def closed_error(self) -> PlaitError:
        if self._breakdown is not None:
            return self._breakdown.again()
        return SessionError("the session is closed", fix="open another one")

    def status(self) -> Future[Any]:
        """Return a future of the current state.

        Raises SessionError if the session is closed.
        """
        return self.start(self._status).outcome

    def close(self) -> None:
        """End everything and free it; closing twice is allowed.

        An interrupted call ends it all the same, and another call waits again. Raises SessionError
        in a function of an item.
        """
        if self.is_inherited:
            return
        if threading.current_thread() is not self._thread or is_work():
            self.check_outside()
        # Before the loop ends: no thread begins an item without a consumer.
        self._is_closing = True
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            with suppress(RuntimeError):  # not started: it ends at once if that is yet to happen
                self._thread.join()
            if self._failure is not None:
                raise self._failure

    def give_up(self) -> None:
        """Detach from the loop in a forked child: it belongs to the parent."""
        self.is_inherited = True
        self._sharing = threading.Lock()
        self._bell.mute()

    def _work(self) -> None:
        self._ident = threading.get_ident()
        atexit.register(self.close)
        try:
            if not self._is_abandoned:
                run_loop(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            # Nothing may wait any more, however the loop ended.
            self._has_ended = True
            self._fail_jobs()
            if not self._opened.done():
                failure, self._failure = self._failure, None
                self._opened.set_exception(failure or self.closed_error())
            atexit.unregister(self.close)

    async def _main(self) -> None:
        trio.lowlevel.spawn_system_task(self._bell.answer, self._look_for_owners)
        with self._opening:  # around all that the session may open of its own meanwhile
            async with self.session:
                try:
                    async with trio.open_nursery() as self._nursery:
                        self._opened.set_result(trio.lowlevel.current_trio_token())
                        await self._stop.wait()
                        self.wait_for_turn()
                        self._nursery.cancel_scope.cancel()
                finally:
                    self._nursery = None

    @property
    def _is_abandoned(self) -> bool:
        return self._is_closing or self._owner() is None

    def _look_for_owners(self) -> None:
        if self._is_abandoned:
            self._is_closing = True  # for threads with items of streams that were dropped, too
            self._stop.set()
            if not self._opened.done():
                self._opening.cancel()
        for job in self._jobs.copy():
            job.cancel_if_abandoned()

    async def _status(self) -> Any:
        return self.session.status()

    def _call(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            logger.critical("plait failed on the loop of a session", exc_info=error)
            self._breakdown = make_broken_session_error(error)
            self._fail_jobs()
            self._stop.set()

    def _fail_jobs(self) -> None:
        while self._jobs:
            with suppress(KeyError):
                self._jobs.pop().fail(self.closed_error())

    def _spawn(self, job: LoopJob[T]) -> None:
        with self._turn:  # Ctrl-C may have had its caller give the session back
            self.claim(job)
        # It was closed meanwhile.
        if self._nursery is None or self._stop.is_set():
            job.fail(self.closed_error())
        else:
            job.begin(self._nursery)


def _is_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


def run_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run trio's event loop on this thread until `function` is done, and return its result.

    Raises SessionError if the system has no descriptors left for a loop.
    """
    is_running = False

    async def main() -> T:
        nonlocal is_running
        is_running = True
        return await function()

    try:
        return trio.run(main)
    except OSError as error:
        if is_running:  # then it is what the function raised
            raise
        raise SessionError(
            f"no event loop can be started: {error.strerror}",
            fix="close sessions and files, or raise the limit of open files: ulimit -n",
        ) from error
