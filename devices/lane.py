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
from .forking import give_up_in_children

_Queue: TypeAlias = SimpleQueue[tuple[Event, Callable[[], Any]] | None]

_is_work: ContextVar[bool] = ContextVar("plait work", default=False)


def is_work() -> bool:
    """Return whether the caller is a lane's work that runs on a thread which is not the lane's."""
    return _is_work.get()


class ThreadLane:
    """Runs submitted work in order on a thread of its own, which begins with the first of it.

    Parameters
    ----------
    name : str
    cores : collection of int, optional
        The numbers of those that the thread is bound to; all that the process may use if empty.
    """

    def __init__(self, name: str, cores: Collection[int] = ()) -> None:
        self._name = name
        self._cores = cores
        self._lock = threading.Lock()  # so that nothing is queued after the end of the queue
        self._queue: _Queue | None = None
        self._thread: threading.Thread | None = None
        self._working = threading.Lock()
        # Context variables of the caller are neither seen nor set by work.
        self._elsewhere = Context()
        self._elsewhere.run(np.seterr, all="ignore")
        self._elsewhere.run(_is_work.set, True)

    def open(self) -> None:
        """Take work from now on."""
        give_up_in_children(self)  # before the lock, which a child may inherit held
        with self._lock:
            if self._queue is None:
                self._queue = SimpleQueue()

    def put(self, event: Event, work: Callable[[], Any]) -> None:
        """Queue work; its event completes on the lane's thread.

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
            if self._thread is None:  # quick work may all have run where it was asked for
                self._thread = self._start(self._queue)
            self._queue.put((event, work))

    def _start(self, queue: _Queue) -> threading.Thread:
        """Start the thread; a daemon, so that a killed program ends."""
        thread = threading.Thread(
            target=_run, args=(queue, self._working, self._cores), name=self._name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise DeviceUnavailableError(
                f"lane {self._name!r} has no thread: {error}",
                fix="end other threads, or raise the limit of the system",
            ) from error
        return thread

    def call(self, work: Callable[[], Any]) -> None:
        """Run work on the lane's thread, after the queued work, and wait until it has ended.

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
            raise raised.pop()  # held by nothing here: frames that it refers to go with it

    def run_inline(self, event: Event, work: Callable[[], Any]) -> bool:
        """Run work on the calling thread, if the lane is idle; say whether that was so.

        Its event completes on that thread, while the lane waits. A lane that is bound to cores is
        the only one that runs there.
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
        """Return a function that runs work on the calling thread, for use while the lane is idle.

        It may see and set no more than on the lane's own thread. None where that is bound to cores.
        """
        return None if self._cores else partial(self._elsewhere.run, work)

    def is_caller(self) -> bool:
        """Return whether the calling thread is the lane's: it would wait for its own work."""
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
        """Finish the queue and end the thread; work put from now on is refused."""
        with self._lock:
            queue, thread = self._queue, self._thread
            self._queue = self._thread = None
        if queue is not None and thread is not None:
            queue.put(None)
            thread.join()

    def give_up(self) -> None:
        """Be closed, in a forked child: the thread is the parent's."""
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._queue = self._thread = None


def _run(queue: _Queue, working: threading.Lock, cores: Collection[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread alone
    # Infinities and NaNs are values here, as in ONNX; numpy's setting is per thread.
    with np.errstate(all="ignore"):
        while (item := queue.get()) is not None:
            event, work = item
            with working:
                event.run(work)
            # Drop the references before the next wait: they pin arrays and results.
            del item, event, work
