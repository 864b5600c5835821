"""Items of a pipeline that run together, as one item of a session.

To hand an item over to a batch takes longer than many steps take for it. So where a pipeline has
steps that take several items, a stream gathers items itself: functions of Python objects alone get
lists of them, and steps with models run as inside `each`, for a list of items.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from ...graph.functions.function_state import find_code, find_state
from ...graph.values.errors import GraphError, PlaitError
from ..bridges.blocking_session import BlockingSession
from ..bridges.listed_rows import HAND_OVERS, Failure, ListedRows
from ..dispatch.hand_over import get_hand_over_ns
from ..errors import SessionError
from .building import RESULT
from .callables import list_results, split_result
from .step_options import ITEM, is_class
from .steps import Each, PipelineStep, each

LEAST_ITEMS = 32
"""A block has several batches if it would be shorter."""

END: Any = object()

Feeds: TypeAlias = Mapping[str, Any]


class ItemList:
    """Items that are one list; their outputs have `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.rows = list[Feeds]()

    def add(self, feeds: Feeds) -> None:
        self.rows.append(feeds)

    def join(self) -> Feeds:
        return {ITEM: [one[ITEM] for one in self.rows]}

    def divide(self, outputs: Feeds) -> Sequence[Feeds | Exception]:
        found = outputs.get(RESULT)
        if found is None or isinstance(found, np.ndarray):  # a model comes last
            places = range(len(self.rows))
            return [{name: one[n : n + 1] for name, one in outputs.items()} for n in places]
        return [dict(zip(self._names, split_result(one), strict=True)) for one in found]


def list_steps(steps: Sequence[PipelineStep | Each], count: Callable[[str], int]) -> Each | None:
    """Return `steps` for a list of items; None if that could differ from one item at a time.

    Models have one size of batches, and a step gets the results of the one before, a `count` each.
    """
    plain = [one for one in steps if isinstance(one, PipelineStep)]
    sizes = {one.batch for one in plain if one.model is not None}
    are_plain = len(plain) == len(steps) and all(map(_is_plain, plain))
    if not are_plain or len(sizes) != 1 or (size := sizes.pop()) is None:
        return None
    made = [_fit_in(one, count(one.name)) for one in plain]
    largest = max(one.batch or 1 for one in plain)
    return each(*made, name="items", batch=size, most=count_items(largest))


def _fit_in(one: PipelineStep, count: int) -> PipelineStep:
    """Return `one` for an `each`, which sees `count` results of a function, as in the examples."""
    if one.model is not None:
        return replace(one, batch=None, max_delay_s=0.0)
    call, step, takes_lists = one.function, one.name, one.batch is not None

    def hold(found: Any) -> Any:
        if count > 1 and (type(found) is not tuple or len(found) != count):
            raise GraphError(f"it returns other than {count} results", at=f"step {step!r}")
        return (found,) if count == 1 and type(found) is tuple else found

    def run(*values: Any) -> Any:
        found = call(*values)
        if not takes_lists:
            return hold(found)
        return [hold(row) for row in list_results(found, len(values[0]), step)]

    return replace(one, target=run, ordered=False)


def _is_plain(one: PipelineStep) -> bool:
    if one.model is not None or one.inputs is not None:
        return one.inputs is None and not one.pad
    is_apart = one.workers or one.device or one.concurrency or one.ordered or is_class(one.target)
    is_kept = one.ordered is None and find_state(one.function)
    return not (is_apart or is_kept or iscoroutinefunction(find_code(one.function)))


def count_items(size: int) -> int:
    """Return the largest number of items of a block, for batches of `size`."""
    return max(1, LEAST_ITEMS // size) * size


@dataclass(frozen=True, slots=True)
class ItemBlocks:
    """Runs streams of items in blocks, by the `session` of a plan for these.

    An empty block is made by `begin`. Steps take up to `size` items at once, for which an item
    waits up to `max_delay_s`. Items of a block that fails are run again by `run_alone`.
    """

    session: BlockingSession
    begin: Callable[[], ListedRows | ItemList]
    size: int
    max_delay_s: float
    run_alone: Callable[[Feeds], Feeds]

    def run(
        self, feeds: Iterable[Feeds], max_in_flight: int | None, *, ordered: bool
    ) -> Iterator[Feeds | BaseException]:
        """Yield the outputs or the error of each item in `feeds`, `max_in_flight` at a time."""
        most, count = count_items(self.size), max(2, self.session.plan.variants)
        if max_in_flight is not None:
            count = min(count, max_in_flight)
            most = min(most, max_in_flight // count)
        blocks: dict[int, tuple[int, ListedRows | ItemList]] = {}
        source = self._gather(feeds, most - most % self.size or most, blocks)
        with self.session.stream(source, max_in_flight=count, ordered=ordered) as results:
            for item in results:
                first, block = blocks.pop(item.index)
                again = map(partial(self._run_again, item.error), block.rows)
                found = block.divide(item.outputs) if item.error is None else again
                for number, one in enumerate(found, first):
                    if isinstance(one, PlaitError):
                        one = one.again()  # a catcher adds notes to its own
                        one.item = number
                    yield one

    def _run_again(self, failure: BaseException | None, feeds: Feeds) -> Feeds | BaseException:
        if isinstance(failure, SessionError):  # the pipeline was closed
            return failure
        if refused := next((one for one in feeds.values() if type(one) is Failure), None):
            return refused.error
        try:
            return self.run_alone(feeds)
        except PlaitError as error:
            return error

    def _gather(
        self,
        feeds: Iterable[Feeds],
        most: int,
        blocks: dict[int, tuple[int, ListedRows | ItemList]],
    ) -> Iterator[Feeds]:
        """Yield the feeds of blocks, and note in `blocks` the first item and the rows of each."""
        source, first, one, failure = iter(feeds), 0, END, None
        # Gathering one that takes longer would hold up its first items.
        limit_ns = max(HAND_OVERS * get_hand_over_ns(), 1e9 * self.max_delay_s)
        for number in itertools.count():
            block, begin_ns, length = self.begin(), perf_counter_ns(), 0
            while length < most and (not length or perf_counter_ns() - begin_ns < limit_ns):
                try:
                    one = next(source, END)
                except Exception as error:  # after the results of the items before it
                    failure, one = error, END
                if one is END:
                    break
                try:
                    block.add(one)
                except PlaitError as error:
                    assert isinstance(block, ListedRows), "lists take any item"
                    block.fail(error)
                length += 1
            if length:
                blocks[number] = first, block
                first += length
                yield block.join()
            if failure is not None:
                raise failure
            if one is END:
                return
