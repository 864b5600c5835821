"""Rows of items in batches: handed over by steps that wait for them, and run as steps of no item.

Which rows go together is decided by the scheduler's own `RowQueue`. What tasks of the loop would do
at the same time, each to its end, they do by ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush
from math import ceil
from typing import Protocol

from ..dispatch.row_queue import RowGroup, RowQueue, RowRun
from .machine import Machine
from .places import SlotPlaces
from .workload import NEVER, DispatchOrder, RowCall, RowWork, SimulatedBatch, Timeline

NO_CALLS: Mapping[int, RowCall] = {}


@dataclass(slots=True, eq=False)
class StepsOfKind:
    """The steps of items, or of the batches of a queue: what follows what, and their places."""

    order: DispatchOrder
    places: Sequence[SlotPlaces]
    calls: Mapping[int, RowCall]
    after: Sequence[Sequence[int]] = field(init=False)
    behind: Sequence[Sequence[int]] = field(init=False)
    rank: Sequence[int] = field(init=False)
    claiming: frozenset[int] = field(init=False)
    releasing: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        _, self.after, self.behind, _, _, self.rank = self.order
        self.claiming, self.releasing = self.places[0].claiming, self.places[0].releasing


@dataclass(slots=True, eq=False, kw_only=True)
class _HeldRows(RowGroup):
    """Rows that a step waits for."""

    entry: int
    since_ns: int
    left: int


@dataclass(slots=True, eq=False)
class _RowsOfQueue:
    """The rows of a queue: those that wait, and the batches that are under way."""

    name: str
    work: RowWork
    steps: StepsOfKind
    queue: RowQueue[_HeldRows]
    under_way: dict[int, Sequence[RowRun[_HeldRows]]] = field(default_factory=dict)
    due_ns: int = NEVER
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Batches for which there is no place on their variant yet, and that."""


class Stepping(Protocol):
    """The simulation of items, as batches need it: they run on the same lanes, by the same rules.

    Attributes
    ----------
    time : Timeline
    machine : Machine
    steps : list of StepsOfKind
        Of each item, then of each batch.
    ages : list of int
        By which steps are preferred, of each item, then of each batch.
    """

    time: Timeline
    machine: Machine
    steps: list[StepsOfKind]
    ages: list[int]

    def locate(self, entry: int) -> tuple[int, int]:
        """Return whose step an entry is, and which."""
        ...

    def choose_variant(self) -> int:
        """Return the variant whose turn it is."""
        ...

    def give_place(self, item: int, variant: int, now: int) -> None:
        """Let an item, or a batch, have a slot, and start it if it has all that it claims."""
        ...

    def end_call(self, entry: int, now: int) -> None:
        """End a step that waited for rows."""
        ...

    def push_due(self, index: int, time: int) -> None:
        """Look at a queue of rows again at a time."""
        ...


