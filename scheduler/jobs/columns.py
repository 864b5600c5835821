"""Columns of Arrow from the values of rows, which fit a schema or fail.

Rows fit as if they came one after the other, so the result does not depend on blocks or commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import JobError
from .sinks import ARRAYS, PLAIN

concat_tables: Any = partial(pa.concat_tables, promote_options="permissive")
"""Joins null with any type, and numbers with wider ones."""


def to_table(
    rows: Sequence[dict[str, Any]], blocks: Sequence[Any], schema: Any, *, grows: bool, fills: bool
) -> Any:
    """Convert rows to a table, the schema of which is `schema` for later rows.

    With `grows`, columns are added and types get wider, if `blocks` so far can follow; with
    `fills`, columns without a value so far get a type. Raises JobError if a row does not fit.
    """
    columns, fields = list[Any](), {field.name: field for field in schema or ()}
    for name in dict.fromkeys(chain(fields, *rows)):
        values = [row.get(name) for row in rows]
        known = fields.get(name)
        if known is None and not grows and all(value is None for value in values):
            continue
        try:
            field = pa.field(name, pa.null()) if known is None and grows else fields[name]
            samples: dict[Any, Any] = dict(zip(map(type, values), values, strict=True))
            if not samples.keys() <= PLAIN:
                samples = {_get_kind(value): value for value in values}
            kind, fits = infer_types(samples, field.type, grows=grows, fills=fills)
            columns.append(to_column(values, kind, is_mixed=len(samples) > 1).cast(fits))
            if columns[-1].null_count and not field.nullable:
                raise ValueError("null is not allowed")
            if fits != field.type and grows:  # floats lack 2**60 + 1
                for block in blocks:
                    if name in block.column_names:
                        block[name].cast(fits)
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            raise _misfit_error(name, known, values[0], error) from None
        fields[name] = field.with_type(fits)
    made = pa.schema(fields.values(), getattr(schema, "metadata", None))
    return pa.Table.from_arrays(columns, schema=made)


def _misfit_error(name: str, known: Any, value: Any, error: Exception) -> JobError:
    column = "not a column of the parts" if known is None else f"a column of {known.type}"
    kind = value.dtype if isinstance(value, ARRAYS) else type(value).__name__
    why = f": {error}" if isinstance(error, ValueError) else ""
    return JobError(  # Parquet calls the items of a list elements
        f"{name!r} is {column.replace('<element:', '<item:')}, and the row has {value!r:.60} of "
        f"type {kind}{why}",
        fix="return values of one type, or give sink=plait.jobs.Parquet(schema=...) and "
        "accept_changes=True; then repair() the job",
    )


def infer_types(values: dict[Any, Any], known: Any, *, grows: bool, fills: bool) -> tuple[Any, Any]:
    """Return the type of `values` by kind, and that of their column, which was `known` so far."""
    found = pa.null()
    for value in values.values():
        is_array = isinstance(value, ARRAYS)
        if is_array and value.dtype.kind in "biuf":
            one = pa.from_numpy_dtype(value.dtype.newbyteorder("="))
            for _ in range(value.ndim):
                one = pa.list_(one)
        else:
            one = pa.infer_type([value.tolist() if is_array else value])
        if "struct<>" in str(one):
            raise ValueError("an empty mapping has no columns")
        found, joined = _join_types(found, one), _join_types(known, one)
        known = joined if grows else fill_type(known, joined, fills=fills)
    return found, known


def _get_kind(value: Any) -> Any:
    """Return a key of the type that Arrow infers for `value`: equal keys have equal types."""
    kind = type(value)
    if kind in PLAIN:
        return kind
    if isinstance(value, ARRAYS):
        return value.dtype, value.ndim
    if kind is dict:
        return (dict, *value, *map(_get_kind, value.values()))
    if kind is list:  # Arrow stops at the first text: the order matters, the number does not
        kinds: dict[Any, None] = dict.fromkeys(map(type, value))
        return (list, *(kinds if kinds.keys() <= PLAIN else dict.fromkeys(map(_get_kind, value))))
    return pa.infer_type([value])


def _join_types(kind: Any, other: Any) -> Any:
    if kind == other:
        return kind
    tables = [pa.schema({"value": one}).empty_table() for one in (kind, other)]
    return concat_tables(tables).schema.types[0]


def fill_type(known: Any, joined: Any, *, fills: bool) -> Any:
    """Return the type `known`; with `fills`, types of `joined` replace null in it.

    Raises ValueError if a mapping of `joined` has further keys.
    """
    if pa.types.is_null(known):
        return joined if fills else known
    if pa.types.is_list(known):
        return pa.list_(fill_type(known.value_type, joined.value_type, fills=fills))
    if pa.types.is_struct(known):
        if more := {field.name for field in joined} - {field.name for field in known}:
            raise ValueError(f"there is no key {min(more)!r}")
        return pa.struct(
            field.with_type(fill_type(field.type, joined.field(field.name).type, fills=fills))
            for field in known
        )
    return known


def to_column(values: Sequence[Any], kind: Any, *, is_mixed: bool) -> Any:
    """Return an array of type `kind`, by numpy if all values are arrays of one dtype and rank."""
    first = values[0]
    if is_mixed or not isinstance(first, ARRAYS) or first.dtype.kind not in "biuf":
        return pa.array([one.tolist() if isinstance(one, ARRAYS) else one for one in values], kind)
    dtype, rank = first.dtype.newbyteorder("="), first.ndim
    if rank == 0:
        return pa.array(np.array(values, dtype))
    found = pa.array(np.concatenate([one.ravel() for one in values], dtype=dtype))
    shapes = np.array([one.shape for one in values])
    for axis in reversed(range(rank)):  # lists of the lists along the axes after it
        lengths = shapes[:, axis].repeat(shapes[:, :axis].prod(1))
        found = pa.ListArray.from_arrays(
            pa.array(np.append(0, lengths.cumsum()), pa.int32()), found
        )
    return found
