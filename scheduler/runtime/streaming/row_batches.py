"""Batches of rows: the rows that `Each` nodes of all items in flight hand over run together.

A node's function puts its rows in the queue of its graph as one block, unless they have come there
one by one already, and is awaited until each of them has run. A batch is put together when it may
start, from the rows that have waited longest. If it fails, its rows run again, each alone: only
those that are wrong fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import trio

from ....graph.operators.each import EACH, NEWEST, VALUE
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Array
from ...dispatch.row_queue import NEVER, RowQueue, RowRun
from ...errors import SessionError
from ...plans.plan import Plan
from ..items.item import ItemRun
from ..items.padding import make_row_padding
from ..opened.open_plans import OpenPlans
from ..opened.results import Results
from ..opened.shape_plan_cache import ShapePlanCache
from ..opened.slots import Slots
from ..recorder import Recorder
from ..running.inline_rows import InlineRows
from ..running.row_block import RowBlock, check_row_axes, collect_results
from ..virtual_time import VirtualTimeDriver
from .carrier import Starter


class RowBatches:
    """Runs rows in batches, by a plan for each queue; used on the trio thread only."""

    def __init__(
        self,
        plan: Plan,
        open_plans: OpenPlans,
        starter: Starter,
        driver: VirtualTimeDriver,
        recorder: Recorder,
        lock: Lock,
    ) -> None:
        self.servers = {
            queue: QueueServer(queue, body, open_plans, starter, driver, recorder, lock)
            for queue, body in plan.bodies.items()
        }
        self.inline = {queue: server.inline for queue, server in self.servers.items()}
        self._driver = driver
        self._scope = trio.CancelScope()
        self._ended: trio.Event | None = None

    async def open(self) -> list[Slots]:
        opened: list[Slots] = []
        for server in self.servers.values():
            opened += await server.open()
        if self.servers:
            self._ended = trio.Event()
            self._driver.spawn(self._serve, self._ended)
        return opened

    async def close(self) -> None:
        """End the batches; no item waits for one any more. It may never have been opened."""
        self._scope.cancel()
        if self._ended is not None:
            await self._ended.wait()

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any]
    ) -> tuple[Array, ...]:
        return await self.servers[attributes["queue"]].run(values, attributes, ())

    async def _serve(self, ended: trio.Event) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for server in self.servers.values():
                        nursery.start_soon(server.serve)
        finally:
            ended.set()


class QueueServer:
    def __init__(
        self,
        queue: str,
        plan: Plan,
        open_plans: OpenPlans,
        starter: Starter,
        driver: VirtualTimeDriver,
        recorder: Recorder,
        lock: Lock,
    ) -> None:
        self._plan = plan
        self._in_flight = plan.in_flight  # takes long to compute, and each batch needs it
        self._names = plan.fed.inputs
        self._outputs = plan.fed.outputs
        self._shape_plans = ShapePlanCache(plan, open_plans, (EACH, queue))
        self.inline = InlineRows(queue, plan, self._shape_plans, driver, recorder, self._post, lock)
        self._starter = starter
        self._driver = driver
        self._recorder = recorder
        self._queue_name = queue
        self._queue: RowQueue[RowBlock] = RowQueue(self.inline.batch)
        self._alone: deque[RowRun[RowBlock]] = deque()
        self._under_way: dict[ItemRun, tuple[Sequence[RowRun[RowBlock]], trio.CancelScope]] = {}
        self._news = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._keep, self._drops_newest = 0, False  # as the nodes say that hand rows over

    async def open(self) -> list[Slots]:
        if not self._plan.is_static:
            return []
        return await self._shape_plans.open_own(self._shape_plans.count(self._in_flight))

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any], blocks: Sequence[RowBlock]
    ) -> tuple[Array, ...]:
        """Return the results of rows `values`, queued in `blocks` or now with `attributes`."""
        self.inline.note_rows(len(values[0]))
        blocks = blocks or [self.enter(values, attributes)]
        keeps_errors = attributes["on_error"] == VALUE
        try:
            for block in blocks:
                if block.rows:
                    await block.done.wait()
                if block.failures and not keeps_errors:
                    break
        finally:
            self.leave(blocks)
            with trio.CancelScope(shield=True):
                for block in blocks:
                    while block.readers:  # the item's memory is its own till then
                        await block.unread.wait()
        return collect_results(blocks, values, attributes)

    @trio.lowlevel.enable_ki_protection
    def leave(self, blocks: Sequence[RowBlock]) -> None:
        """Take out the rows of `blocks` for which no item waits any more."""
        for block in blocks:
            block.done.set()
            self._queue.remove(block)
        self._desert()

    @trio.lowlevel.enable_ki_protection
    def enter(self, values: Sequence[Array], attributes: Mapping[str, Any]) -> RowBlock:
        now_s = trio.current_time()
        padding, length = None, 0
        if attributes["pad"]:
            padding = make_row_padding(self._plan.fed, attributes["pad"], self._plan.bounds)
            filled = padding.fill(dict(zip(self._names, values, strict=True)))
            values, length = [*filled.values()], filled.length
        block = RowBlock(
            rows=len(values[0]),
            group=tuple(value.shape[1:] for value in values),
            since_s=now_s,
            since_ns=self._driver.now_ns(),
            due_s=now_s + attributes["max_delay_s"],
            values=tuple(values),
            keeps_errors=attributes["on_error"] == VALUE,
            padding=padding,
            length=length,
        )
        self._keep, self._drops_newest = attributes["keep"], attributes["drop"] == NEWEST
        if block.rows:
            self._queue.add(block)
            self._look()
        return block

    @trio.lowlevel.enable_ki_protection
    async def serve(self) -> None:
        """Start batches when they are due; never returns."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                runs = self._choose()
                if runs:
                    is_copy = len(runs) > 1
                    item_run = ItemRun(is_part=True, owns_inputs=is_copy)
                    scope = trio.CancelScope()
                    self._under_way[item_run] = runs, scope
                    nursery.start_soon(self._run, item_run, runs, scope, self._driver.ticket())
                    continue
                self._shed()
                with trio.move_on_at(self._queue.due_s() if self._has_room else NEVER):
                    await self._news.park()

    def _post(self, function: Callable[[], Awaitable[None]]) -> None:
        """Await `function()` on the loop, while batches are served; from any thread."""

        def start() -> None:
            if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
                self._nursery.start_soon(function)

        self._driver.post(start)

    def _shed(self) -> None:
        runs = self._queue.shed(self._keep, newest=self._drops_newest) if self._keep else ()
        for run in runs:
            run.block.drop(run.start, run.stop)
        if runs:
            dropped = sum(run.stop - run.start for run in runs)
            self._recorder.count_dropped_rows(self._queue_name, dropped)

    @property
    def _has_room(self) -> bool:
        return len(self._under_way) < self._in_flight

    def _choose(self) -> Sequence[RowRun[RowBlock]]:
        """Take the rows of the next batch out of the queue; none if none may start now."""
        if not self._has_room:
            return ()
        # Rows of a batch that failed come first: their items have waited longest, and one of them
        # fails alone.
        while self._alone:
            run = self._alone.popleft()
            if not run.block.done.is_set():
                return (run,)
        now_s = trio.current_time()
        runs = self._queue.take_batch(now_s)
        waited_s = sum((now_s - run.block.since_s) * (run.stop - run.start) for run in runs)
        if runs:
            rows = sum(run.stop - run.start for run in runs)
            self._recorder.count_batch(self._queue_name, rows, waited_s)
        return runs

    @trio.lowlevel.enable_ki_protection
    async def _run(
        self,
        item_run: ItemRun,
        runs: Sequence[RowRun[RowBlock]],
        scope: trio.CancelScope,
        ticket: int,
    ) -> None:
        is_started = False
        started_ns = self._driver.now_ns()
        first_ns = min(run.block.since_ns for run in runs)
        try:
            with scope:
                # On virtual clocks tasks go on in the order in which their batches were chosen.
                await self._driver.in_order(ticket)
                await self._admit(item_run, runs)
                is_started = True
                await item_run.done.wait()
        except Exception as error:
            item_run.finish(error=error)
        finally:
            if is_started and not item_run.done.is_set():
                await self._starter.drain({item_run})
            elif not item_run.done.is_set():
                item_run.finish(error=_closed_error())
            del self._under_way[item_run]
            self._recorder.record_batch(
                self._queue_name,
                sum(run.stop - run.start for run in runs),
                (first_ns, started_ns, self._driver.now_ns()),
                item_run.traces,
                item_run.marks,
                item_run.error is not None,
            )
            self._end(runs, item_run.results, item_run.error)
            item_run.let_go()
            self._look()

    async def _admit(self, item_run: ItemRun, runs: Sequence[RowRun[RowBlock]]) -> None:
        """Start `item_run`, a batch of the rows in `runs`, of one item's block or of several.

        The rows of one block are read where they lie, since its item waits for the batch. Those of
        several are copied, since each item may end before the batch does.
        """
        parts = [
            [run.block.values[index][run.start : run.stop] for run in runs]
            for index in range(len(self._names))
        ]
        with ExitStack() as reading:
            for run in runs:
                reading.enter_context(run.block.reading())
            if len(runs) > 1:
                stack = partial(_stack, self._names, parts)
                inputs = await self._starter.copying(chain(*parts), stack)
                reading.close()
            else:
                inputs = {name: one for name, (one,) in zip(self._names, parts, strict=True)}
            await self._starter.admit_on(self._shape_plans, inputs, self._in_flight, item_run)

    def _end(
        self, runs: Sequence[RowRun[RowBlock]], results: Results, error: BaseException | None
    ) -> None:
        # Others may have ended meanwhile, and take no rows.
        waiting = [run for run in runs if not run.block.done.is_set()]
        n_rows = sum(run.stop - run.start for run in runs)
        if error is None:
            arrays = [results[name] for name in self._outputs]
            try:
                check_row_axes(self._outputs, arrays, n_rows)
            except ShapeError as failure:
                error = failure
        # One row may have failed all: alone, each gets its own result or error. A session that
        # closes would refuse them as well.
        if error is not None and n_rows > 1 and type(error) is not SessionError:
            self._alone.extend(
                RowRun(run.block, row, row + 1)
                for run in waiting
                for row in range(run.start, run.stop)
            )
            return
        begin = 0
        for run in runs:
            end = begin + run.stop - run.start
            if run in waiting:
                self._hand_out(run, error, [] if error else [one[begin:end] for one in arrays])
            begin = end

    def _hand_out(
        self, run: RowRun[RowBlock], error: BaseException | None, arrays: Sequence[Array]
    ) -> None:
        if error is None:
            if (padding := run.block.padding) is not None:
                named = zip(self._outputs, arrays, strict=True)
                arrays = [padding.cut(name, one, run.block.length) for name, one in named]
            try:
                run.block.put(run.start, run.stop, arrays)
            except (ShapeError, MemoryError) as failure:
                error = failure
        if error is not None:
            for row in range(run.start, run.stop):
                run.block.fail(row, error)

    def _desert(self) -> None:
        for runs, scope in self._under_way.values():
            # A batch continues while one item in it needs its rows.
            if all(run.block.done.is_set() for run in runs):
                scope.cancel()

    def _look(self) -> None:
        if self._news:
            self._news.unpark_all()


def _stack(names: Sequence[str], parts: Sequence[Sequence[Array]]) -> dict[str, Array]:
    return {name: np.concatenate(each) for name, each in zip(names, parts, strict=True)}


def _closed_error() -> SessionError:
    return SessionError(
        "the session was closed before the rows had run", fix="leave it when all items have ended"
    )
