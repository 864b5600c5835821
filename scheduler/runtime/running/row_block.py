"""Rows that came together, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from ....graph.core.operator import Call, find_operator
from ....graph.operators.each import EACH, VALUE
from ....graph.values.errors import PlaitError, ShapeError
from ....graph.values.tensor import Array, TensorSpec, spec_of
from ...dispatch.row_queue import RowGroup
from ...errors import SessionError
from ..items.padding import Padding


@dataclass(slots=True, eq=False, kw_only=True)
class RowBlock(RowGroup):
    """The rows of an item, or those that a generator has yielded since the last block."""

    since_ns: int
    """The time at which they came, on the clock of items."""
    values: tuple[Array, ...]
    """The rows, in memory of the item, or padded in memory of their own."""
    keeps_errors: bool
    results: list[Array] = field(default_factory=list)
    """For all rows; empty until one has run."""
    failures: dict[int, BaseException] = field(default_factory=dict)
    """By row."""
    left: int = 0
    """The number of rows that have not ended."""
    readers: int = 0
    """The number of batches that read `values`; `unread` is set when one has read them."""
    padding: Padding | None = None
    """The padding of `values`, which had `length` before."""
    length: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    unread: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.left = self.rows

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the memory of `values` until they are read."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            self.unread.set()
            self.unread = trio.Event()

    def put(self, start: int, stop: int, arrays: Sequence[Array]) -> None:
        """Take over `arrays` of results for rows from `start` to `stop`.

        Raises ShapeError if they are not like those of the rows before.
        """
        if not self.results:
            self.results = _make_zeros(self.rows, arrays)
        _write(self.results, start, stop, arrays)
        self._end(stop - start)

    def fail(self, row: int, error: BaseException) -> None:
        """Have `row` fail with `error`, and all others too unless errors stay with rows."""
        # A copy for each row: a catcher raises it with a traceback of its own.
        self.failures[row] = error.again() if isinstance(error, PlaitError) else error
        if self.keeps_errors:
            self._end(1)
        else:
            self.done.set()

    def drop(self, start: int, stop: int) -> None:
        """Have rows `start` to `stop` fail, which are not to run."""
        error = SessionError("more rows waited than are kept", fix="keep more, or feed fewer")
        self.failures.update(dict.fromkeys(range(start, stop), error))
        self._end(stop - start)

    def _end(self, count: int) -> None:
        self.left -= count
        if not self.left:
            self.done.set()


def collect_results(
    blocks: Sequence[RowBlock], values: Sequence[Array], attributes: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Return the results of all `blocks` for an `Each` node with `values` and `attributes`.

    Raises PlaitError: the error of its first row that failed, unless errors stay with rows.
    """
    results, failures = _gather(blocks)
    keeps_errors = attributes["on_error"] == VALUE
    if failures and not keeps_errors:
        raise _make_row_error(*min(failures.items()))
    results = results or _make_empty_results(values, attributes)
    if not keeps_errors:
        return tuple(results)
    ok = np.ones(len(values[0]), bool)
    ok[[*failures]] = False
    return (*results, ok)


def _gather(blocks: Sequence[RowBlock]) -> tuple[list[Array], dict[int, BaseException]]:
    if len(blocks) == 1:
        return blocks[0].results, blocks[0].failures
    results: list[Array] = []
    failures: dict[int, BaseException] = {}
    start, rows = 0, sum(block.rows for block in blocks)
    for block in blocks:
        failures.update((start + row, error) for row, error in block.failures.items())
        stop = start + block.rows
        if block.results:
            results = results or _make_zeros(rows, block.results)
            try:
                _write(results, start, stop, block.results)
            except ShapeError as error:
                failures.update((row, error.again()) for row in range(start, stop))
        start = stop
    return results, failures


def _make_zeros(rows: int, arrays: Sequence[Array]) -> list[Array]:
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


def _make_empty_results(values: Sequence[Array], attributes: Mapping[str, Any]) -> list[Array]:
    specs: tuple[TensorSpec, ...] = tuple(map(spec_of, values))
    call = Call(specs, (None,) * len(specs), {**attributes, "on_error": "item"})
    return [np.zeros(one.static_shape, one.dtype) for one in find_operator(EACH).infer(call)]


def _make_row_error(row: int, error: BaseException) -> BaseException:
    if not isinstance(error, PlaitError):
        return error
    where = "" if error.at is None else f", at {error.at}"
    error.what = f"row {row}{where}: {error.what}"
    return error


def check_row_axes(names: Sequence[str], arrays: Sequence[Array], rows: int) -> None:
    if all(array.ndim and len(array) == rows for array in arrays):
        return
    shapes = ", ".join(
        f"{name} {list(array.shape)}" for name, array in zip(names, arrays, strict=True)
    )
    raise ShapeError(
        f"a batch of {rows} rows has the results {shapes}",
        fix="let each output have a row for each row of the inputs",
    )
