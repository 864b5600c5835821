"""Batches of items that many tasks ask for: each task gets the results of its own.

A batch is put together when it may start, not before, so that items that come while others run
still gets into it. If it fails, its items run again, each alone: only those that are wrong fail.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import trio

from ....graph.core.nested import acts_outside
from ....graph.core.state import has_assignments
from ....graph.values.tensor import Array
from ...dispatch.batch_queue import NEVER, BatchQueue, QueuedItem
from ...errors import FeedError, QueueFullError, SessionError
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ..items.deadlines import check_deadline, deadline_error
from ..items.item import ItemRun
from ..opened.fetch_plan_cache import ALL
from ..opened.results import to_values
from ..opened.shape_plan_cache import KEPT_SHAPES
from ..queue import ItemQueue, QueuePlace
from ..tasks import open_nursery
from .batching import Batch, Batching, find_batching, may_succeed_alone
from .carrier import Carrier

_shape = attrgetter("shape")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large batches are, and how long items wait for them: as for `MicroBatches`.

    Raises SessionError if they make no sense.
    """

    size: int
    max_delay_s: float = 0.0
    max_waiting: int = 256
    pad: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("max_waiting", self.max_waiting)):
            if not isinstance(value, int) or value < 1:
                raise SessionError(f"{name} is {value!r}", fix="use a whole number, 1 or more")
        if not 0 <= self.max_delay_s < NEVER:
            raise SessionError(
                f"max_delay_s is {self.max_delay_s!r}",
                fix="give the seconds that the first item of a batch may wait for others",
            )


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiting(QueuedItem):
    arrays: Mapping[str, Array]
    item_run: ItemRun
    deadline_s: float | None


