"""A lane on a thread: an in-order queue of work, one piece at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextvars import Context, ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from .errors import DeviceUnavailableError
from .event import Event
from .forking import register_for_forks

_Queue: TypeAlias = SimpleQueue[tuple[Event, Callable[[], Any]] | None]

_is_work: ContextVar[bool] = ContextVar("plait work", default=False)


def is_work() -> bool:
    """Return whether the caller is a lane's work on a thread that is not the lane's."""
    return _is_work.get()


class ThreadLane:
    """Runs work in order on its own thread, which starts with the first work.

    Parameters
    ----------
    cores : collection of int, optional
        The cores that the thread is bound to; all cores of the process if empty.
    """

    def __init__(self, name: str, cores: Collection[int] = ()) -> None:
        self._name = name
        self._cores = cores
        self._lock = threading.Lock()  # so that no work is queued after the end of the queue
        self._queue: _Queue | None = None
        self._thread: threading.Thread | None = None
        self._working = threading.Lock()
        # Context variables of the caller are neither seen nor set by work.
        self._elsewhere = Context()
        self._elsewhere.run(np.seterr, all="ignore")
        self._elsewhere.run(_is_work.set, True)

    def open(self) -> None:
        """Accept work from now on."""
        register_for_forks(self)  # before the lock, which a child may inherit held
        with self._lock:
            if self._queue is None:
                self._queue = SimpleQueue()

    def put(self, event: Event, work: Callable[[], Any]) -> None:
        """Queue `work`; `event` completes on the lane's thread.

        Raises
        ------
        DeviceUnavailableError
            If the lane is closed, or the system has no thread for it.
        """
        with self._lock:
            if self._queue is None:
                raise DeviceUnavailableError(
                    f"lane {self._name!r} is closed", fix="open its device"
                )
            if self._thread is None:  # short work may all have run inline
                self._thread = self._start(self._queue)
            self._queue.put((event, work))

    def _start(self, queue: _Queue) -> threading.Thread:
        """Start and return a thread for `queue`, a daemon: a killed program must end."""
        thread = threading.Thread(
            target=_run_queue,
            args=(queue, self._working, self._cores),
            name=self._name,
            daemon=True,
        )
        start_thread(thread, f"lane {self._name!r}")
        return thread

    def call(self, work: Callable[[], Any]) -> None:
        """Run `work` on the lane's thread, after the queued work, and wait until it has ended.

        Raises
        ------
        BaseException
            The error of the work.
        """
        raised: list[BaseException] = []
        ended = threading.Event()

        def caught() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        self.put(Event(lambda _: ended.set()), caught)
        ended.wait()
        if raised:
            raise raised.pop()  # popped, so that its frames are freed with it

    def run_inline(self, event: Event, work: Callable[[], Any]) -> bool:
        """Run `work` on the calling thread if the lane is idle; return whether it was.

        `event` completes on that thread, while the lane waits. A lane that is bound to cores runs
        all work itself.
        """
        held = None if self._cores else self.hold()
        if held is None:
            return False
        try:
            self._elsewhere.run(event.run, work)
            return True
        finally:
            held.release()

    def calling(self, work: Callable[[], Any]) -> Callable[[], Any] | None:
        """Return a function that runs `work` on the calling thread, for use while the lane is idle.

        It sees and sets the same context as on the lane's thread. None if that is bound to cores.
        """
        return None if self._cores else LaneCall(self._elsewhere.run, work)

    def is_caller(self) -> bool:
        return self._thread is threading.current_thread()

    def hold(self) -> threading.Lock | None:
        """Keep the lane idle until the returned lock is released; None if it is not idle."""
        working = self._working
        if not working.acquire(blocking=False):
            return None
        queue = self._queue
        if queue is None or not queue.empty():
            working.release()
            return None
        return working

    def close(self) -> None:
        """Finish the queue and end the thread; later work is refused."""
        with self._lock:
            queue, thread = self._queue, self._thread
            self._queue = self._thread = None
        if queue is not None and thread is not None:
            queue.put(None)
            thread.join()

    def give_up(self) -> None:
        """Close in a forked child: the thread is the parent's."""
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._queue = self._thread = None


class LaneCall(partial[Any]):
    """A call in the context of a lane, which one thread at a time can be in."""

    def apart(self) -> Any:
        """Call it in a copy of the context, while another thread may be in that."""
        context: Context = self.func.__self__  # type: ignore[attr-defined]
        return context.copy().run(*self.args)


def start_thread(thread: threading.Thread, user: str) -> None:
    """Start `thread` for `user`; raise DeviceUnavailableError if the system has none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise DeviceUnavailableError(
            f"{user} has no thread: {error}",
            fix="end other threads, or raise the limit of the system: ulimit -u",
        ) from error


def _run_queue(queue: _Queue, working: threading.Lock, cores: Collection[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread alone
    # Infinities and NaNs are values, as in ONNX; numpy's setting is per thread.
    with np.errstate(all="ignore"):
        while (item := queue.get()) is not None:
            event, work = item
            with working:
                event.run(work)
            # Drop the references before the next wait: they pin arrays and results.
            del item, event, work