class SimulatedRows:
    """The queues of rows, and the batches that are under way.

    Parameters
    ----------
    run : Stepping
    rows : Mapping of str to RowWork
        By queue, how its rows run.
    variants : int

    Attributes
    ----------
    holders : list
        A heap of who has a ticket: that, what is done, and for whom.
    places : list of sequences of SlotPlaces
        Of each queue, on each variant.
    """

    def __init__(self, run: Stepping, rows: Mapping[str, RowWork], variants: int) -> None:
        self._run = run
        self._rows = [self._row_queue(name, work, variants) for name, work in rows.items()]
        self.places = [one.steps.places for one in self._rows]
        self._queue_index = {name: index for index, name in enumerate(rows)}
        self.holders: list[tuple[int, Callable[[int, int], None], int]] = []
        self._ticket = 0
        self._tickets: dict[int, int] = {}
        self._batch_rows: dict[int, tuple[_RowsOfQueue, int]] = {}

    def expect(self, entry: int) -> None:
        """Let a step that has begun hand its rows over, once the loop is through with this."""
        self._tickets[entry] = self._next_ticket()
        heappush(self.holders, (self._tickets[entry], self._hand_over, entry))

    def _row_queue(self, name: str, work: RowWork, variants: int) -> _RowsOfQueue:
        places = [SlotPlaces(work.regions, work.in_flight) for _ in range(variants)]
        return _RowsOfQueue(
            name, work, StepsOfKind(work.full.order(), places, NO_CALLS), RowQueue(work.size)
        )

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _hand_over(self, entry: int, now: int) -> None:
        """Put the rows of a step in their queue."""
        item, step = self._run.locate(entry)
        call = self._run.steps[item].calls[step]
        due_s = now / 1e9 + call.max_delay_s
        # Rows of one shape as far as is known here: simulated rows are all of one group.
        block = _HeldRows(
            call.rows, (), now / 1e9, due_s, entry=entry, since_ns=now, left=call.rows
        )
        if not call.rows:
            self._end_rows(block)
            return
        index = self._queue_index[call.queue]
        self._rows[index].queue.add(block)
        self.look(index, now)

    def _end_rows(self, block: _HeldRows) -> None:
        heappush(self.holders, (self._tickets[block.entry], self._run.end_call, block.entry))

    def look(self, index: int, now: int) -> None:
        """Put together the batches of a queue that may start now."""
        rows = self._rows[index]
        in_flight = rows.work.in_flight * len(rows.steps.places)
        # As many as there is room for: a batch that is full starts at once, and so does one whose
        # time is up.
        while len(rows.under_way) < in_flight and (runs := rows.queue.take_batch(now / 1e9)):
            self._put_together(rows, index, runs, now)
        due_s = rows.queue.due_s()
        if len(rows.under_way) < in_flight and due_s < float("inf"):
            # Rounded up, and later than now: a time that rounds to before the rows are due would be
            # looked at again and again.
            due_ns = max(ceil(due_s * 1e9), now + 1)
            if due_ns != rows.due_ns:
                rows.due_ns = due_ns
                self._run.push_due(index, due_ns)

    def _put_together(
        self, rows: _RowsOfQueue, index: int, runs: Sequence[RowRun[_HeldRows]], now: int
    ) -> None:
        """Take note of a batch, which starts when its ticket is called."""
        count = sum(run.stop - run.start for run in runs)
        first = min(run.block.since_ns for run in runs)
        waited = sum((now - run.block.since_ns) * (run.stop - run.start) for run in runs)
        n_steps = len(rows.steps.order.counts)
        # Numbered behind the items: what is known by item is known of batches by the same lists.
        owner = self._run.time.add(SimulatedBatch(rows.name, count, first, now, waited), n_steps)
        self._run.time.admitted_by[owner] = max(run.block.entry for run in runs)
        self._run.machine.add(n_steps)
        self._run.steps.append(rows.steps)
        self._run.ages.append(NEVER)
        rows.under_way[owner] = runs
        self._batch_rows[owner] = rows, index
        heappush(self.holders, (self._next_ticket(), self._start_batch, owner))

    def _start_batch(self, owner: int, now: int) -> None:
        rows, _ = self._batch_rows[owner]
        work = rows.work.at(self._run.time.batches[owner - self._run.time.items].rows)
        variant = self._run.choose_variant()
        self._run.machine.place_batch(owner, variant, work, rows.steps.order)
        self._run.steps[owner] = replace(rows.steps, calls=work.calls)
        if rows.steps.places[variant].under_way < rows.work.in_flight:
            self._run.give_place(owner, variant, now)
        else:
            rows.waiting.append((owner, variant))

    def end(self, owner: int, now: int) -> None:
        """End the calls whose last rows these were, and let others start."""
        rows, index = self._batch_rows.pop(owner)
        variant = self._run.time.variant[owner]
        # The place that is free is on this variant, and no other batch can have it.
        following = next((one for one in rows.waiting if one[1] == variant), None)
        if following is not None:
            rows.waiting.remove(following)
            self._run.give_place(*following, now)
        for run in rows.under_way.pop(owner):
            run.block.left -= run.stop - run.start
            if not run.block.left:
                self._end_rows(run.block)
        self.look(index, now)
