"""The order of commands on a host: one queue for each device and kind of command.

The first command of a queue starts as soon as the commands that it waits for have ended, or run on
a device that keeps the order itself. So an input is uploaded while a program computes, and a result
is downloaded while the next program does. The thread that ends a command starts the following ones.
A waiting command blocks its queue. Since commands wait for earlier ones only, the oldest command of
all can always start, so queues cannot deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ....devices.event import CancelledWorkError, Event
from ....devices.worker.remote_errors import describe
from ...runtime.opened.trampoline import Trampoline
from .commands import Command, CommandOutcome

_this_thread = Trampoline()


class Launcher(Protocol):
    def follows(self, command: Command, other: Command, event: Event) -> bool:
        """Return whether `command` may be launched before `event` of the `other` one is complete.

        Its device then starts it after that event, and completes it after the other one.
        """

    def launch(
        self, command: Command, waits: tuple[Event, ...], done: Callable[[Event], None]
    ) -> Event:
        """Start `command` after the events `waits`, which it follows; `done` gets its own event."""


@dataclass(slots=True, eq=False)
class _Queue:
    """Commands of one kind for one device that have not begun, in order."""

    commands: deque[Command] = field(default_factory=deque)
    is_starting: bool = False


@dataclass(slots=True, eq=False)
class _Unfinished:
    """A command that has not ended, and its event once it has begun."""

    command: Command
    event: Event | None = None


@dataclass(slots=True, eq=False)
class CommandQueues:
    """Runs commands and reports their outcomes.

    `on_outcome` is called with a command and its outcome, on any thread, one at a time; for a
    command after those that it has waited for.
    """

    _launcher: Launcher
    _on_outcome: Callable[[Command, CommandOutcome], object]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queues: dict[tuple[int, str], _Queue] = field(default_factory=dict)
    _left: dict[int, _Unfinished] = field(default_factory=dict)
    _cancelled: set[int] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _noted: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)
    _newest: int = 0

    @property
    def n_left(self) -> int:
        return len(self._left)

    def add(self, commands: tuple[Command, ...]) -> None:
        with self._lock:
            for command in commands:
                queue = self._queues.setdefault((command.device, command.kind), _Queue())
                queue.commands.append(command)
                self._left[command.number] = _Unfinished(command)
                self._newest = command.number
        self._start_ready()

    def cancel(self, numbers: tuple[int, ...]) -> None:
        """Cancel commands `numbers` that have not started, and ask running ones to stop."""
        events = []
        with self._lock:
            for number in numbers:
                left = self._left.get(number)
                if left is not None:
                    self._cancelled.add(number)
                    if left.event is not None:
                        events.append(left.event)
        for event in events:
            event.cancel()

    def note(self, numbers: tuple[int, ...]) -> None:
        """Forget the failures of commands `numbers`, since no later command waits for them."""
        with self._lock:
            if numbers:
                self._noted.append((self._newest, numbers))
            oldest = next(iter(self._left), self._newest + 1)
            while self._noted and self._noted[0][0] < oldest:  # all earlier commands have ended
                self._failed.difference_update(self._noted.popleft()[1])

    def _start_ready(self) -> None:
        with self._lock:
            ready = [queue for queue in self._queues.values() if self._can_start(queue)]
            for queue in ready:
                queue.is_starting = True
        for queue in ready:
            _this_thread.first.append(partial(self._start, queue))
        _this_thread.run()

    def _can_start(self, queue: _Queue) -> bool:
        if queue.is_starting or not queue.commands:
            return False
        command = queue.commands[0]
        for number in command.waits:
            left = self._left.get(number)
            if left is None:
                continue
            if left.event is None or not self._launcher.follows(command, left.command, left.event):
                return False
        return True

    def _start(self, queue: _Queue) -> None:
        with self._lock:
            command = queue.commands[0]
            left = self._left[command.number]
            earlier = (self._left.get(number) for number in command.waits)
            waits = tuple(one.event for one in earlier if one and one.event)
            fails = not self._failed.isdisjoint(command.waits)
        if fails:
            self._end(command, CommandOutcome(command.number, 0, 0))
        else:
            self._launch(left, waits)
        with self._lock:
            queue.commands.popleft()
            queue.is_starting = False
            if not queue.commands:  # devices come and go with sessions
                del self._queues[command.device, command.kind]
        self._start_ready()

    def _launch(self, left: _Unfinished, waits: tuple[Event, ...]) -> None:
        command = left.command
        try:
            if command.number in self._cancelled:
                raise CancelledWorkError("the work was cancelled before it started")
            event = self._launcher.launch(command, waits, partial(self._ended, left))
        except Exception as error:
            self._end(command, CommandOutcome(command.number, 0, 0, error=describe(error)))
            return
        with self._lock:
            left.event = event
            is_cancelled = command.number in self._cancelled
        if is_cancelled:  # `cancel` may have run before the event was set
            event.cancel()

    def _ended(self, left: _Unfinished, event: Event) -> None:
        command = left.command
        for number in command.waits:
            # Its event is complete, but the completing thread may not have reported it yet.
            earlier = self._left.get(number)
            if earlier is not None and earlier.event is not None:
                self._ended(earlier, earlier.event)
        error = event.error
        described = None
        if error is not None:
            known = error if isinstance(error, Exception) else RuntimeError(repr(error))
            described = describe(known)
        outcome = CommandOutcome(
            command.number, event.started_ns, event.ended_ns, event.node_ns, described
        )
        self._end(command, outcome)
        self._start_ready()

    def _end(self, command: Command, outcome: CommandOutcome) -> None:
        with self._lock:
            if self._left.pop(command.number, None) is None:
                return  # a command that follows it has reported the end
            self._cancelled.discard(command.number)
            cause = next((number for number in command.waits if number in self._failed), 0)
            if cause:
                outcome = CommandOutcome(command.number, 0, 0, cause=cause)
            if outcome.is_failure:
                self._failed.add(command.number)
            # Within the lock: otherwise a later command could be reported first, by its thread.
            self._on_outcome(command, outcome)
