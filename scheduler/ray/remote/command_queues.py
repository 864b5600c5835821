"""The order of commands on a host: those of one kind for one device begin one after the other.

A command begins as soon as all that it waits for has ended, or is under way on a device that keeps
the order itself. So an input is uploaded while a program computes, and a result comes back while
the next program does. Whoever ends a command starts what follows, on any thread. A command that has
to wait keeps those of its kind behind it waiting, too; since waits go to earlier commands only, the
first of all that are left can always start.
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
from ...runtime.items.trampoline import Trampoline
from .commands import Command, CommandOutcome

_this_thread = Trampoline()


class Launcher(Protocol):
    """What starts commands."""

    def follows(self, command: Command, other: Command, event: Event) -> bool:
        """Say whether a command may be launched while another one, with its event, is under way.

        Its device then keeps it behind that event, and completes it after the other one.
        """
        ...

    def launch(
        self, command: Command, waits: tuple[Event, ...], done: Callable[[Event], None]
    ) -> Event:
        """Start a command behind events that it follows; `done` is called with what is returned."""
        ...


@dataclass(slots=True, eq=False)
class _Course:
    """Commands of one kind for one device that have not begun, in order."""

    commands: deque[Command] = field(default_factory=deque)
    is_starting: bool = False


@dataclass(slots=True, eq=False)
class _Left:
    """A command that has not ended, and its event once it has begun."""

    command: Command
    event: Event | None = None


class CommandQueues:
    """Has commands run, and tells what became of them.

    Parameters
    ----------
    launcher : Launcher
    on_outcome : callable
        Called with a command and its outcome, on any thread, one at a time: first what a command
        has waited for, then the command.
    """

    def __init__(
        self, launcher: Launcher, on_outcome: Callable[[Command, CommandOutcome], object]
    ) -> None:
        self._launcher = launcher
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._courses: dict[tuple[int, str], _Course] = {}
        self._left: dict[int, _Left] = {}
        self._cancelled: set[int] = set()
        self._failed: set[int] = set()
        self._noted: deque[tuple[int, tuple[int, ...]]] = deque()
        self._newest = 0

    @property
    def n_left(self) -> int:
        """How many commands have not ended."""
        return len(self._left)

    def add(self, commands: tuple[Command, ...]) -> None:
        """Queue commands behind those before."""
        with self._lock:
            for command in commands:
                course = self._courses.setdefault((command.device, command.kind), _Course())
                course.commands.append(command)
                self._left[command.number] = _Left(command)
                self._newest = command.number
        self._go()

    def cancel(self, numbers: tuple[int, ...]) -> None:
        """Let commands not start, or stop where they can be stopped."""
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
        """Forget failures, for nothing that comes from now on waits for them."""
        with self._lock:
            if numbers:
                self._noted.append((self._newest, numbers))
            oldest = next(iter(self._left), self._newest + 1)
            while self._noted and self._noted[0][0] < oldest:  # what came before has ended
                self._failed.difference_update(self._noted.popleft()[1])

    def _go(self) -> None:
        """Start whatever can start, on this thread."""
        with self._lock:
            ready = [course for course in self._courses.values() if self._can_start(course)]
            for course in ready:
                course.is_starting = True
        for course in ready:
            _this_thread.first.append(partial(self._start, course))
        _this_thread.run()

    def _can_start(self, course: _Course) -> bool:
        if course.is_starting or not course.commands:
            return False
        command = course.commands[0]
        for number in command.waits:
            left = self._left.get(number)
            if left is None:
                continue
            if left.event is None or not self._launcher.follows(command, left.command, left.event):
                return False
        return True

    def _start(self, course: _Course) -> None:
        with self._lock:
            command = course.commands[0]
            left = self._left[command.number]
            earlier = (self._left.get(number) for number in command.waits)
            waits = tuple(one.event for one in earlier if one and one.event)
            fails = not self._failed.isdisjoint(command.waits)
        if fails:
            self._end(command, CommandOutcome(command.number, 0, 0))
        else:
            self._launch(left, waits)
        with self._lock:
            course.commands.popleft()
            course.is_starting = False
            if not course.commands:  # devices come and go with sessions
                del self._courses[command.device, command.kind]
        self._go()

    def _launch(self, left: _Left, waits: tuple[Event, ...]) -> None:
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
        if is_cancelled:  # whoever cancelled it may not have seen the event
            event.cancel()

    def _ended(self, left: _Left, event: Event) -> None:
        command = left.command
        for number in command.waits:
            # Its event is complete, but the thread that has completed it may be a moment behind.
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
        self._go()

    def _end(self, command: Command, outcome: CommandOutcome) -> None:
        with self._lock:
            if self._left.pop(command.number, None) is None:
                return  # what follows it has seen the end sooner
            self._cancelled.discard(command.number)
            cause = next((number for number in command.waits if number in self._failed), 0)
            if cause:
                outcome = CommandOutcome(command.number, 0, 0, cause=cause)
            if outcome.is_failure:
                self._failed.add(command.number)
            # Within the lock: else what follows it, on another thread, could be told first.
            self._on_outcome(command, outcome)
