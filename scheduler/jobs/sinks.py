"""Sinks of a job: formats in which rows are packed into blocks, and blocks into files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

import msgspec
import numpy as np

from ...graph.values.dtypes import is_extension
from ..errors import JobError
from .sources import import_package

POSITION = "position"
Row: TypeAlias = dict[str, Any]
_PLAIN = {NoneType, bool, int, float, str, bytes}
_ARRAYS = (np.ndarray, np.generic)


class Sink:
    """Calls a function with the rows of each commit; formats override all.

    A job that is killed between the call and its commit repeats the call.
    """

    suffix = ""
    at_least_once = False
    nbytes = 0
    """Bytes that this process has written besides parts."""
    digest = ""
    """Changes with what the files are made of: a job does not resume with another one."""

    def __init__(self, function: Callable[[list[Row]], object] | None = None) -> None:
        self._function = function
        self.at_least_once = function is not None

    def encode(self, row: Row) -> Any:
        """Convert a row; an exception fails only its item."""
        return row

    def pack(self, rows: list[Any]) -> Any:
        assert self._function is not None
        self._function(rows)

    def dump(self, blocks: Sequence[Any], first: Path | None) -> Iterable[bytes | memoryview]:
        """Return a file of `blocks` as bytes; `first` is the first part, or None if this is it."""
        return ()

    def load(self, path: Path) -> Any:
        """Return the block in file `path`."""


class JsonLines(Sink):
    """Rows as lines of JSON: arrays as lists, NaN and infinities as null."""

    suffix = ".jsonl"

    def encode(self, row: Row) -> bytes:
        return msgspec.json.encode(row, enc_hook=to_plain) + b"\n"

    def pack(self, rows: list[Any]) -> bytes:
        return b"".join(rows)

    def dump(self, blocks: Sequence[Any], first: Path | None) -> Iterable[bytes]:
        return blocks

    def load(self, path: Path) -> bytes:
        return path.read_bytes()


class Parquet(Sink):
    """Rows of Parquet files: numbers with their dtypes, arrays as lists, mappings as structs.

    Parameters
    ----------
    schema : pyarrow.Schema, optional
        By default that which the values of the first part have. It holds for all others.
    """

    suffix = ".parquet"

    def __init__(self, schema: Any = None) -> None:
        self._arrow, self._files = map(import_package, ("pyarrow", "pyarrow.parquet"))
        self._schema = schema
        self.digest = "" if schema is None else str(schema)

    def encode(self, row: Row) -> Row:
        if _PLAIN.issuperset(map(type, row.values())):
            return row
        for name, value in row.items():
            if type(value) in _PLAIN or (_is_array(value) and not is_extension(value.dtype)):
                continue
            row[name] = msgspec.to_builtins(
                value, builtin_types=(bytes, bytearray), enc_hook=to_plain
            )
        return row

    def pack(self, rows: list[Any]) -> Any:
        names = dict.fromkeys(chain.from_iterable(rows))
        with _explain("rows do not fit into columns"):
            columns = {name: self._to_column([row.get(name) for row in rows]) for name in names}
            return self._arrow.table(columns)

    def dump(self, blocks: Sequence[Any], first: Path | None) -> Iterable[memoryview]:
        schema = self._schema
        if schema is None and first is not None:
            schema = self._read_schema(first)
        known = [] if schema is None else [schema.empty_table()]
        written = self._arrow.BufferOutputStream()
        with _explain("rows do not have the schema of the first part"):
            table = self._arrow.concat_tables([*known, *blocks], promote_options="permissive")
            table = table if schema is None else table.cast(schema)
        self._write(table.combine_chunks(), written)
        return (memoryview(written.getvalue()),)

    def _write(self, table: Any, file: Any) -> None:
        # Arrow's own schema would distinguish blocks that were read again.
        self._files.write_table(table, file, store_schema=False)

    def _read_schema(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._files.read_schema(file)

    def load(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._files.read_table(file, partitioning=None)

    def _to_column(self, values: Sequence[Any]) -> Any:
        """Return a column; values that are all arrays of one dtype and rank keep the dtype."""
        if _PLAIN.issuperset(map(type, values)):
            return self._arrow.array(values)
        kinds = {(one.dtype, one.ndim) if _is_array(one) else None for one in values}
        kind = next(iter(kinds))
        if len(kinds) > 1 or kind is None or kind[0].kind not in "biuf":
            return self._arrow.array([one.tolist() if _is_array(one) else one for one in values])
        dtype, rank = kind[0].newbyteorder("="), kind[1]
        if rank == 0:
            return self._arrow.array(np.array(values, dtype))
        found = self._arrow.array(np.concatenate([one.ravel() for one in values], dtype=dtype))
        shapes = np.array([one.shape for one in values])
        for axis in reversed(range(rank)):  # lists of the lists along the axes after it
            lengths = shapes[:, axis].repeat(shapes[:, :axis].prod(1))
            offsets = self._arrow.array(np.append(0, lengths.cumsum()), self._arrow.int32())
            found = self._arrow.ListArray.from_arrays(offsets, found)
        return found


class Arrow(Parquet):
    """Rows of Arrow files, as of `Parquet`; other programs map them into memory."""

    suffix = ".arrow"

    def _write(self, table: Any, file: Any) -> None:
        with self._arrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def _read_schema(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._arrow.ipc.open_file(file).schema

    def load(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._arrow.ipc.open_file(file).read_all()


class Npz(Sink):
    """Rows stacked along a new first axis: each file has one array per name."""

    suffix = ".npz"

    def encode(self, row: Row) -> Row:
        found = {name: np.asarray(value) for name, value in row.items()}
        if any(array.dtype.hasobject for array in found.values()) or "file" in found:
            raise JobError("a result cannot be an array of an .npz file", fix="sink='jsonl'")
        return found

    def pack(self, rows: list[Any]) -> Any:
        return self._join(np.stack, rows)

    def dump(self, blocks: Sequence[Any], first: Path | None) -> Iterable[memoryview]:
        file = BytesIO()
        np.savez(file, **self._join(np.concatenate, blocks))
        return (file.getbuffer(),)

    def load(self, path: Path) -> Any:
        with path.open("rb") as opened, np.load(opened) as file:
            return dict(file)

    def _join(self, join: Callable[..., Any], blocks: Sequence[Mapping[str, Any]]) -> Any:
        with _explain("rows differ in names or shapes"):
            return {name: join([one[name] for one in blocks]) for name in blocks[0]}


FORMATS: dict[str, Callable[[], Sink]] = {
    "arrow": Arrow,
    "jsonl": JsonLines,
    "npz": Npz,
    "parquet": Parquet,
}


def to_sink(given: Any) -> Sink:
    if isinstance(given, str) and "{" in given:
        from .item_files import Files

        return Files(given)
    if isinstance(given, Sink):
        return given
    if isinstance(given, str) and given in FORMATS:
        return FORMATS[given]()
    if callable(given):
        return Sink(given)
    raise JobError(
        f"the sink is {given!r:.80}",
        fix=f"use {', '.join(FORMATS)}, a template such as 'out/{{position}}.json', or a function",
    )


@contextmanager
def _explain(fault: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise JobError(
            f"{fault}: {error}",
            fix="return values of one type, give sink=plait.jobs.Parquet(schema=...), or use "
            "sink='jsonl'",
        ) from error


def _is_array(value: Any) -> bool:
    return isinstance(value, _ARRAYS)


def to_plain(value: Any) -> Any:
    if _is_array(value):
        return (value.astype(np.float32) if is_extension(value.dtype) else value).tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written")
