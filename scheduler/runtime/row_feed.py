"""Rows on their way from a generator function to batches, while it still yields others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from ...devices.event import Event
from ...graph.functions.generators import RowWriter
from ...graph.operators.each import row_server
from ...graph.values.tensor import Array
from ..dispatch.row_edges import RowEdge

if TYPE_CHECKING:
    from .running.row_block import RowBlock
    from .streaming.row_batches import QueueServer, RowBatches
    from .virtual_time import VirtualTimeDriver


class RowFeed:
    """Hands the rows of an item to batches as they are yielded; the `RowServer` waits for results.

    It belongs to the memory that the generator writes to, which one item has at a time: from when
    the generator begins until the `Each` node has ended. Rows wait there. An item that fails before
    its `Each` node began gives the memory away at once: a batch that has taken up rows of it
    meanwhile may read anything in their place, but their results are not used any more. It `rests`
    while an item's own thread runs its rows, once all of them are there.
    """

    def __init__(self, edge: RowEdge, driver: VirtualTimeDriver) -> None:
        self.edge = edge
        self.rests = False
        self._driver = driver
        self._writer: RowWriter | None = None
        self._yielded = 0  # rows that the generator's thread has counted, and the loop has entered
        self._seen = 0
        self._is_told = False
        self._entered: list[RowBlock] = []

    def receive(self, writer: RowWriter) -> None:
        """Take note of a row that a generator has yielded to `writer`, on its thread."""
        if self.rests:
            return
        self._writer = writer
        self._yielded += 1
        if not self._is_told:  # one turn of the loop for all that come before it
            self._is_told = True
            self._driver.call(self._enter)

    async def run(
        self, values: Sequence[Array], attributes: Mapping[str, Any]
    ) -> tuple[Array, ...]:
        """Return the results for rows `values` of a node with `attributes` once it has ended."""
        return await self._server.run(values, attributes, self._take())

    def abandon(self) -> None:
        """Take out the rows of an item that has ended; none are left if it waited for them."""
        if blocks := self._take():
            self._server.leave(blocks)

    @property
    def _server(self) -> QueueServer:
        batches = cast("RowBatches", self._driver.context[row_server])
        return batches.servers[self.edge.each.attributes["queue"]]

    def _take(self) -> list[RowBlock]:
        self._enter()
        entered, self._entered = self._entered, []
        self._yielded = self._seen = 0
        return entered

    @trio.lowlevel.enable_ki_protection  # or Ctrl-C might strike while a row is in neither
    def _enter(self) -> None:
        # Before it looks: later rows notify again. Without a GIL both sides might miss each
        # other; then the rows enter with the next, or as the generator has ended.
        self._is_told = False
        start, stop = self._seen, self._yielded
        if start < stop:
            assert self._writer is not None, "it has told of them"
            self._seen = stop
            # Rows since the last turn are one block: rows of a generator have one shape.
            rows = self._writer.rows(start, stop)
            values = [one for pick in self.edge.picks if (one := rows[pick]) is not None]
            self._entered.append(self._server.enter(values, self.edge.each.attributes))


def abandon_rows(feeds: Iterable[RowFeed], events: Sequence[Event | None]) -> None:
    for feed in feeds:
        if events[feed.edge.source] is not None:
            feed.abandon()
