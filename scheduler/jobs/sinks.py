"""Sinks of a job: formats in which rows are packed into blocks, and blocks into files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
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
Fitted: TypeAlias = tuple[Any, list[tuple[int, JobError]]]
PLAIN = {NoneType, bool, int, float, str, bytes}
ARRAYS = (np.ndarray, np.generic)


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

    def fit(self, rows: list[Any], blocks: list[Any], schema: Any, **allows: bool) -> Fitted:
        """Append `rows` to the `blocks` of a part; return their schema, and the errors of others.

        `grows` allows the schema further columns and wider types, `fills` types in place of null.
        """
        blocks.append(self.pack(rows))
        return schema, []

    def find_schemas(self, blocks: Sequence[Any], first: Path | None) -> tuple[Any, Any]:
        """Return the schema for rows, and that of the part `first`, or else of the `blocks`."""
        return None, None

    def dump(self, blocks: Sequence[Any], schema: Any) -> Iterable[bytes | memoryview]:
        """Return a file of `blocks` as bytes."""
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

    def dump(self, blocks: Sequence[Any], schema: Any) -> Iterable[bytes]:
        return blocks

    def load(self, path: Path) -> bytes:
        return path.read_bytes()


class Parquet(Sink):
    """Rows of Parquet files: numbers with their dtypes, arrays as lists, mappings as structs.

    Parameters
    ----------
    schema : pyarrow.Schema, optional
        By default that of the rows of the first part. Rows that do not fit fail their items.
    """

    suffix = ".parquet"

    def __init__(self, schema: Any = None) -> None:
        self._arrow, self._files = map(import_package, ("pyarrow", "pyarrow.parquet"))
        from . import columns

        self._columns, self._schema = columns, schema
        self.digest = "" if schema is None else str(schema)

    def encode(self, row: Row) -> Row:
        if PLAIN.issuperset(map(type, row.values())):
            return row
        for name, value in row.items():
            is_array = isinstance(value, ARRAYS) and not is_extension(value.dtype)
            if not (is_array or type(value) in PLAIN):
                kept = (bytes, bytearray)
                row[name] = msgspec.to_builtins(value, builtin_types=kept, enc_hook=to_plain)
        return row

    def fit(self, rows: list[Row], blocks: list[Any], schema: Any, **allows: bool) -> Fitted:
        allows["grows"] &= self._schema is None
        try:
            blocks.append(self._columns.to_table(rows, blocks, schema, **allows))
            return blocks[-1].schema, []
        except JobError as error:
            if len(rows) == 1:
                return schema, [(rows[0][POSITION], error.with_traceback(None))]
        failures, half = list[Any](), len(rows) // 2
        for some in (rows[:half], rows[half:]):
            schema, more = self.fit(some, blocks, schema, **allows)
            failures += more
        return schema, failures

    def find_schemas(self, blocks: Sequence[Any], first: Path | None) -> tuple[Any, Any]:
        found = None
        if first is not None:
            with first.open("rb") as file:
                found = self._read_schema(file)
        elif blocks:
            found = self._columns.concat_tables(blocks).schema
        if self._schema is None:
            return found, found
        (empty,) = self.dump([], self._schema)  # formats lack some types, and read others
        is_same = self._read_schema(self._arrow.BufferReader(empty)) == found
        return self._schema, self._schema if is_same else found

    def dump(self, blocks: Sequence[Any], schema: Any) -> Iterable[memoryview]:
        written = self._arrow.BufferOutputStream()
        with _explain("the parts do not have the schema"):
            table = self._columns.concat_tables([schema.empty_table(), *blocks]).cast(schema)
        self._write(table.combine_chunks(), written)
        return (memoryview(written.getvalue()),)

    def _write(self, table: Any, file: Any) -> None:
        # Arrow's own schema would distinguish blocks that were read again.
        self._files.write_table(table, file, store_schema=False)

    def _read_schema(self, file: Any) -> Any:
        return self._files.read_schema(file)

    def load(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._files.read_table(file, partitioning=None)


class Arrow(Parquet):
    """Rows of Arrow files, as of `Parquet`; other programs map them into memory."""

    suffix = ".arrow"

    def _write(self, table: Any, file: Any) -> None:
        for number, field in enumerate(table.schema):
            if "struct<" in str(field.type):  # under null, casts leave other bytes
                column = self._arrow.array(table[number].to_pylist(), field.type)
                table = table.set_column(number, field, column)
        with self._arrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def _read_schema(self, file: Any) -> Any:
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

    def dump(self, blocks: Sequence[Any], schema: Any) -> Iterable[memoryview]:
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
    sink.suffix[1:]: sink for sink in (Arrow, JsonLines, Npz, Parquet)
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


def to_plain(value: Any) -> Any:
    if isinstance(value, ARRAYS):
        return (value.astype(np.float32) if is_extension(value.dtype) else value).tolist()
    kinds = "numbers, text, bytes, arrays, and lists and mappings of these"
    raise TypeError(f"a row has a value of type {type(value).__name__}: return {kinds}")
