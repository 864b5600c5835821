"""Rows that run in batches on the thread of their item, while lanes rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ....devices.errors import UnsupportedNodeError
from ....graph.core.nested import walk_nodes
from ....graph.operators.each import VALUE
from ....graph.values.errors import InternalError, PlaitError
from ....graph.values.tensor import Array
from ...dispatch.hand_over import get_hand_over_ns
from ...errors import SessionError
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ..opened.inline import Call, run_steps
from ..opened.open_plan import OpenPlan
from ..opened.shape_plan_cache import ShapePlanCache
from ..opened.slot import Slot
from ..recorder import Recorder
from ..virtual_time import VirtualTimeDriver
from .row_block import RowBlock, check_row_axes, collect_results

MEMORY = 8
"""The number of items over which their rows are averaged, about."""

WITH_OTHERS = 64
"""In hand-overs, the cost of running an item's rows with those of others, by the loop and lanes. A
document of six rows paid 90 (25 µs for each row, two idle cores, 2026-11-30)."""

TRIES = 4
"""The number of batches of one length after which the time of the fastest counts."""


class _Callable(NamedTuple):
    """An open plan, with calls for its steps on the memory of a slot."""

    open_plan: OpenPlan
    slot: Slot
    calls: Sequence[Call]


class InlineRows:
    """Runs the rows of items, each on the thread of the item, without rows of others.

    The `plan` is that of the graph for rows, and at most `batch` rows run together. From any
    thread, `post` awaits a function on the loop; threads that run items at the same time share
    `lock`.
    """

    def __init__(
        self,
        queue: str,
        plan: Plan,
        shape_plans: ShapePlanCache,
        driver: VirtualTimeDriver,
        recorder: Recorder,
        post: Callable[[Callable[[], Awaitable[None]]], object],
        lock: Lock,
    ) -> None:
        self._queue = queue
        self._plan = plan
        self._shape_plans = shape_plans
        self._driver = driver
        self._recorder = recorder
        self._post = post
        self._lock = lock
        tensors = plan.fed.tensors
        (first, *_) = (tensors[name].shape or () for name in plan.fed.inputs)
        self.batch = plan.bounds[str(first[0])][1]
        self._mean_rows = 0.0
        self._runs, self._least_ns = Counter[int](), dict[int, int]()  # by the length of batches
        self._are_opened = False
        # Rows of zeros fill up batches, which kernels take, and functions may not.
        specs = {name: tensors[name] for name in plan.fed.inputs}
        can_fill = not any(spec.dtype.hasobject for spec in specs.values()) and not any(
            node.operator.function is not None for _, _, node in walk_nodes(plan.graph)
        )
        self._may_run = can_fill and plan.is_static and len(plan.bounds) == 1
        self._count = shape_plans.count(plan.in_flight)
        self._has_own_devices = plan.has_own_devices
        self._examples = {
            length: {
                name: np.broadcast_to(
                    spec.dtype.type(), (length, *plan.graph.tensors[name].static_shape[1:])
                )
                for name, spec in specs.items()
            }
            for length in (_choose_lengths(self.batch) if self._may_run else ())
        }

    def note_rows(self, rows: int) -> None:
        self._mean_rows += (rows - self._mean_rows) / (MEMORY if self._mean_rows else 1)

    def is_ready(self, attributes: Mapping[str, Any], variant: int, *, shares: bool) -> bool:
        """Return whether rows can run on `variant`, and those of other items would save no time.

        `attributes` are those of the `Each` node. With `shares`, other threads run items meanwhile.
        """
        if not self._may_run:
            return False
        if attributes["max_delay_s"] or attributes["keep"] or attributes["pad"]:
            return False
        if shares and not self._has_own_devices:
            return False
        found = self._find(self.batch, variant)
        if found is None or found.open_plan.given is not None:
            return False
        return not self._gains_with_others()

    def _gains_with_others(self) -> bool:
        """Return whether the rows of an item would save time in whole batches."""
        rows = max(1, round(self._mean_rows))
        if 2 * rows >= self.batch:
            return False
        length = next(filter(rows.__le__, self._examples))
        whole_ns = self._least_ns.get(self.batch)
        if whole_ns is None or self._runs[length] < TRIES:
            return False
        gain_ns = self._least_ns[length] - whole_ns * rows / self.batch
        return gain_ns > WITH_OTHERS * get_hand_over_ns()

    def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any], variant: int
    ) -> tuple[Array, ...]:
        """Return the results for all rows of an item's `values`, computed on `variant`.

        Raises PlaitError: the error of a row, unless the node's `attributes` keep it.
        """
        rows, now_ns = len(values[0]), self._driver.now_ns()
        keeps_errors = attributes["on_error"] == VALUE
        block = RowBlock(
            rows=rows,
            group=(),
            since_s=0.0,
            due_s=0.0,
            since_ns=now_ns,
            values=tuple(values),
            keeps_errors=keeps_errors,
        )
        with self._lock:
            self.note_rows(rows)
        for start in range(0, rows, self.batch):
            self._run_batch(block, start, min(start + self.batch, rows), variant)
            if block.failures and not keeps_errors:
                break
        return collect_results([block], values, attributes)

    def _run_batch(self, block: RowBlock, start: int, stop: int, variant: int) -> None:
        """Run rows `start` to `stop` of `block` on `variant`, each alone if they fail together."""
        try:
            block.put(start, stop, self._compute(block, start, stop, variant))
        except UnsupportedNodeError:
            self._may_run = False
            raise
        except Exception as error:
            if stop - start == 1 or type(error) is SessionError:
                for row in range(start, stop):
                    block.fail(row, error)
                return
            for row in range(start, stop):
                self._run_batch(block, row, row + 1, variant)

    def _compute(self, block: RowBlock, start: int, stop: int, variant: int) -> Sequence[Array]:
        rows = stop - start
        with self._lock:
            open_plan, slot, calls = self._find_room(rows, variant)
        marks = Timestamps(asked_ns=block.since_ns, given_ns=block.since_ns)
        marks.admitted_ns = self._driver.now_ns()
        for name, value in zip(self._plan.fed.inputs, block.values, strict=True):
            target = slot.feeds.targets[name]
            target[:rows] = value[start:stop]
            target[rows:] = 0
        marks.fed_ns = self._driver.now_ns()
        times, is_failed = open_plan.no_times[:], True
        try:
            run_steps(calls, open_plan.estimates, times)
            results = slot.take_results(lambda results, given: {**results, **given})
            arrays = [results[name] for name in self._plan.fed.outputs]
            check_row_axes(self._plan.fed.outputs, arrays, len(target))
            is_failed = False
        finally:
            marks.finished_ns = marks.landed_ns = now_ns = self._driver.now_ns()
            trace = open_plan.outlines, times, open_plan.pools
            moments = block.since_ns, marks.admitted_ns, now_ns
            waited_s = (marks.admitted_ns - block.since_ns) * rows / 1e9
            with self._lock:
                if not is_failed:
                    self._note_time(len(target), now_ns - marks.fed_ns)
                self._recorder.count_batch(self._queue, rows, waited_s)
                self._recorder.record_batch(self._queue, rows, moments, (trace,), marks, is_failed)
        return [array[:rows] for array in arrays]

    def _note_time(self, length: int, ns: int) -> None:
        self._runs[length] += 1
        self._least_ns[length] = min(ns, self._least_ns.get(length, ns))

    def _find_room(self, rows: int, variant: int) -> _Callable:
        for length in filter(rows.__le__, self._examples):
            found = self._find(length, variant)
            if found is not None:
                return found
            if not self._are_opened:
                self._are_opened = True
                self._post(self._open_lengths)
        raise InternalError("the plan for a whole batch is not open")

    def _find(self, rows: int, variant: int) -> _Callable | None:
        """Return plan, slot and calls of `variant` for `rows` rows; None if they cannot run now."""
        slots, _ = self._shape_plans.peek(self._count, self._examples[rows], variant)
        slot = None if slots is None or slots.stages is not None else slots.resting
        if slots is None or slot is None or slot.calls is None:
            return None
        return _Callable(slots.open_plan, slot, slot.calls)

    async def _open_lengths(self) -> None:
        for example in self._examples.values():
            for variant in range(self._plan.variants):
                with suppress(PlaitError):  # those for more rows will do
                    opening = self._shape_plans.open(self._count, example, variant, Timestamps())
                    if (slots := await opening) is not None:
                        await self._driver.on_thread(slots.fill)


def _choose_lengths(batch: int) -> list[int]:
    lengths, length = [], 1
    while length < batch:
        lengths.append(length)
        length += 1 + length // 8
    return [*lengths, batch]


class ItemRows:
    def __init__(self, inline: Mapping[str, InlineRows], variant: int) -> None:
        self._inline = inline
        self._variant = variant

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any]
    ) -> tuple[Array, ...]:
        return self._inline[attributes["queue"]].run(values, attributes, self._variant)
