"""Submitted items: their futures, and the threads that run them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import Empty
from threading import TIMEOUT_MAX, RLock, current_thread, main_thread
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from ...devices.host import count_cores
from ...graph.values.errors import PlaitError
from ..dispatch.inline_policy import ON_LOOP, STREAMED
from ..dispatch.way_choice import LEAST_PATIENCE, MOST_PATIENCE
from ..errors import DeadlineError
from ..plans.fetches import Fetched, Fetches
from ..profile.timestamps import Timestamps
from ..runtime.opened.fetch_plan_cache import ALL
from ..runtime.queue import ItemQueue, QueuePlace, check_priority
from ..runtime.running.inline_runner import InlineTerms, StreamThread
from ..runtime.session import get_carrier, run_in_turn
from ..runtime.streaming.item_run import run_now
from .inline import count_threads
from .item_threads import ItemThreads, ReleaseOnce
from .loop_thread import LoopJob, LoopThread

logger = logging.getLogger(__name__)


class SubmittedItem(Future[Any]):
    """The future of an item, a `concurrent.futures.Future`.

    It counts as pending until it is done, so that it can be cancelled at any time before: steps
    that have not started are then skipped, and `result` raises CancelledError at once. `owner` is
    kept alive meanwhile. The `submitter` has it until it is done.
    """

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner: object = owner
        self._job: LoopJob[Any] | None = None
        self.submitter: ItemSubmitter | None = None
        self.is_late = False

    def follow(self, job: LoopJob[Any]) -> None:
        self._job = job
        job.outcome.add_done_callback(self._settle)
        if self.cancelled() or self.is_late:
            job.cancel()

    def cancel(self) -> bool:
        """Cancel the item unless it is done; return whether it was cancelled."""
        cancelled = super().cancel()
        if cancelled:
            self._give_up()
        return cancelled

    def _give_up(self) -> None:
        job, submitter = self._job, self.submitter
        if job is not None:
            job.cancel()
        elif submitter is not None:
            submitter.withdraw(self)

    def check(self) -> None:
        """Raise CancelledError if it was cancelled."""
        if self.cancelled():
            raise CancelledError

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Set the `result` or the `error`, unless the item was cancelled."""
        self._job = self._owner = self.submitter = None
        if not self.set_running_or_notify_cancel():
            return
        try:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        except BaseException:  # of a callback: futures take care of an Exception alone
            logger.exception("a callback of a submitted item failed")

    def _settle(self, outcome: Future[Any]) -> None:
        error = outcome.exception()
        self.settle(None if error is not None else outcome.result(), error)


class AwaitedItem(SubmittedItem):
    """An item that its caller waits for, up to a deadline.

    It is `ended` when no step of it runs any more, also if it was cancelled. `check_time` raises
    when `deadline_s` are over.
    """

    def __init__(
        self,
        owner: object,
        deadline_s: float | None,
        check_time: Callable[[], object] | None,
    ) -> None:
        super().__init__(owner)
        self.ended: Future[None] = Future()
        self._deadline_s, self._check_time = deadline_s, check_time

    def wait(self) -> None:
        """Wait until it has ended, and fail it if that takes longer than its deadline."""
        try:
            self.ended.result(self._deadline_s and min(self._deadline_s, TIMEOUT_MAX))
        except TimeoutError:
            self.expire()
            self.ended.result()

    def expire(self) -> None:
        """Fail the item, which is late: at once if it waits, or after the step that runs."""
        self.is_late = True
        self._give_up()

    def check(self) -> None:
        super().check()
        if self._check_time is not None:
            self._check_time()

    def settle(self, result: Any, error: BaseException | None) -> None:
        if self._check_time is not None and (error is None or self.is_late):
            try:
                self._check_time()
            except DeadlineError as late:
                error = late
        super().settle(result, error)
        self.ended.set_result(None)


_Calls: TypeAlias = Sequence[Callable[[], object]]


