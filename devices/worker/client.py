"""The parent's side of a worker process: sends requests, watches the process, ends it.

Any thread may put requests; they are answered in order. At most `WINDOW` of them are sent at a
time: these fit into the socket's buffer, so sending never blocks, and the others wait here. A
reader thread starts the process, receives its answers and completes the events. When the process
dies, it completes all remaining events with DeviceLostError.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from ...graph.values.errors import PlaitError, WireError
from ..blocking import allow_end
from ..device import OnDone
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError, again
from ..event import Event
from ..forking import register_for_forks
from ..lane import start_thread
from ..memory import SharedArena
from .launch import PROCESS, Launched, end, is_stopped, launch
from .pickles import Cargo, map_file, unpack
from .remote_errors import rebuild
from .wire import WINDOW, Channel, Done, RequestKind, WorkerRequest

ANSWER_S = 5.0
"""How long a worker may be stopped while a thread waits for it, or take to forget an object or to
end."""

logger = logging.getLogger(__name__)


class WorkerEvent(Event):
    """A request to a worker, and its completion."""

    def __init__(
        self,
        kind: RequestKind,
        number: int,
        on_done: OnDone | None = None,
        *,
        fd: int | None = None,
        data: bytes = b"",
        label: str = "",
        held: object = None,
        cargo: Cargo | None = None,
    ) -> None:
        super().__init__(on_done)
        self.cargo = cargo
        self.data = data
        self.kind = kind
        self.number = number
        self.fd = fd
        self.held = held
        self.label = label or kind
        self.sequence = 0
        self._flags: memoryview | None = None

    def send(self, channel: Channel, sequence: int, flags: memoryview) -> None:
        """Send the request on `channel`; `cancel` then marks its `sequence` number in `flags`."""
        self.sequence, self._flags = sequence, flags
        if self.cancelled:
            self.cancel()
        has_file = self.fd is not None
        request = WorkerRequest(self.kind, sequence, self.number, self.data, has_file=has_file)
        channel.send(request, self.fd)

    def cancel(self) -> None:
        """Ask the worker to skip what it has not started; the event completes all the same."""
        self.cancelled = True
        flags = self._flags
        if flags is not None:
            flags[self.sequence % WINDOW] = self.sequence

    def complete(self, error: BaseException | None = None) -> None:
        """Complete the event, with `error` if any, and run callbacks; later calls do nothing."""
        self._flags = None  # another request uses its flag now
        super().complete(error)

    def give_up(self, error: DeviceError) -> None:
        """Complete the event with `error` in a forked child, where callbacks would not work."""
        self._callbacks.clear()
        self.complete(error)


class WorkerClient:
    """One life of a worker process.

    Parameters
    ----------
    cores : int, optional
        The number of cores it may use.
    on_death : callable, optional
        Called, on a thread of its own, when the process dies unexpectedly.
    bound : collection of int, optional
        The cores that it is bound to.
    module : str, optional
        The module whose `main` the process runs.

    Raises
    ------
    DeviceUnavailableError
        If the process does not start.
    """

    def __init__(
        self,
        name: str,
        cores: int | None = None,
        on_death: Callable[[], object] | None = None,
        bound: Collection[int] = (),
        module: str = PROCESS,
    ) -> None:
        self.name = name
        self._on_death = on_death
        self._lock = threading.Lock()
        self._waiting: deque[WorkerEvent] = deque()
        self._sent: deque[WorkerEvent] = deque()
        self._forgotten: deque[tuple[int, object]] = deque()
        self._sequence = 0
        self.error: DeviceError | None = None
        """The error of all further requests; None until the process is closed or found dead."""
        self._closing = False
        self._killed: str | None = None
        started: Future[None] = Future()
        # The thread starts the process, which dies with the thread that started it.
        self._reader = threading.Thread(
            target=self._live,
            args=(partial(launch, name, cores, bound, module), started),
            name=f"plait-{name}",
            daemon=True,
        )
        start_thread(self._reader, name)
        try:
            started.result()
        except BaseException:
            if not started.cancel() and started.exception() is None:
                self._process.kill()  # Ctrl-C, just when it was ready
            self._reader.join()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def put(self, work: WorkerEvent) -> None:
        """Queue `work`, never blocking. If the process is dead, the request fails at once."""
        with self._lock:
            error = self.error
            if error is None:
                self._waiting.append(work)
                self._send_waiting()
        if error is not None:
            work.complete(again(error, queued=True))

    def kill(self, work: Event, reason: str) -> bool:
        with self._lock:
            runs = bool(self._sent) and self._sent[0] is work and self.error is None
            if runs:
                self._killed = reason
                self._process.kill()
        return runs

    def call(self, kind: RequestKind, number: int, file: SharedArena | None = None) -> None:
        """Send a request of `kind` about object `number`, with any `file`, and raise its error."""
        work = WorkerEvent(kind, number, fd=None if file is None else file.fd)
        with allow_end(partial(self._end_by_force, work)):
            self.put(work)
            self._wait(work)
        error, work.error = work.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame, and with it mappings, until the next collection

    def forget(self, number: int, held: object = None) -> None:
        """Let the worker free object `number`; `held` is kept alive until then.

        Finalizers call this at any time, even while their thread holds the lock.
        """
        self._forgotten.append((number, held))
        if self._lock.acquire(blocking=False):
            try:
                self._send_waiting()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Finish queued requests, then end the process; kill it if it lingers."""
        self._closing = True
        last = WorkerEvent("end", 0)
        self.put(last)
        self._wait(last)
        self._reader.join()

    def give_up(self) -> None:
        """Detach from the process in a forked child: it works for the parent."""
        self._lock = threading.Lock()
        self.error = DeviceUnavailableError(
            f"{self.name} works for the process that this one was forked from",
            fix="open devices and sessions after the fork, or use the start method 'spawn'",
        )
        for work in (*self._sent, *self._waiting):
            work.give_up(self.error)
        self._sent.clear()
        self._waiting.clear()
        self._process.returncode = 0  # not ours to kill, nor to wait for
        self._channel.close()
        self._flags.close()
        self._cancelled = memoryview(b"")

    def _wait(self, work: WorkerEvent) -> None:
        """Wait until `work` is answered or the process is dead; kill a stuck process."""
        answered = threading.Event()
        work.on_done(lambda _: answered.set())
        before: WorkerEvent | None = None
        while not answered.wait(ANSWER_S):
            with self._lock:
                first = self._sent[0] if self._sent else None
            if first is not None and first is before:
                # Functions of the user's may run as long as they like.
                is_idle = first.kind in ("forget", "end") or is_stopped(self._process)
                reason = f"it did nothing for {ANSWER_S:g} s while it was waited for"
                if is_idle:
                    self._end_by_force(first, reason)
            before = first

    def _end_by_force(self, work: WorkerEvent, reason: str) -> bool:
        killed = self.kill(work, reason)
        if killed:
            logger.warning("%s was killed: %s", self.name, reason)
        return killed

    def _send_waiting(self) -> None:
        """Send as many requests as the window allows. The caller holds the lock."""
        while self._forgotten:
            number, held = self._forgotten.popleft()
            self._waiting.append(WorkerEvent("forget", number, held=held))
        while self._waiting and len(self._sent) < WINDOW and self.error is None:
            work = self._waiting.popleft()
            self._sent.append(work)
            self._sequence += 1
            try:
                work.send(self._channel, self._sequence, self._cancelled)
            except OSError:
                # Broken, most likely because the process died: the reader finds out.
                with suppress(OSError):
                    self._channel.connection.shutdown(socket.SHUT_RDWR)
                return

    def _live(self, start: Callable[[], Launched], started: Future[None]) -> None:
        """Run the process that `start` makes: settle `started`, receive answers, and clean up."""
        try:
            self._process, self._channel, self._flags = start()
        except BaseException as error:
            if started.set_running_or_notify_cancel():
                started.set_exception(error)
            return
        self._cancelled = memoryview(self._flags.buffer).cast("q")
        register_for_forks(self)
        if started.set_running_or_notify_cancel():
            started.set_result(None)
        else:  # the caller was cancelled
            self._process.kill()
        self._read()

    def _read(self) -> None:
        broken: str | None = "its reader failed"
        try:
            while (done := self._channel.receive(Done)) is not None:
                self._complete(done)
            broken = None
        except ConnectionError:  # closed with requests unread: also a way to die
            broken = None
        except (OSError, WireError, DeviceLostError) as error:
            broken = error.what if isinstance(error, PlaitError) else str(error)
        finally:
            self._end(broken)

    def _complete(self, done: Done) -> None:
        error = None if done.error is None else _rebuild(done.error, self.name)
        if isinstance(error, DeviceLostError):  # the process cannot compute any more
            raise error
        node_ns = None if done.node_ns is None else _read_integers(done.node_ns)
        packed = map_file(self._channel.take_fd()) if done.has_file else done.data
        with self._lock:
            if not self._sent or self._sent[0].sequence != done.sequence:
                raise WireError(f"message {done.sequence} answers no request")
            work = self._sent.popleft()
            self._send_waiting()
        work.started_ns, work.ended_ns, work.node_ns = done.started_ns, done.ended_ns, node_ns
        if error is None and work.cargo is not None and packed:
            try:
                unpack(packed, work.cargo.outputs, work.label)
            except PlaitError as failure:
                error = failure
        work.complete(error)

    def _end(self, broken: str | None) -> None:
        """Reap the process, killed if `broken` says why, and fail all unanswered requests."""
        how = end(self._process, kill=broken is not None)
        with self._lock:
            why = self._killed or broken
            self.error = self._why(how if why is None else f"killed: {why}")
            orphans = [*self._sent, *self._waiting]
            self._sent.clear()
            self._waiting.clear()
            self._channel.close()
            self._flags.close()
            self._cancelled = memoryview(b"")  # a reference to the client must not keep the mapping
        for index, work in enumerate(orphans):
            work.complete(again(self.error, queued=index > 0))
        if self._on_death is not None and isinstance(self.error, DeviceLostError):
            self._on_death()

    def _why(self, how: str) -> DeviceError:
        """Return the error of requests after the process ended, as `how` says; the lock is held."""
        running = self._sent[0].label if self._sent else None
        if self._closing and running is None:
            return closed_error(self.name)
        return DeviceLostError(
            f"{self.name} died: {how}",
            at=f"process {self.pid}, {f'while running {running}' if running else 'idle'}",
            fix="open the device again; what it printed, or the kernel's log, may say why",
        )


def closed_error(name: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(f"device {name!r} is closed", fix="open it")


def _read_integers(data: bytes) -> tuple[int, ...]:
    numbers = array("q")
    try:
        numbers.frombytes(data)
    except ValueError as error:
        raise WireError("a message's times are cut short") from error
    return tuple(numbers)


def _rebuild(error: str, where: str) -> Exception:
    try:
        description = json.loads(error)
    except (ValueError, RecursionError) as wrong:
        raise WireError("a message describes no error") from wrong
    return rebuild(description, where)
