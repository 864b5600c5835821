"""Rows that generator functions yield, written to the place of their results.

Such an operator declares its results as a whole, with a first axis of rows: each value is one row,
or a tuple with one row of each result.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..values.dtypes import TEXT, has_objects, hold_object, to_text
from ..values.errors import Argument, Fix, GraphError, ShapeError
from ..values.tensor import Array, TensorSpec, shorten_array

Receive: TypeAlias = "Callable[[RowWriter], object]"
"""Called with the writer after each row of all results."""


def is_generator(function: Callable[..., Any] | None) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def check_has_rows(label: str, specs: Sequence[TensorSpec]) -> None:
    """Raise ShapeError if one of the result `specs` of generator `label` lacks an axis of rows."""
    for index, spec in enumerate(specs):
        if spec.shape == ():
            raise ShapeError(
                f"output {index} of {label} is {spec}, and has no axis for what it yields",
                fix=f'declare the whole: TensorSpec("{spec.dtype.name}", ("n",)), and bound n '
                "when planning",
            )


def split_value(value: Any, holds: Sequence[bool], number: int, at: str) -> list[Array]:
    """Return the rows of the yielded `value`, one of each result; `number` counts yielded values.

    `holds` says which results hold Python objects. A tuple is a row where there is one such result.
    Raises GraphError with the place `at` if there are more or fewer.
    """
    is_row = not isinstance(value, tuple) or (len(holds) == 1 and holds[0])
    given = (value,) if is_row else value
    if len(given) != len(holds):
        raise GraphError(
            f"value {number} has {len(given)} parts, {len(holds)} arrays were declared",
            at=at,
            fix="yield one row of each declared output, as a tuple",
        )
    return [
        hold_object(one) if is_object else np.asarray(one)
        for one, is_object in zip(given, holds, strict=True)
    ]


def row_error(row: Array, wanted: TensorSpec, index: int, number: int, at: str) -> GraphError:
    return GraphError(
        f"output {index} of value {number} is {row.dtype.name}{list(row.shape)}, a row "
        f"of it is {wanted}",
        at=at,
        fix="yield rows of one dtype and shape, as declared; in a pipeline, name a length that "
        "differs: each(..., batch=8, pad='width')",
    )


class RowTarget(Protocol):
    """Receives each value that a generator function yields."""

    def restart(self) -> None:
        """Begin with the first row again."""

    def put(self, value: Any) -> None:
        """Add `value`, one row of each result."""

    def written(self) -> tuple[Array | None, ...]:
        """Return the result of all rows."""


class RowWriter:
    """Writes yielded values into the arrays of results, from the first row.

    Parameters
    ----------
    at : str
        The node, for errors.
    largest : sequence of Array or None
        The results at their largest; None for an absent one.
    firsts : sequence of str, optional
        The declared length of each first axis, a symbol or a number; by default its room.

    Attributes
    ----------
    receivers : list of callable
        Called after each row, on the thread or loop of the generator.
    """

    def __init__(
        self, at: str, largest: Sequence[Array | None], firsts: Sequence[str] = ()
    ) -> None:
        self._at = at
        self._largest = largest
        self._holds = [one is not None and has_objects(one.dtype) for one in largest]
        self._firsts = firsts or ["" if one is None else str(len(one)) for one in largest]
        self.receivers: list[Receive] = []
        self.restart()

    def restart(self) -> None:
        self._count = 0
        self._shapes: list[tuple[int, ...]] | None = None
        self._rows: Array | None = None  # the place of all rows, of a single result of arrays

    def put(self, value: Any) -> None:
        """Write `value`, one row of each result.

        Raises GraphError if there are too many rows, or one differs from the declaration.
        """
        place = self._rows
        if (
            place is not None  # nearly all rows: to check one takes five times as long
            and type(value) is np.ndarray
            and value.dtype is place.dtype
            and value.shape == place.shape[1:]
            and self._count < len(place)
        ):
            place[self._count] = value
        else:
            self._put_checked(value)
        self._count += 1
        for receive in self.receivers:
            receive(self)

    def _put_checked(self, value: Any) -> None:
        # A copy each: the function may yield one buffer repeatedly.
        rows = split_value(value, self._holds, self._count, self._at)
        for n, whole in enumerate(self._largest):
            if whole is not None and whole.dtype == TEXT and (text := to_text(rows[n])) is not None:
                rows[n] = text
        shapes = [row.shape for row in rows]
        if self._shapes is None:
            # The first row decides lengths that the declaration leaves open.
            self._shapes = shapes
        for index, (row, whole) in enumerate(zip(rows, self._largest, strict=True)):
            if whole is not None:
                self._check(index, row, whole)
                # The memory is for the largest rows; smaller ones are contiguous. A row without
                # axes is unpacked: it would become an element of an array of objects.
                place = shorten_array(whole, (len(whole), *row.shape))
                place[self._count] = row if row.shape else row[()]
                if row.shape and len(rows) == 1 and not self._holds[0]:
                    self._rows = place

    def written(self) -> tuple[Array | None, ...]:
        if self._shapes is None:
            # Without rows, open lengths are the largest ones.
            return tuple(whole if whole is None else whole[:0] for whole in self._largest)
        return self.rows(0, self._count)

    def rows(self, start: int, stop: int) -> tuple[Array | None, ...]:
        assert self._shapes is not None, "the first row has told them"
        return tuple(
            whole if whole is None else shorten_array(whole, (len(whole), *shape))[start:stop]
            for whole, shape in zip(self._largest, self._shapes, strict=True)
        )

    def _check(self, index: int, row: Array, whole: Array) -> None:
        if self._count == len(whole):
            raise self._too_many_error(index)
        assert self._shapes is not None, "the first row has told them"
        largest = whole.shape[1:]
        fits = row.shape == self._shapes[index] and len(row.shape) == len(largest)
        if (
            fits
            and row.dtype.newbyteorder("=") == whole.dtype
            and all(length <= most for length, most in zip(row.shape, largest, strict=True))
        ):
            return
        wanted = TensorSpec(whole.dtype, self._shapes[index] if self._count else largest)
        raise row_error(row, wanted, index, self._count, self._at)

    def _too_many_error(self, index: int) -> GraphError:
        first = self._firsts[index]
        if first.isdecimal():
            return GraphError(
                f"the function yields more than {first} values, so many were declared",
                at=self._at,
                fix="yield as many, or declare a symbol and plan with a bound for it",
            )
        return GraphError(
            f"the function yields more than {self._count} values, the bound of {first!r}",
            at=self._at,
            fix=Fix(
                "plan with a wider bound: ", Argument("bounds", {first: max(1, 2 * self._count)})
            ),
        )


async def gather_rows_async(
    generator: AsyncGenerator[Any, None], target: RowTarget
) -> tuple[Array | None, ...]:
    """Pass all values of `generator` to `target`, close it, and return the result."""
    target.restart()
    async with aclosing(generator):
        async for value in generator:
            target.put(value)
    return target.written()