class _Request(NamedTuple):
    item: SubmittedItem
    inputs: Mapping[str, Any]
    fetches: Fetches | None
    deadline_s: float | None
    place: QueuePlace
    marks: Timestamps


def _begin() -> None:
    """Do nothing: items of several callers begin in any order."""


class ItemSubmitter:
    """Runs submitted items of a session, on threads if there are any, otherwise on its loop.

    Items start in order. After one that the loop has to run, some later ones are handed over to it,
    too; threads go on when the loop has run all of these. `owner` must not be referred to: threads
    end when it is collected.
    """

    def __init__(self, loop: LoopThread[Any], owner: object) -> None:
        self._loop = loop
        self._places = ItemQueue()
        self._carrier = get_carrier(loop.session)
        self._count = count_threads(loop.session)
        for number in range(self._count):
            loop.replicas.put(number)
        # Where lanes use more cores than threads would, only brief items run on threads.
        at_once = min(len(loop.session.plan.every_device), count_cores())
        self._limit = STREAMED if self._count >= at_once else ON_LOOP
        self.threads = ItemThreads(self._count, owner, loop.call_soon)
        self._lock = RLock()  # a job that is over calls back at once
        self._waiting: deque[_Request] = deque()
        self._on_threads = self._at_loop = 0
        self._left = 0  # items that are yet to be handed over
        self._patience = LEAST_PATIENCE

    @property
    def may_wait(self) -> bool:
        """Whether this thread may wait for an item; not one that runs items."""
        return self._count > 1 and not self.threads.has_caller

    def submit(
        self,
        item: SubmittedItem,
        inputs: Mapping[str, Any],
        fetches: Fetches | None,
        deadline_s: float | None,
        priority: int,
        marks: Timestamps | None = None,
    ) -> None:
        """Start `item` when its turn comes; `inputs` must not change until then.

        Its `marks` get the times. Raises SessionError if the session is closed.
        """
        place = self._places.place(check_priority(priority))
        if marks is None:
            now_ns = perf_counter_ns()
            marks = Timestamps(now_ns, now_ns)
        is_plain = deadline_s is None and priority == 0
        self._loop.check_own()
        with self._lock:
            if self._loop.is_closed:  # asked with the lock: `close` may have failed what waits
                raise self._loop.closed_error()
            item.submitter = self
            self._waiting.append(_Request(item, inputs, fetches, deadline_s, place, marks))
            if not self._count or self._left or not is_plain:
                calls = self._hand_over(len(self._waiting))
            else:
                calls = () if self._at_loop else self._wake(1)
        for call in calls:
            call()

    def run_here(
        self,
        inputs: Mapping[str, Any],
        fetches: Fetches | None,
        check: Callable[[], object] | None,
    ) -> tuple[Any] | None:
        """Run an item on this thread and return its result in a tuple, or None to submit it.

        Others may wait, or no replica may be free. Ctrl-C would leave the turn of the main thread.
        An error that `check` raises between steps ends the item.
        """
        has_others = self._on_threads or self._at_loop or self._left
        if has_others or current_thread() is main_thread():
            return None
        try:
            replica = self._loop.replicas.get_nowait()
        except Empty:
            return None
        try:
            now_ns = perf_counter_ns()
            marks = Timestamps(now_ns, now_ns)
            return self._try(inputs, fetches, marks, StreamThread(replica, _begin), check)
        finally:
            self._loop.replicas.put(replica)

    def withdraw(self, item: SubmittedItem) -> None:
        """End `item`, which was cancelled, if it waits for a thread."""
        with self._lock:
            rest = deque(one for one in self._waiting if one.item is not item)
            is_withdrawn, self._waiting = len(rest) < len(self._waiting), rest
        if is_withdrawn:
            item.settle(None, None)

    def close(self) -> None:
        """Close the loop, and fail the items that wait. Closing twice is allowed."""
        try:
            self._loop.close()
        finally:
            if self._loop.is_closed and not self._loop.is_inherited:
                with self._lock:
                    waiting, self._waiting = self._waiting, deque()
                for request in waiting:
                    request.item.settle(None, self._loop.closed_error())
                self.threads.close()

    def _wake(self, count: int) -> _Calls:
        for _ in range(count):
            self._on_threads += 1
            if not self.threads.put(self):  # the loop has ended, as the items will say
                return self._hand_over(len(self._waiting))
        return ()

    def run_next(self, begin: Callable[[], object], _: object) -> None:
        """Run the first item that waits, unless the loop has got it meanwhile."""
        replica = self._loop.replicas.get()
        try:
            self._run_first(replica, begin)
        finally:
            self._loop.replicas.put(replica)
            with self._lock:
                self._on_threads -= 1

    def _run_first(self, replica: int, begin: Callable[[], object]) -> None:
        self._lock.acquire()
        release = ReleaseOnce(self._lock.release)

        def begin_next() -> None:
            release()
            begin()

        try:
            if self._waiting and not self._at_loop:
                self._run(self._waiting.popleft(), replica, begin_next)
        finally:
            release()

    def refuse_next(self) -> None:
        """Hand all waiting items over to the loop, as no thread can start."""
        with self._lock:
            self._on_threads -= 1
            calls = self._hand_over(len(self._waiting))
        for call in calls:
            call()

    def _run(self, request: _Request, replica: int, begin: Callable[[], object]) -> None:
        """Run `request` on this thread, or hand it over to the loop, and later ones with it."""
        item = request.item
        thread = StreamThread(replica, begin)
        try:
            item.check()
            done = self._try(request.inputs, request.fetches, request.marks, thread, item.check)
        except BaseException as error:  # the future has it
            begin()
            item.settle(None, error)
            return
        if done is not None:
            self._patience = LEAST_PATIENCE
            item.settle(done[0], None)
            return
        with self._lock:
            self._left, self._patience = self._patience, min(2 * self._patience, MOST_PATIENCE)
            self._waiting.appendleft(request)
            calls = self._hand_over(self._left)
        begin()
        for call in calls:
            call()

    def _try(
        self,
        inputs: Mapping[str, Any],
        fetches: Fetches | None,
        marks: Timestamps,
        thread: StreamThread,
        check: Callable[[], object] | None,
    ) -> tuple[Any] | None:
        """Return the result of an item in a tuple, or None if the loop has to run it."""
        if not self._loop.join_turn(self):
            return None
        try:
            fetched = None
            if fetches is not None:
                fetched = Fetched(fetches, self._carrier.plan.fetchable)
            names = ALL if fetched is None else fetched.names
            terms = InlineTerms(names, self._limit, thread=thread, check=check)
            results = run_now(self._carrier, inputs, marks, terms)
            if results is None:
                return None
            marks.taken_ns = marks.released_ns = perf_counter_ns()
            return (results if fetched is None else fetched.arranged(results),)
        finally:
            self._loop.leave_turn()

    def _hand_over(self, count: int) -> _Calls:
        """Have the loop run the first `count` items that wait.

        The returned functions may call back users of the items: call them without the lock.
        """
        calls = []
        while count and self._waiting:  # one that is over at once may take some
            count -= 1
            item, inputs, fetches, deadline_s, place, _ = self._waiting.popleft()
            work = partial(run_in_turn, self._loop.session, inputs, fetches, deadline_s, place)
            try:
                job = self._loop.start(work, place)
            except PlaitError as error:  # the session is closed
                calls.append(partial(item.settle, None, error))
                continue
            self._left = max(self._left - 1, 0)
            self._at_loop += 1
            job.outcome.add_done_callback(self._note_done)
            calls.append(partial(item.follow, job))
        return calls

    def _note_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._at_loop -= 1
            calls = () if self._at_loop else self._wake(len(self._waiting))
        for call in calls:
            call()
