"""Work for a host that waits to be sent, or was sent and has not ended; no threads, no locks.

Waiting work goes together in one call, up to a limit. Work that depends on failed or unsent work
is not sent either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ....devices.event import CancelledWorkError
from .commands import Command, CommandOutcome, RemoteCall, RemoteEvent

WINDOW = 2
"""The limit of unanswered calls; later work collects for the next one."""

MOST_BYTES = 16 << 20
"""The limit of a call's bytes, except for a single larger array."""

Refused = list[tuple[RemoteEvent, BaseException]]


class Outbox:
    """The commands for one process of a host.

    `outstanding` is the number of unanswered calls.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self._waiting: deque[RemoteEvent] = deque()
        self._sent: dict[int, RemoteEvent] = {}
        self._cancelled: list[int] = []
        self._forgotten: deque[int] = deque()
        self._noted: list[int] = []
        self._count = 0
        self._calls = 0

    @property
    def sent(self) -> tuple[RemoteEvent, ...]:
        """The work that was sent and has not ended."""
        return tuple(self._sent.values())

    @property
    def has_to_send(self) -> bool:
        if self._cancelled or self._forgotten:
            return True
        if self._waiting:
            return self.outstanding < WINDOW
        return bool(self._sent) and not self.outstanding

    @property
    def is_whole(self) -> bool:
        """False if more steps of an item are likely to follow: items end with a read."""
        return not self._waiting or self._waiting[-1].command.kind == "read"

    def put(self, work: RemoteEvent) -> None:
        self._waiting.append(work)

    def cancel(self, work: RemoteEvent) -> None:
        """Send the cancellation of `work` with the next call, if the host has it."""
        if work.command.number in self._sent:
            self._cancelled.append(work.command.number)

    def forget(self, number: int) -> None:
        """Free the object `number` on the host, with the next call; safe in finalizers."""
        self._forgotten.append(number)

    def is_busy(self, device: int) -> bool:
        left = (*self._waiting, *self._sent.values())
        return any(work.command.device == device for work in left)

    def next_call(self) -> tuple[Refused, RemoteCall]:
        refused: Refused = []
        commands: list[Command] = []
        nbytes = 0
        while self._waiting and self.outstanding < WINDOW:
            array = self._waiting[0].command.array
            nbytes += 0 if array is None else array.nbytes
            if commands and nbytes > MOST_BYTES:
                break
            work = self._waiting.popleft()
            error = _find_refusal_error(work)
            if error is None:
                commands.append(self._number(work))
            else:
                work.error = error  # seen by later work that waits for it
                refused.append((work, error))
        call = RemoteCall(
            self._calls,
            tuple(commands),
            tuple(self._cancelled),
            tuple(_pop_all(self._forgotten)),
            tuple(self._noted),
        )
        self._calls += 1
        self.outstanding += 1
        self._cancelled, self._noted = [], []
        return refused, call

    def work(self, outcome: CommandOutcome) -> RemoteEvent | None:
        """Return the work of `outcome`; complete it before calling `answered`."""
        return self._sent.get(outcome.number)

    def answered(self, outcomes: Iterable[CommandOutcome]) -> None:
        """Remove work of `outcomes`, once it is completed: later work must see its error."""
        self.outstanding -= 1
        for outcome in outcomes:
            self._sent.pop(outcome.number, None)
            if outcome.is_failure:
                self._noted.append(outcome.number)

    def clear(self) -> tuple[list[RemoteEvent], list[RemoteEvent]]:
        """Remove all work; return the sent and the waiting ones."""
        sent, waiting = list(self._sent.values()), list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        return sent, waiting

    def _number(self, work: RemoteEvent) -> Command:
        self._count += 1
        numbers = (wait.command.number for wait in work.waits if isinstance(wait, RemoteEvent))
        waits = tuple(number for number in numbers if number in self._sent)
        work.command = work.command._replace(number=self._count, waits=waits)
        self._sent[self._count] = work
        return work.command


def _find_refusal_error(work: RemoteEvent) -> BaseException | None:
    for wait in work.waits:
        if wait.error is not None:
            return wait.error
    if work.cancelled:
        return CancelledWorkError("the work was cancelled before it started")
    return None


def _pop_all(numbers: deque[int]) -> Iterator[int]:
    while numbers:
        yield numbers.popleft()
