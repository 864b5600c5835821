"""Rows that came together, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import trio

from ....graph.errors import ShapeError
from ....graph.tensor import Array
from ...dispatch.row_queue import RowGroup
from ...errors import SessionError
from .padding import Padding


@dataclass(slots=True, eq=False, kw_only=True)
class RowBlock(RowGroup):
    """Rows that an item waits for: all of its rows, or those that a generator has yielded.

    Attributes
    ----------
    since_ns : int
        When they came, on the clock that items are timed with.
    values : tuple of Array
        The rows, in memory of the item, or padded in memory of their own.
    results : list of Array
        For all of them, once one has run.
    failures : dict of int to PlaitError
        By row.
    left : int
        How many have not ended.
    readers : int
        How many batches are reading `values`; `unread` is set when one has.
    padding : Padding or None
        The padding of `values`, which had `length` before.
    """

    since_ns: int
    values: tuple[Array, ...]
    keeps_errors: bool
    results: list[Array] = field(default_factory=list)
    failures: dict[int, BaseException] = field(default_factory=dict)
    left: int = 0
    readers: int = 0
    padding: Padding | None = None
    length: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    unread: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.left = self.rows

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make the owner of the memory of `values` wait until they are read."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            self.unread.set()
            self.unread = trio.Event()

    def put(self, start: int, stop: int, arrays: Sequence[Array]) -> None:
        """Take over the results of some rows.

        Raises
        ------
        ShapeError
            If they are not like those of the rows before.
        """
        if not self.results:
            self.results = _zeros(self.rows, arrays)
        _write(self.results, start, stop, arrays)
        self._end(stop - start)

    def fail(self, row: int, error: BaseException) -> None:
        """Have one row fail, or with it all of them."""
        self.failures[row] = error
        if self.keeps_errors:
            self._end(1)
        else:
            self.done.set()

    def drop(self, start: int, stop: int) -> None:
        """Have some rows be not ok, as they are not to run."""
        error = SessionError("more rows waited than are kept", fix="keep more, or feed fewer")
        self.failures.update(dict.fromkeys(range(start, stop), error))
        self._end(stop - start)

    def _end(self, count: int) -> None:
        self.left -= count
        if not self.left:
            self.done.set()


def gather(blocks: Sequence[RowBlock]) -> tuple[list[Array], dict[int, BaseException]]:
    """Return the results of an item's rows, empty if all failed, and the errors by row."""
    if len(blocks) == 1:
        return blocks[0].results, blocks[0].failures
    results: list[Array] = []
    failures: dict[int, BaseException] = {}
    start, rows = 0, sum(block.rows for block in blocks)
    for block in blocks:
        failures.update((start + row, error) for row, error in block.failures.items())
        stop = start + block.rows
        if block.results:
            results = results or _zeros(rows, block.results)
            try:
                _write(results, start, stop, block.results)
            except ShapeError as error:
                failures.update((row, error.again()) for row in range(start, stop))
        start = stop
    return results, failures


def _zeros(rows: int, arrays: Sequence[Array]) -> list[Array]:
    return [np.zeros((rows, *one.shape[1:]), one.dtype) for one in arrays]


def _write(results: Sequence[Array], start: int, stop: int, arrays: Sequence[Array]) -> None:
    for whole, part in zip(results, arrays, strict=True):
        if whole.shape[1:] != part.shape[1:]:
            raise ShapeError(
                f"rows {start} to {stop} have results of shape {list(part.shape[1:])}, others "
                f"before of {list(whole.shape[1:])}",
                fix="pad them to one shape in the graph",
            )
        whole[start:stop] = part
