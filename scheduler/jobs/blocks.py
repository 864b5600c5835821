"""Blocks of rows: items of a job that run together, as one item of its stream.

A stream takes longer to hand an item over than most functions take for a row. So functions are
called for all rows of a block in one step, and graphs compute them stacked. Each row has a result
or an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...graph.core.state import has_assignments
from ...graph.operators.randomness import RANDOM_KEY
from ..bridges.listed_rows import HAND_OVERS, ListedRows, plan_listed_rows
from ..dispatch.hand_over import get_hand_over_ns
from ..plans.plan import Plan
from ..runtime.streaming.batching import ItemStack, find_batching
from ..runtime.streaming.options import StreamArguments, stream_options

APART = ("deadline_s", "key", "max_delay_s", "pad")
"""Options of streams that are about single items."""


class RowBlocks(NamedTuple):
    """How rows become items of a stream of a plan, with its options.

    `begin` returns an empty block, which gets from `least` to `most` rows.
    """

    plan: Plan
    options: StreamArguments
    begin: Callable[[], SingleRow | ListedRows | StackedRows]
    least: int = 1
    most: int = 1

    def limit(self, before: int, row_s: float, longest_s: float) -> int:
        block_s = min(HAND_OVERS * get_hand_over_ns() / 1e9, longest_s)
        return max(self.least, min(self.most, 2 * before, int(block_s / max(row_s, 1e-9))))


def choose_blocks(plan: Plan, stream: StreamArguments, most: int) -> RowBlocks:
    """Choose blocks of rows for a `stream` of `plan`, with at most `most` rows each.

    If items cannot share a run, blocks have one row.
    """
    is_apart = any(stream.get(option) is not None for option in APART) or plan.ends.devices
    if is_apart or has_assignments(plan.fed) or RANDOM_KEY in plan.fed.inputs:
        return RowBlocks(plan, stream, SingleRow)
    options = stream_options(plan, stream)
    if (size := options.batch) is not None:
        batching = find_batching(plan.fed, size, plan.bounds, unneeded=plan.unneeded)
        shared: StreamArguments = {**stream, "batch": None, "max_in_flight": options.slots}
        return RowBlocks(plan, shared, partial(StackedRows, batching), size, size)
    if (made := plan_listed_rows(plan)) is None:
        return RowBlocks(plan, stream, SingleRow)
    in_flight = min(options.max_in_flight, plan.in_flight)
    most = max(1, (stream.get("max_in_flight") or most) // in_flight)
    shared = {**stream, "max_in_flight": in_flight}
    return RowBlocks(made, shared, partial(ListedRows, plan.fetchable), most=most)


class SingleRow:
    """An item of the stream by itself. All blocks have the feeds of each row in `rows`."""

    def __init__(self) -> None:
        self.rows = list[Mapping[str, Any]]()

    def add(self, feeds: Mapping[str, Any]) -> bool:
        """Add row `feeds`; return False if it does not fit. Raises FeedError if it fits nowhere."""
        self.rows.append(feeds)
        return True

    def join(self) -> Mapping[str, Any]:
        """Return the feeds of the item."""
        return self.rows[0]

    def divide(self, outputs: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | Exception]:
        """Return the result or the error of each row from the `outputs` of the block."""
        return [outputs]


class StackedRows(ItemStack):
    """Rows along the first axis of each input."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.feeds

    def add(self, feeds: Mapping[str, Any]) -> bool:
        arrays, rows = self._batching.check_rows(feeds)
        if not self.fits(arrays, rows):
            return False
        # The source may use its arrays again.
        self.push({name: array.copy() for name, array in arrays.items()}, rows)
        return True

    def join(self) -> Mapping[str, Any]:
        return self.stacked()
