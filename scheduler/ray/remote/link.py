"""The driver's connection to a host: sends queued work in batches, and completes its events.

`put` never blocks its thread. One thread sends: all work that was queued while it was busy makes up
the next call. Another one receives answers and completes the events in the order in which the host
has ended the work. It also detects a silent host: if the network is cut, the cluster itself takes
longer to notice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ....devices.errors import DeviceError, DeviceLostError, DeviceUnavailableError, again
from ....devices.event import Event
from ....devices.owners import Owners
from ....devices.worker.modules import Source
from ....devices.worker.remote_errors import rebuild
from ....graph.values.errors import PlaitError, WireError, describe_error
from ..actors import Actor, settle
from .commands import CommandOutcome, RemoteEvent, to_plain_tuples
from .outbox import Outbox

LINGER_S = 1e-3
"""Wait for the remaining steps of an item, which are put one by one."""

_Message = tuple[Any, BaseException | None]


class HostLink:
    """The connection to one process of a host; a restarted host has another one.

    Parameters
    ----------
    name : str
        The host's.
    hello : dict
        The answer to `Host.hello`.
    clock_ns : int
        Offset from its clock to ours.
    silence_s : float
        How long it may be silent before it counts as lost.
    on_loss : callable, optional
        Called, on a thread of the link, when it is lost.

    Attributes
    ----------
    imported : set of Source
        The operators that the host knows besides those of plait.
    shipped : dict of int to int
        For graphs that the host has, by identity here, their numbers there.
    owners, graph_ids : Owners
        Free objects on the host, and entries of `shipped`, with their objects here.
    shipping : threading.Lock
        Held while a graph is sent.
    names : dict of int to (str, str)
        For each open device, its name on the host and its full name.
    """

    def __init__(
        self,
        name: str,
        actor: Actor,
        hello: dict[str, Any],
        *,
        clock_ns: int = 0,
        silence_s: float = 30.0,
        on_loss: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.hello = hello
        self.imported: set[Source] = set()
        self.shipped: dict[int, int] = {}
        self.owners, self.graph_ids = Owners(self.forget), Owners(self.shipped.pop)
        self.shipping = threading.Lock()
        self.names: dict[int, tuple[str, str]] = {}
        self._actor = actor
        self._clock_ns = clock_ns
        self._silence_s = silence_s
        self._on_loss = on_loss
        self._changed = threading.Condition()
        self._outbox = Outbox()
        self._is_drained = False
        self._asked: set[Future[Any]] = set()
        self.error: DeviceError | None = None
        """The error that ended the connection, or None."""
        self._killed: str | None = None
        self._closing = False
        self._heard_s = time.monotonic()
        self._answers: SimpleQueue[_Message | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"plait-ray:{name}-{role}", daemon=True)
            for target, role in ((self._send, "send"), (self._receive, "receive"))
        ]
        for thread in self._threads:
            thread.start()
        actor.call("stay").on_result(self._answered)  # so that a loss is noticed at any time

    def put(self, work: RemoteEvent) -> None:
        """Queue `work`; never blocks. On a lost host it fails at once."""
        with self._changed:
            error = self.error
            if error is None:
                work.cancel_by(self.cancel)
                self._outbox.put(work)
                self._changed.notify_all()
        if error is not None:
            work.complete(again(error, queued=True))

    def cancel(self, work: RemoteEvent) -> None:
        with self._changed:
            self._outbox.cancel(work)
            self._changed.notify_all()

    def forget(self, number: int) -> None:
        """Free object `number` of the host. Never blocks: finalizers call it at any moment."""
        self._outbox.forget(number)
        if self._changed.acquire(blocking=False):
            try:
                self._changed.notify_all()
            finally:
                self._changed.release()

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call `ServingDevices.ask` on the host with these `arguments`, and return the answer.

        Raises PlaitError if the host raised it; DeviceLostError if it is lost meanwhile.
        """
        return self._begin_ask(what, arguments).result()  # no variable: errors hold this frame

    def _begin_ask(self, what: str, arguments: tuple[Any, ...]) -> Future[Any]:
        asked: Future[Any] = Future()
        with self._changed:
            error = self.error
            if error is None:
                self._asked.add(asked)
                self._changed.notify_all()  # starts the detection of silence
        if error is not None:
            raise again(error, queued=True)
        self._actor.call("ask_devices", what, *arguments).on_result(partial(self._replied, asked))
        return asked

    def kill(self, work: Event, reason: str) -> bool:
        """Kill the host for `reason` if it may be running `work`; return whether it did."""
        with self._changed:
            runs = isinstance(work, RemoteEvent) and work.is_sent and not work.done
            runs = runs and self.error is None
            if runs:
                self._killed = reason
        if runs:
            self._actor.kill()
            self._answers.put((None, DeviceLostError(f"killed: {reason}")))
        return runs

    def drain(self, device: int) -> None:
        """Wait until device number `device` has no work left."""
        with self._changed:
            self._is_drained = True
            self._changed.wait_for(lambda: not self._outbox.is_busy(device))

    def close(self) -> None:
        """End the host and the threads; work in flight fails."""
        self._closing = True
        self._actor.kill()
        self._answers.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.error or self._outbox.has_to_send)
                self._changed.wait_for(lambda: self._outbox.is_whole, LINGER_S)
                if self.error is not None:
                    return
                refused, call = self._outbox.next_call()
            for work, error in refused:
                work.complete(error)
            try:
                self._actor.call("command_devices", to_plain_tuples(call)).on_result(self._answered)
            except Exception as error:  # of any kind: the host cannot be called any more
                self._answered(None, DeviceLostError(f"it cannot be called: {error}"))

    def _answered(self, value: Any, error: BaseException | None) -> None:
        self._answers.put((value, error))

    def _replied(self, asked: Future[Any], value: Any, error: BaseException | None) -> None:
        self._heard_s = time.monotonic()
        if error is None:
            value, described = value
            if described is not None:
                error = rebuild(described, f"host {self.name!r}")
        if isinstance(error, DeviceLostError):  # the host, or a GPU for the rest of its process
            self._answers.put((None, error))  # ends the connection, which fails all questions
            return
        with self._changed:
            if asked not in self._asked:  # it was failed meanwhile
                return
            self._asked.discard(asked)
        settle(asked, value, error)

    def _receive(self) -> None:
        why: DeviceError | None = None
        pinged = False
        while why is None:
            try:
                message = self._answers.get(timeout=self._silence_s / 3)
            except Empty:
                why = self._silent() if pinged else None
                pinged = self._ping()
                continue
            if message is None:
                break
            value, error = message
            if error is None:
                self._heard_s = time.monotonic()
                pinged = False
                how: str | None
                try:
                    how = self._take(value)
                except WireError as damaged:
                    how = damaged.what
                why = None if how is None else self._lost_error(how)
            else:
                why = self._lost_error(summarize(error))
        self._end(why)

    def _take(self, outcomes: list[CommandOutcome] | None) -> str | None:
        """Complete the work of `outcomes`; if a device of the host was lost, return the reason.

        A GPU is lost for the rest of its process. `_end` completes the work that failed by that:
        its callbacks must find the host lost, so that it is restarted.
        """
        if outcomes is None:  # it is alive
            return None
        known = [CommandOutcome(*one) for one in outcomes]
        with self._changed:
            works = [self._outbox.work(one) for one in known]
        for work, outcome in zip(works, known, strict=True):
            if work is not None:
                error = self._error_of(work, outcome)
                if isinstance(error, DeviceLostError):
                    return error.what
                self._complete(work, outcome, error)
        with self._changed:
            self._outbox.answered(known)
            if self._outbox.has_to_send or self._is_drained:
                self._changed.notify_all()
        return None

    def _complete(
        self, work: RemoteEvent, outcome: CommandOutcome, error: BaseException | None
    ) -> None:
        if error is None and work.into is not None:
            try:
                np.copyto(work.into, np.asarray(outcome.array), casting="no")
            except (TypeError, ValueError) as wrong:
                error = WireError(f"host {self.name!r} sent another array: {wrong}")
        if outcome.ended_ns:
            work.started_ns = outcome.started_ns + self._clock_ns
            work.ended_ns = outcome.ended_ns + self._clock_ns
        else:
            work.started_ns = work.ended_ns = time.perf_counter_ns()
        work.node_ns = outcome.node_ns
        work.complete(error)

    def _error_of(self, work: RemoteEvent, outcome: CommandOutcome) -> BaseException | None:
        if outcome.cause:
            waits = (one for one in work.waits if isinstance(one, RemoteEvent))
            return next(one.error for one in waits if one.command.number == outcome.cause)
        if outcome.error is None:
            return None
        error = rebuild(outcome.error, f"host {self.name!r}")
        there, here = self.names.get(work.command.device, ("", ""))
        if isinstance(error, PlaitError) and error.at is not None:
            error.at = error.at.replace(f"device {there!r}", f"device {here!r}")
        return error

    def _ping(self) -> bool:
        with self._changed:
            if not (self._outbox.outstanding or self._asked):
                self._heard_s = time.monotonic()
                return False
        with suppress(Exception):  # a failed ping is never answered
            self._actor.call("clock_ns").on_result(
                lambda _, error: self._answers.put((None, error))
            )
        return True

    def _silent(self) -> DeviceLostError | None:
        silence_s = time.monotonic() - self._heard_s
        if silence_s < self._silence_s * 0.99:
            return None
        return self._lost_error(f"no answer for {silence_s:.1f} s")

    def _end(self, why: DeviceError | None) -> None:
        if why is not None:
            self._actor.kill()  # it may be alive, and only cut off
        with self._changed:
            self.error = error = why or closed_host_error(self.name)
            sent, waiting = self._outbox.clear()
            asked, self._asked = self._asked, set()
            self._changed.notify_all()
        for one in asked:
            settle(one, None, again(error, queued=False))
        for work in sent:
            work.complete(again(error, queued=False))
        for work in waiting:
            work.complete(again(error, queued=True))
        if why is not None and not self._closing and self._on_loss is not None:
            self._on_loss()

    def _lost_error(self, how: str) -> DeviceLostError:
        with self._changed:
            running = next((work.label for work in self._outbox.sent if work.label), None)
        node, pid = self.hello.get("node"), self.hello.get("pid")
        if self._killed is not None:
            how = f"killed: {self._killed}"
        return DeviceLostError(
            f"host {self.name!r} is lost: {how}",
            at=f"node {node}, process {pid}, {f'while running {running}' if running else 'idle'}",
            fix="open the device again; the logs of its node may say why",
        )


def closed_host_error(name: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(f"{name!r} is closed", fix="open the device")


def summarize(error: BaseException) -> str:
    return error.what if isinstance(error, PlaitError) else describe_error(error)
