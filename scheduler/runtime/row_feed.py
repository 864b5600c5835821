"""Rows on their way from a generator function to batches, while it still yields others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import trio

from ...devices.event import Event
from ...graph.operators.each import row_server
from ...graph.tensor import Array
from ..dispatch.row_edges import RowEdge

if TYPE_CHECKING:
    from .streaming.row_block import RowBlock
    from .virtual_time import VirtualTimeDriver


class RowTaker(Protocol):
    """Runs rows in batches, those also that come one by one."""

    def enter(self, values: Sequence[Array], attributes: Mapping[str, Any]) -> RowBlock:
        """Have rows wait for a batch."""
        ...

    def leave(self, blocks: Sequence[RowBlock], attributes: Mapping[str, Any]) -> None:
        """Take out rows that nobody waits for any more."""
        ...

    async def run_blocks(
        self,
        values: Sequence[Array],
        attributes: Mapping[str, Any],
        blocks: Sequence[RowBlock],
    ) -> tuple[Array, ...]:
        """Return the results for all rows, which have been entered as these blocks."""
        ...


class RowFeed:
    """Hands the rows of an item to batches as they are yielded; its `RowServer` is what waits.

    It belongs to the memory that the generator writes to, which one item has at a time: from when
    the generator begins until the `Each` node has ended. Rows are copied as they come, so that
    whoever reads them need not know when that memory is given to the next item.

    Parameters
    ----------
    edge : RowEdge
    driver : VirtualTimeDriver
    """

    def __init__(self, edge: RowEdge, driver: VirtualTimeDriver) -> None:
        self.edge = edge
        self._driver = driver
        self._yielded: deque[list[Array]] = deque()
        self._is_told = False
        self._entered: list[RowBlock] = []

    def receive(self, row: Sequence[Array | None]) -> None:
        """Take over what a generator has yielded, on its thread."""
        self._yielded.append([np.array(row[pick])[np.newaxis] for pick in self.edge.picks])
        if not self._is_told:  # one turn of the loop for all that come before it
            self._is_told = True
            self._driver.call(self._enter)

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any]
    ) -> tuple[Array, ...]:
        """Return the results for all rows, now that the generator is through."""
        return await self._taker.run_blocks(values, attributes, self._take())

    def abandon(self) -> None:
        """Take out the rows of an item that has ended before it waited for them."""
        self._taker.leave(self._take(), self.edge.each.attributes)

    @property
    def _taker(self) -> RowTaker:
        return cast("RowTaker", self._driver.context[row_server])

    def _take(self) -> list[RowBlock]:
        self._enter()
        entered, self._entered = self._entered, []
        return entered

    @trio.lowlevel.enable_ki_protection  # or Ctrl-C might strike while a row is in neither
    def _enter(self) -> None:
        # Before it looks: what comes later is told again. Without a GIL both sides might miss each
        # other; then the rows enter with the next, or as the generator has ended.
        self._is_told = False
        rows = [self._yielded.popleft() for _ in range(len(self._yielded))]
        if rows:
            # What came since the last turn is one block: rows of a generator have one shape.
            values = (
                rows[0] if len(rows) == 1 else list(map(np.concatenate, zip(*rows, strict=True)))
            )
            self._entered.append(self._taker.enter(values, self.edge.each.attributes))


def abandon_rows(feeds: Iterable[RowFeed], events: Sequence[Event | None]) -> None:
    """Take out the rows that a failed item's generators have yielded for nobody.

    Once it was given to its step, an `Each` node sees to its rows itself.
    """
    for feed in feeds:
        if events[feed.edge.source] is not None and events[feed.edge.target] is None:
            feed.abandon()
