"""Rows of items in batches, which run as steps of their own while the calling steps wait.

The scheduler's own `RowQueue` forms the batches. Tickets order the simulated tasks of the loop that
are ready at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush
from math import ceil
from typing import TYPE_CHECKING

from ..dispatch.row_queue import RowGroup, RowQueue, RowRun
from .places import SlotPlaces
from .workload import NEVER, DispatchOrder, RowCall, RowWork, SimulatedBatch

if TYPE_CHECKING:
    from .engine import SimulatedRun

NO_CALLS: Mapping[int, RowCall] = {}


@dataclass(slots=True, eq=False)
class StepsOfKind:
    """The steps of items, or of the batches of a queue: their order and places."""

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
    entry: int
    since_ns: int
    left: int


@dataclass(slots=True, eq=False)
class _RowsOfQueue:
    name: str
    work: RowWork
    steps: StepsOfKind
    queue: RowQueue[_HeldRows]
    under_way: dict[int, Sequence[RowRun[_HeldRows]]] = field(default_factory=dict)
    due_ns: int = NEVER
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Batches without a place yet, and their variants."""


class SimulatedRows:
    """The queues of rows and the batches in flight.

    `holders` is a heap of tickets with a handler and its subject. `places` are those of each queue,
    on each variant.
    """

    def __init__(self, run: SimulatedRun, rows: Mapping[str, RowWork], variants: int) -> None:
        self._run = run
        self._rows = [self._row_queue(name, work, variants) for name, work in rows.items()]
        self.places = [one.steps.places for one in self._rows]
        self._queue_index = {name: index for index, name in enumerate(rows)}
        self.holders: list[tuple[int, Callable[[int, int], None], int]] = []
        self._ticket = 0
        self._tickets: dict[int, int] = {}
        self._batch_rows: dict[int, tuple[_RowsOfQueue, int]] = {}

    def expect(self, entry: int) -> None:
        """Queue a ticket for `entry`, a step that hands over its rows when the loop is free."""
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
        item, step = self._run.locate(entry)
        call = self._run.steps[item].calls[step]
        due_s = now / 1e9 + call.max_delay_s
        # Simulated rows have one shape, so one group.
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
        """Start batches of queue `index` that are full or due at `now`."""
        rows = self._rows[index]
        in_flight = rows.work.in_flight * len(rows.steps.places)
        # Until the limit is reached: a full or due batch starts at once.
        while len(rows.under_way) < in_flight and (runs := rows.queue.take_batch(now / 1e9)):
            self._put_together(rows, index, runs, now)
        due_s = rows.queue.due_s()
        if len(rows.under_way) < in_flight and due_s < float("inf"):
            # Rounded up, and later than now: a time before the rows are due would repeat this
            # forever.
            due_ns = max(ceil(due_s * 1e9), now + 1)
            if due_ns != rows.due_ns:
                rows.due_ns = due_ns
                self._run.push_due(index, due_ns)

    def _put_together(
        self, rows: _RowsOfQueue, index: int, runs: Sequence[RowRun[_HeldRows]], now: int
    ) -> None:
        count = sum(run.stop - run.start for run in runs)
        first = min(run.block.since_ns for run in runs)
        waited = sum((now - run.block.since_ns) * (run.stop - run.start) for run in runs)
        n_steps = len(rows.steps.order.counts)
        # Numbered after the items, so that the same lists describe batches.
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
        """End batch `owner` at `now`, and calls that wait for its rows; start waiting batches."""
        rows, index = self._batch_rows.pop(owner)
        variant = self._run.time.variant[owner]
        # The free place is on this variant, for batches of this queue.
        following = next((one for one in rows.waiting if one[1] == variant), None)
        if following is not None:
            rows.waiting.remove(following)
            self._run.give_place(*following, now)
        for run in rows.under_way.pop(owner):
            run.block.left -= run.stop - run.start
            if not run.block.left:
                self._end_rows(run.block)
        self.look(index, now)
