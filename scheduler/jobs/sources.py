"""Sources of a job: items in a fixed order, which can be read from any position."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape, glob
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec

from ...graph.extras import get_install_command, import_extra
from ..errors import SourceError

BATCH_ROWS = 1024
_FORMATS = {".arrow": "ipc", ".csv": "csv", ".feather": "feather", ".ipc": "ipc", ".orc": "orc"}


@dataclass(frozen=True, slots=True)
class JobSource:
    """Items in a fixed order, from any position on.

    Parameters
    ----------
    open_at : callable
        Returns an iterable of the items from a position on, counted from 0; the same ones each
        time. An exception in place of an item fails that item alone.
    total : int, optional
        The number of items.
    digest : str, default ""
        A text that changes with the items: a job does not resume with another one.
    describe : callable, optional
        Returns the name of the item at a position, for reports of errors.
    """

    open_at: Callable[[int], Iterable[Any]]
    total: int | None = None
    digest: str = ""
    describe: Callable[[int], str] | None = None


def to_source(given: Any) -> JobSource:
    """Return the source for a sequence, a function, or the path of tables, lines or files.

    Raises SourceError if it is something else, or the path does not exist.
    """
    if isinstance(given, JobSource):
        return given
    if isinstance(given, str | os.PathLike):
        suffix = os.path.splitext(given)[1]
        if suffix in (".jsonl", ".ndjson"):
            return read_json_lines(given)
        return read_rows(given) if suffix in (".parquet", *_FORMATS) else read_files(given)
    if callable(given):
        return JobSource(given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and type(given) is not dict:
        return JobSource(lambda position: _read_sequence(given, position), len(given))
    raise SourceError(
        f"a job cannot read a {type(given).__name__} from a position",
        fix="give a sequence, a path, or a function that returns the items from a position on",
    )


def _read_sequence(items: Sequence[Any], position: int) -> Iterator[Any]:
    for index in range(position, len(items)):
        try:
            item = items[index]
        except Exception as error:
            item = error
        yield item


def read_files(path: str | os.PathLike[str]) -> JobSource:
    """Read files whole, as bytes, in the order of their names.

    Parameters
    ----------
    path : str or path
        A folder, a pattern such as ``"photos/**/*.jpg"``, or a URL of either, which fsspec reads.

    Raises
    ------
    SourceError
        If there is no such file, or the extra ``[jobs]`` is not installed and a URL needs it. A
        file that cannot be read fails its item.
    """
    paths, open_file = _find_files(path)

    def open_at(position: int) -> Iterator[Any]:
        for path in paths[position:]:
            try:
                with open_file(path, "rb") as file:
                    content = file.read()
            except Exception as error:
                content = error
            yield content

    names = [os.path.basename(file) for file in paths]
    return JobSource(open_at, len(paths), hash_texts(names), paths.__getitem__)


def read_json_lines(path: str | os.PathLike[str]) -> JobSource:
    """Read files with one JSON value per line; a line that is damaged fails its item.

    Parameters
    ----------
    path : str or path
        A file or pattern, or a URL of either, which fsspec reads.

    Raises
    ------
    SourceError
        As for `read_files`.
    """
    paths, open_file = _find_files(path)

    def read_lines() -> Iterator[bytes]:
        for path in paths:
            with open_file(path, "rb") as file:
                yield from file

    def open_at(position: int) -> Iterator[Any]:
        for line in islice(read_lines(), position, None):
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                value = error
            yield value

    return JobSource(open_at, describe=lambda position: f"line {position + 1} of {path}")


def read_rows(
    data: Any,
    columns: Sequence[str] | Mapping[str, Any] | None = None,
    filter: Any = None,
) -> JobSource:
    """Read the rows of Parquet, Arrow, CSV or ORC files, as mappings of column to value.

    Numbers come as numpy scalars, lists of numbers as arrays, other values as Python's, null as
    None.

    Parameters
    ----------
    data : path, pyarrow.dataset.Dataset or pyarrow.Table
        A path may be a file, a folder, a pattern, or a URL, which fsspec reads.
    columns : sequence of str, or Mapping of str to expression, optional
        The columns to read, as for `pyarrow.dataset.Dataset.scanner`.
    filter : pyarrow.dataset.Expression, optional
        Positions count the rows that it leaves.

    Raises
    ------
    SourceError
        If the data do not exist, or the extra ``[jobs]`` is not installed.
    """
    datasets = import_pyarrow("pyarrow.dataset")
    try:
        table = _open_dataset(datasets, data)
        total = table.count_rows() if filter is None else None
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own are subclasses
        raise SourceError(f"cannot read the rows: {error}", at=str(data)[:200]) from error
    names = [os.path.basename(file) for file in getattr(table, "files", ())]
    read = {"columns": columns, "filter": filter, "schema": table.schema}
    read |= {"batch_size": BATCH_ROWS, "batch_readahead": 2, "fragment_readahead": 1}

    def open_at(position: int) -> Iterator[Any]:
        for fragment in table.get_fragments(filter):
            split = getattr(fragment, "split_by_row_group", None)
            for group in [fragment] if split is None else split(filter):
                # Without a filter, rows before the position are skipped unread.
                if position and filter is None and split is not None:
                    count = sum(one.num_rows for one in group.row_groups)
                    if count <= position:
                        position -= count
                        continue
                for batch in group.to_batches(**read):
                    yield from _to_rows(batch.slice(position))
                    position = max(position - batch.num_rows, 0)

    shown = [str(table.schema.remove_metadata()), str(columns), str(filter)]
    return JobSource(open_at, total, hash_texts([*names, *shown]))


def _open_dataset(datasets: Any, data: Any) -> Any:
    if not isinstance(data, str | os.PathLike):
        return data if isinstance(data, datasets.Dataset) else datasets.dataset(data)
    where, system = os.fspath(data), _find_system(data)
    kind = _FORMATS.get(os.path.splitext(where)[1], "parquet")
    found = sorted(system.glob(where) if system else glob(where, recursive=True))
    return datasets.dataset(found if "*" in where else where, filesystem=system, format=kind)


def _to_rows(batch: Any) -> Iterator[dict[str, Any]]:
    columns = [_to_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _to_values(column: Any) -> Sequence[Any]:
    if _is_number(column.type) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False))
    if _is_number(getattr(column.type, "value_type", None)):
        lists = (one.values for one in column)
        return [None if one is None else one.to_numpy(zero_copy_only=False) for one in lists]
    return list(column.to_pylist())


def _is_number(kind: Any) -> bool:
    return re.fullmatch(r"(u?int|float|half|double|bool).*", str(kind)) is not None


def hash_texts(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def import_pyarrow(module: str) -> Any:
    """Return a module of pyarrow or fsspec; raise SourceError with the extra if it is missing."""
    missing = f"{module.partition('.')[0]} is not installed"
    return import_extra(module, missing, get_install_command("jobs"), SourceError)


def _find_system(path: str | os.PathLike[str]) -> Any:
    """Return the file system of a URL; None for a local path."""
    where = os.fspath(path)
    return import_pyarrow("fsspec.core").url_to_fs(where)[0] if "://" in where else None


def _find_files(path: str | os.PathLike[str]) -> tuple[list[str], Any]:
    """Return the files that a path names, in order, and the function that opens them."""
    where, system = os.fspath(path), _find_system(path)
    if system is None:
        pattern = os.path.join(escape(where), "*") if os.path.isdir(where) else where
        found = [where] if os.path.isfile(where) else glob(pattern, recursive=True)
        paths = sorted(filter(os.path.isfile, found))
    else:
        pattern = where if "*" in where or system.isfile(where) else f"{where.rstrip('/')}/*"
        paths = sorted(system.glob(pattern))
    if not paths:
        raise SourceError(f"there is no file {where}", fix="name a file, folder or pattern")
    return paths, open if system is None else system.open