class BatchServer:
    """Runs items of any task in batches; used on the trio thread only."""

    def __init__(
        self, carrier: Carrier, plan: Plan, batching: Batching, limits: BatchLimits
    ) -> None:
        self._carrier = carrier
        self._plan = plan
        self._batching = batching
        self._limits = limits
        # External effects must not happen twice: then all items of a batch fail together.
        self._retries = not any(map(acts_outside, plan.graph.nodes))
        self._queue: BatchQueue[_Waiting] = BatchQueue(limits.size, limits.max_delay_s)
        self._alone: deque[_Waiting] = deque()
        self._scopes: dict[ItemRun, trio.CancelScope] = {}
        self._starts = ItemQueue()
        self._news = trio.lowlevel.ParkingLot()
        self._counts: Counter[str] = Counter()
        self._waited_s = 0.0
        self._is_closed = False
        self._check_shapes = lru_cache(KEPT_SHAPES)(self._shapes_checked)

    def status(self) -> MicroBatchesStatus:
        counts = self._counts
        return MicroBatchesStatus(
            waiting=len(self._queue) + len(self._alone),
            in_flight=len(self._scopes),
            batches=counts["batches"],
            items=counts["items"],
            rows=counts["rows"],
            waited_s=self._waited_s,
            refused=counts["refused"],
            expired=counts["expired"],
            retried_alone=counts["retried_alone"],
        )

    async def run(
        self, inputs: Mapping[str, Any], *, deadline_s: float | None, client: Hashable
    ) -> dict[str, Array]:
        """Run `inputs` of `client` in a batch within `deadline_s`; return the outputs by name."""
        waiting = self._enter(inputs, deadline_s, client)
        item_run = waiting.item_run
        try:
            if deadline_s is None:
                await item_run.done.wait()
            else:
                with trio.move_on_at(waiting.until_s):
                    await item_run.done.wait()
                self._expire(waiting)
            marks = item_run.marks
            marks.taken_ns = marks.released_ns = self._carrier.now_ns()
            if item_run.error is not None:
                raise item_run.error
            return to_values(item_run.results)
        except BaseException as error:
            self._leave(waiting, error)
            raise
        finally:
            item_run.let_go()

    @trio.lowlevel.enable_ki_protection
    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()  # it accepts items when its starter continues
            while True:
                chosen = self._choose()
                if chosen:
                    batch = Batch(self._batching, partial(self._take_failed, chosen))
                    for waiting in chosen:
                        batch.put(waiting.item_run, waiting.arrays, waiting.rows)
                    self._scopes[batch.item_run] = trio.CancelScope()
                    nursery.start_soon(self._run, batch, self._starts.enter())
                    continue
                with trio.move_on_at(self._queue.due_s() if self._has_room else NEVER):
                    await self._news.park()

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        self._is_closed = True
        for waiting in (*self._queue, *self._alone):
            self._leave(waiting, _closed_error())

    @trio.lowlevel.enable_ki_protection
    def _enter(
        self, inputs: Mapping[str, Any], deadline_s: float | None, client: Hashable
    ) -> _Waiting:
        """Put `inputs` of `client` in the queue for up to `deadline_s`; return the waiting item.

        Raises SessionError if it fits into no batch, the queue is full or closed, or the arguments
        make no sense.
        """
        check_deadline(deadline_s)
        if self._is_closed:
            raise _closed_error()
        try:
            hash(client)
        except TypeError:
            raise SessionError(
                f"client is a {type(client).__name__}, which cannot be told from others",
                fix="use what can be a key of a dict, such as a name",
            ) from None
        carrier, now_s = self._carrier, trio.current_time()
        asked_ns = carrier.now_ns()
        # Before it is in the queue: a wrong item would fail all that it was stacked with.
        arrays, rows = self._checked(carrier.keys.added(carrier.borrowed(inputs)))
        if len(self._queue) >= self._limits.max_waiting:
            self._counts["refused"] += 1
            raise QueueFullError(
                f"{len(self._queue)} items wait for a batch already",
                fix="ask again later, or let more wait: max_waiting=",
            )
        waiting = _Waiting(
            rows=rows,
            group=tuple(array.shape[1:] for array in arrays.values()),
            client=client,
            since_s=now_s,
            until_s=NEVER if deadline_s is None else now_s + float(deadline_s),
            arrays=arrays,
            item_run=ItemRun(on_done=self._announce, marks=Timestamps(asked_ns, asked_ns)),
            deadline_s=deadline_s,
        )
        self._queue.add(waiting)
        self._look()
        return waiting

    def _checked(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return `inputs` as arrays, and the number of rows; FeedError if no batch takes them."""
        arrays, rows = self._batching.check(inputs)
        if rows > self._limits.size:
            raise FeedError(
                f"an item of {rows} rows does not fit into a batch of {self._limits.size}",
                fix=f"feed fewer rows, or have larger batches: size={rows}",
            )
        self._check_shapes(tuple(map(_shape, arrays.values())))
        return arrays, rows

    def _shapes_checked(self, shapes: Sequence[tuple[int, ...]]) -> None:
        named = dict(zip(self._batching.graph.inputs, shapes, strict=True))
        self._batching.check_shapes(named, self._plan.bounds, self._plan.computed)

    @property
    def _has_room(self) -> bool:
        return len(self._scopes) < self._plan.in_flight

    def _choose(self) -> list[_Waiting]:
        """Take the items of the next batch out of the queue; none if none may start now."""
        now_s = trio.current_time()
        # Late ones leave first: their rows would take room from others.
        for waiting in self._queue.take_late(now_s):
            self._expire(waiting)
        if not self._has_room:
            return []
        # Those have waited for a batch already, which another item made fail.
        while self._alone:
            waiting = self._alone.popleft()
            if waiting.until_s <= now_s:
                self._expire(waiting)
            if not waiting.item_run.done.is_set():
                return [waiting]
        chosen = self._queue.take_batch(now_s)
        if chosen:
            rows = sum(waiting.rows for waiting in chosen)
            self._counts.update(batches=1, items=len(chosen), rows=rows)
            self._waited_s += sum(now_s - waiting.since_s for waiting in chosen)
        return chosen

    @trio.lowlevel.enable_ki_protection
    async def _run(self, batch: Batch, place: QueuePlace) -> None:
        """Run `batch` in the turn of `place`; cancel it if it has no callers, or on closing."""
        carrier, item_run, is_started = self._carrier, batch.item_run, False
        try:
            with self._scopes[item_run]:
                inputs = await carrier.copying(batch.arrays(), batch.stacked)
                # Copying took them different times; batches are admitted in the order in which they
                # were chosen.
                await place.wait_first()
                slots = self._plan.in_flight
                is_started = await carrier.admit_at_once(inputs, slots, item_run, ALL)
                if not is_started:
                    await carrier.admit(inputs, slots, item_run, ALL)
                    is_started = True
                place.leave()
                await item_run.done.wait()
        except Exception as error:
            item_run.finish(error=error)
        finally:
            place.leave()
            if is_started and not item_run.done.is_set():
                await carrier.drain({item_run})
            elif not item_run.done.is_set():
                item_run.finish(error=_closed_error())
            item_run.marks.taken_ns = item_run.marks.released_ns = carrier.now_ns()
            del self._scopes[item_run]
            self._look()

    def _take_failed(self, chosen: Sequence[_Waiting], batch: Batch) -> None:
        can_help = may_succeed_alone(batch.item_run.error)
        if can_help and len(chosen) > 1 and self._retries:
            left = set(batch.take_out())
            again = [waiting for waiting in chosen if waiting.item_run in left]
            self._counts["retried_alone"] += len(again)
            self._alone.extend(again)

    def _expire(self, waiting: _Waiting) -> None:
        if not waiting.item_run.done.is_set():
            assert waiting.deadline_s is not None, "it has a time at which it is late"
            self._counts["expired"] += 1
            self._leave(waiting, deadline_error(waiting.deadline_s))

    @trio.lowlevel.enable_ki_protection
    def _leave(self, waiting: _Waiting, error: BaseException) -> None:
        item_run = waiting.item_run
        if item_run.done.is_set():
            return
        self._queue.remove(waiting)
        batch = item_run.batch
        item_run.finish(error=error)
        if batch is not None and batch.is_deserted and batch in self._scopes:
            self._scopes[batch].cancel()

    def _announce(self, item_run: ItemRun) -> None:
        self._carrier.announce(item_run.marks, item_run.error)

    def _look(self) -> None:
        if self._news:
            self._news.unpark_all()


@asynccontextmanager
async def open_batches(carrier: Carrier, limits: BatchLimits) -> AsyncIterator[BatchServer]:
    """Yield a server of batches within `limits` on `carrier`; on exit, fail, cancel and drain them.

    Raises SessionError if the graph takes no batches.
    """
    plan = await carrier.plan_for(ALL)
    if plan.ends.devices:
        raise SessionError(
            "arrays that are handed over or taken on devices are not stacked there",
            fix="leave inputs_on and outputs_on out when planning",
        )
    if has_assignments(plan.graph):
        raise SessionError(
            "items of this graph assign to variables: each needs what the one before left there",
            fix="run them one by one",
        )
    batching = find_batching(
        plan.fed, limits.size, plan.bounds, unneeded=plan.unneeded, pad=limits.pad
    )
    await carrier.prepare(plan.in_flight, ALL)
    server = BatchServer(carrier, plan, batching, limits)
    async with open_nursery() as nursery:
        await nursery.start(server.serve)
        try:
            yield server
        finally:
            server.close()
            nursery.cancel_scope.cancel()


def _closed_error() -> SessionError:
    return SessionError(
        "the batches were closed before the item was done",
        fix="leave them when all runs have ended",
    )


@dataclass(frozen=True, slots=True)
class MicroBatchesStatus:
    """The present and past work of `MicroBatches`."""

    waiting: int
    """Items in the queue."""
    in_flight: int
    """Batches under way."""
    batches: int
    items: int
    rows: int
    """Batches that were started, the items in them, and the rows of these. Those that run again
    alone are not counted again."""
    waited_s: float
    """How long these items waited in the queue, in seconds, all of them together."""
    refused: int
    """Items that the queue had no room for."""
    expired: int
    """Items that were not done within their deadlines, in the queue or in a batch."""
    retried_alone: int
    """Items that run again alone, since their batch failed."""

    @property
    def mean_rows(self) -> float:
        """The rows of a batch in the mean; 0 before the first one."""
        return self.rows / self.batches if self.batches else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean_rows": self.mean_rows}
