"""One replica of a pool: a session on a host, and on another host after a loss.

A lost host is replaced at once instead of by the engine's own restarts: the engine notices a cut
link only after half a minute, and replicas have no state to preserve.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import trio

from ....devices.errors import DeviceLostError
from ....devices.worker.remote_errors import rebuild
from ..actors import Actor, OnResult
from ..remote.hosts import check_host
from .serving_sessions import Answer, Asked

StartHost: TypeAlias = Callable[[str], Awaitable[Actor]]
"""Starts a host for the replica of that name; returns before there is a node for it."""

CLOSE_S = 2.0
"""Time for a host to close its session, before it is killed."""


class Replica:
    """A session that runs items of a pool; used on the trio thread only.

    Parameters
    ----------
    start : callable
        Starts a host.
    packed : tuple
        The arguments of `Host.open_session`.
    silence_s : float
        How long a host may be silent before it counts as lost.

    Attributes
    ----------
    starts : int
        The number of hosts started in a row without a successful item.
    idle_since : float
        Since when it has been without items; infinite while it has some.
    done : int
        The number of items it has run.
    node : str
        Id of its node; empty until it is known.
    process : int
        Process id of its host; 0 until it is known.
    """

    def __init__(
        self, name: str, start: StartHost, packed: tuple[Any, ...], silence_s: float
    ) -> None:
        self.name = name
        self.starts = 0
        self.idle_since = trio.current_time()
        self.done = 0
        self._start = start
        self._packed = packed
        self._silence_s = silence_s
        self._token = trio.lowlevel.current_trio_token()
        self._host: Actor | None = None
        self._is_open = False
        self.node = ""
        self.process = 0
        self._loss: DeviceLostError | None = None
        self._lost = trio.Event()
        self._heard = 0.0
        self._seen = 0.0, 0

    async def open(self) -> None:
        """Start a host, and a session on it; PlaitError if that fails, or it refuses the plan."""
        self._loss, self._lost, self._seen = None, trio.Event(), (0.0, 0)
        self.node, self.process = "", 0
        self.starts += 1
        self._host = await self._start(self.name)
        found = await self._result("hello")
        check_host(self.name, found)
        self.node, self.process = found["node"], found["pid"]
        refusal = await self._result("open_session", *self._packed)
        if refusal is not None:
            raise rebuild(refusal, f"replica {self.name!r}")
        self._is_open = True
        self.idle_since = trio.current_time()

    def run(self, asked: Sequence[Asked], on_answer: OnResult) -> None:
        """Run the items in `asked`; `on_answer` gets an Answer or an error, on the trio thread."""
        # Plain tuples: each object of a class costs a pickler ten times as much.
        self._call("run_items", (tuple(map(tuple, asked)),), on_answer)

    def cancel(self, numbers: Sequence[int]) -> None:
        self._call("cancel_items", (tuple(numbers),), _ignore)

    def item_s(self, answer: Answer) -> float | None:
        """Return the time per item since the answer before `answer`; None if no items ended."""
        busy_s, done = self._seen
        if answer.done <= done:  # it was overtaken by a later one
            return None
        self._seen = answer.busy_s, answer.done
        return (answer.busy_s - busy_s) / (answer.done - done)

    def lose(self, loss: DeviceLostError) -> None:
        if self._loss is None:
            self._loss = loss
            self._lost.set()

    async def watch(self) -> DeviceLostError:
        """Wait until its host is lost, and return why."""
        self._heard = trio.current_time()
        while self._loss is None:
            with trio.move_on_after(self._silence_s / 3):
                await self._lost.wait()
                break
            if trio.current_time() - self._heard >= self._silence_s:
                self.lose(self._silent_error())
            else:
                self._call("hello", (), _ignore)
        assert self._loss is not None
        return self._loss

    def kill(self) -> None:
        """End its host at once."""
        host, self._host = self._host, None
        self._is_open = False
        if host is not None:
            host.kill()

    async def close(self) -> None:
        """End its session and its host; shielded from cancellation."""
        if self._is_open and self._loss is None:
            with trio.move_on_after(CLOSE_S) as scope, suppress(Exception):
                scope.shield = True
                await self._result("close_session")
        self.kill()

    def _call(self, method: str, arguments: tuple[Any, ...], on_answer: OnResult) -> None:
        host = self._host
        assert host is not None, "it was opened"

        def heard(value: Any, error: BaseException | None) -> None:
            if host is not self._host:
                return  # the host was lost in between, and its items are handled
            self._heard = trio.current_time()
            if isinstance(error, DeviceLostError):
                self.lose(error)
            on_answer(value, error)

        def answered(value: Any, error: BaseException | None) -> None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(partial(heard, value, error))

        try:
            host.call(method, *arguments).on_result(answered)
        except Exception as error:  # of the engine, such as for a value that it cannot send
            answered(None, error)

    async def _result(self, method: str, *arguments: Any) -> Any:
        answers: list[tuple[Any, BaseException | None]] = []
        came = trio.Event()

        def note(value: Any, error: BaseException | None) -> None:
            answers.append((value, error))
            came.set()

        self._call(method, arguments, note)
        await came.wait()
        value, error = answers[0]
        if error is not None:
            raise error
        return value

    def _silent_error(self) -> DeviceLostError:
        return DeviceLostError(
            f"replica {self.name!r} has not answered for {self._silence_s:g} s",
            at=f"{self.node}, process {self.process}",
            fix="see whether its node is up and can be reached; give it longer with silence_s=",
        )


def _ignore(value: Any, error: BaseException | None) -> None:
    """Ignore `value` and `error`."""
