"""The order of commands on a host: one after the other for each device.

Whoever ends a command starts the next, on any thread. A command that waits for one of another
device keeps those behind it waiting, too; since waits go to earlier commands only, the first of all
that are left can always start.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ....devices.event import CancelledWorkError, Event
from ....devices.worker.remote_errors import describe
from ...runtime.items.trampoline import Trampoline
from .commands import Command, CommandOutcome

Launch = Callable[[Command, Callable[[Event], None]], Event]
"""Starts a command; calls back when it has ended, with the event that it returns."""

_this_thread = Trampoline()


@dataclass(slots=True, eq=False)
class _Course:
    """The commands of a device, in order."""

    commands: deque[Command] = field(default_factory=deque)
    busy: bool = False
    event: Event | None = None


class CommandQueues:
    """Has commands run, and tells what became of them.

    Parameters
    ----------
    launch : callable
    on_outcome : callable
        Called with a command and its outcome, on any thread.
    """

    def __init__(
        self, launch: Launch, on_outcome: Callable[[Command, CommandOutcome], object]
    ) -> None:
        self._launch = launch
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._courses: dict[int, _Course] = {}
        self._left: dict[int, _Course] = {}
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
                course = self._courses.setdefault(command.device, _Course())
                course.commands.append(command)
                self._left[command.number] = course
                self._newest = command.number
        self._go()

    def cancel(self, numbers: tuple[int, ...]) -> None:
        """Let commands not start, or stop where they can be stopped."""
        events = []
        with self._lock:
            for number in numbers:
                course = self._left.get(number)
                if course is not None:
                    self._cancelled.add(number)
                    if course.busy and course.commands[0].number == number and course.event:
                        events.append(course.event)
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
                course.busy = True
        for course in ready:
            _this_thread.first.append(partial(self._start, course))
        _this_thread.run()

    def _can_start(self, course: _Course) -> bool:
        if course.busy or not course.commands:
            return False
        return not any(number in self._left for number in course.commands[0].waits)

    def _start(self, course: _Course) -> None:
        command = course.commands[0]
        cause = next((number for number in command.waits if number in self._failed), 0)
        if cause:
            self._end(course, command, CommandOutcome(command.number, 0, 0, cause=cause))
            return
        try:
            if command.number in self._cancelled:
                raise CancelledWorkError("the work was cancelled before it started")
            event = self._launch(command, partial(self._ended, course, command))
        except Exception as error:
            self._end(course, command, CommandOutcome(command.number, 0, 0, error=describe(error)))
            return
        with self._lock:
            if not event.done:
                course.event = event
            cancelled = command.number in self._cancelled
        if cancelled:  # whoever cancelled it may not have seen the event
            event.cancel()

    def _ended(self, course: _Course, command: Command, event: Event) -> None:
        error = event.error
        described = None
        if error is not None:
            known = error if isinstance(error, Exception) else RuntimeError(repr(error))
            described = describe(known)
        outcome = CommandOutcome(
            command.number, event.started_ns, event.ended_ns, event.node_ns, described
        )
        self._end(course, command, outcome)

    def _end(self, course: _Course, command: Command, outcome: CommandOutcome) -> None:
        with self._lock:
            course.commands.popleft()
            course.busy, course.event = False, None
            del self._left[command.number]
            self._cancelled.discard(command.number)
            if outcome.is_failure:
                self._failed.add(command.number)
        self._on_outcome(command, outcome)
        self._go()
