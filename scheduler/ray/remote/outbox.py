"""Messages to a host that are to be sent, or have not ended; no threads, no locks.

All that waits goes together in one call, up to a limit. What waits for work that has failed, or was
never sent, is not sent either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ....devices.event import CancelledWorkError
from .commands import Command, CommandOutcome, RemoteCall
from .work import RemoteEvent

WINDOW = 2
"""So many calls may be on their way; what comes then goes together in the next one."""

MOST_BYTES = 16 << 20
"""A call carries no more than that, but for a single array that is larger."""

Refused = list[tuple[RemoteEvent, BaseException]]


class Outbox:
    """The commands of one life of a host.

    Attributes
    ----------
    outstanding : int
        How many calls have not been answered.
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
        """What was sent and has not ended."""
        return tuple(self._sent.values())

    @property
    def has_to_send(self) -> bool:
        """True when there is something to send, or to be heard of."""
        if self._cancelled or self._forgotten:
            return True
        if self._waiting:
            return self.outstanding < WINDOW
        return bool(self._sent) and not self.outstanding

    @property
    def is_whole(self) -> bool:
        """False when what is queued is likely to go on: an item ends with what is read."""
        return not self._waiting or self._waiting[-1].command.kind == "read"

    def put(self, work: RemoteEvent) -> None:
        """Queue work."""
        self._waiting.append(work)

    def cancel(self, work: RemoteEvent) -> None:
        """Have the host be told that nobody wants a work any more, if it knows of it."""
        if work.command.number in self._sent:
            self._cancelled.append(work.command.number)

    def forget(self, number: int) -> None:
        """Have the host be told that nobody uses an object any more; at any moment."""
        self._forgotten.append(number)

    def is_busy(self, device: int) -> bool:
        """True while there is work for a device."""
        left = (*self._waiting, *self._sent.values())
        return any(work.command.device == device for work in left)

    def next_call(self) -> tuple[Refused, RemoteCall]:
        """Return what is not sent, and why, and what is."""
        refused: Refused = []
        commands: list[Command] = []
        nbytes = 0
        while self._waiting and self.outstanding < WINDOW:
            array = self._waiting[0].command.array
            nbytes += 0 if array is None else array.nbytes
            if commands and nbytes > MOST_BYTES:
                break
            work = self._waiting.popleft()
            error = _refusal(work)
            if error is None:
                commands.append(self._numbered(work))
            else:
                work.error = error  # what waits for it, behind it, is to see that
                refused.append((work, error))
        call = RemoteCall(
            self._calls,
            tuple(commands),
            tuple(self._cancelled),
            tuple(_taken(self._forgotten)),
            tuple(self._noted),
        )
        self._calls += 1
        self.outstanding += 1
        self._cancelled, self._noted = [], []
        return refused, call

    def work(self, outcome: CommandOutcome) -> RemoteEvent | None:
        """Return the work that has ended, which is to be completed before `answered`."""
        return self._sent.get(outcome.number)

    def answered(self, outcomes: Iterable[CommandOutcome]) -> None:
        """Take note of the answer to a call, when the work that has ended is completed.

        Not before: what waits for it has to see its error from then on.
        """
        self.outstanding -= 1
        for outcome in outcomes:
            self._sent.pop(outcome.number, None)
            if outcome.is_failure:
                self._noted.append(outcome.number)

    def give_up(self) -> tuple[list[RemoteEvent], list[RemoteEvent]]:
        """Return all that was sent, and all that was not, and forget it."""
        sent, waiting = list(self._sent.values()), list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        return sent, waiting

    def _numbered(self, work: RemoteEvent) -> Command:
        self._count += 1
        numbers = (wait.command.number for wait in work.waits if isinstance(wait, RemoteEvent))
        waits = tuple(number for number in numbers if number in self._sent)
        work.command = work.command._replace(number=self._count, waits=waits)
        self._sent[self._count] = work
        return work.command


def _refusal(work: RemoteEvent) -> BaseException | None:
    for wait in work.waits:
        if wait.error is not None:
            return wait.error
    if work.cancelled:
        return CancelledWorkError("the work was cancelled before it started")
    return None


def _taken(numbers: deque[int]) -> Iterator[int]:
    while numbers:
        yield numbers.popleft()
