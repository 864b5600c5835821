"""Sources of a job: items in a fixed order, which can be read from any position."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from glob import escape, glob
from hashlib import sha256
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from ...graph.values.errors import describe_error
from ...graph.values.extras import get_install_command, import_extra
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
    shards : sequence of JobSource, default ()
        The files of a source with an unknown number of items, each with positions of its own.
    """

    open_at: Callable[[int], Iterable[Any]]
    total: int | None = None
    digest: str = ""
    describe: Callable[[int], str] | None = None
    shards: Sequence[JobSource] = ()


def to_source(given: Any) -> JobSource:
    """Return the source for `given`: a sequence, a function, a queue, or the path of data.

    Raises SourceError if it is something else, or the path does not exist.
    """
    if isinstance(given, JobSource):
        return given
    if isinstance(given, str | os.PathLike):
        suffix = os.path.splitext(given)[1]
        return _READERS.get(suffix, read_files)(given)
    if open_at := getattr(given, "open_at", None):
        return JobSource(open_at)
    if callable(given):
        return JobSource(given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and type(given) is not dict:
        return JobSource(
            lambda position: (try_read(given.__getitem__, n) for n in range(position, len(given))),
            len(given),
            str(getattr(given, "_fingerprint", "")),  # of a dataset of Hugging Face
        )
    raise SourceError(
        f"a job cannot read a {type(given).__name__} from a position",
        fix="give a sequence, a path, or a function that returns the items from a position on",
    )


def try_read(read: Callable[[Any], Any], given: Any) -> Any:
    """Return `read(given)`, an item, or its exception, so that only this item fails."""
    try:
        return read(given)
    except Exception as error:
        return error


def read_files(path: str | os.PathLike[str]) -> JobSource:
    """Read files whole, as bytes, in the order of their names.

    Parameters
    ----------
    path : str or path
        A folder, a pattern such as ``"photos/**/*.jpg"``, or a URL of either, which fsspec reads.

    Raises
    ------
    SourceError
        If the file does not exist, or a URL needs the extra ``[jobs]``. A file that cannot be read
        fails its item.
    """
    paths, open_file = _find_files(path)

    def read(path: str) -> Any:
        with open_file(path, "rb") as file:
            return file.read()

    return JobSource(
        lambda position: (try_read(read, path) for path in paths[position:]),
        len(paths),
        hash_texts(map(os.path.basename, paths)),
        paths.__getitem__,
    )


def read_json_lines(path: str | os.PathLike[str]) -> JobSource:
    """Read files with one JSON value per line; a damaged line fails only its item.

    `path` may be a pattern or URL. Raises SourceError like `read_files`.
    """

    def read_lines(path: str, open_file: Callable[..., Any]) -> Iterator[bytes]:
        with open_file(path, "rb") as file:
            yield from file

    return _read_in_turn(path, read_lines, msgspec.json.decode, "line", is_fixed=False)


def _read_in_turn(
    path: str | os.PathLike[str],
    iterate: Callable[..., Iterator[Any]],
    decode: Callable[[Any], Any],
    unit: str,
    *,
    is_fixed: bool,
) -> JobSource:
    """Read the files at `path` in turn by `iterate`, each a shard; `decode` only items asked for.

    Messages call an item a `unit`. The files as a whole have a digest if `is_fixed`.
    """
    paths, open_file = _find_files(path)

    def make(paths: Sequence[str], name: object, digest: str) -> JobSource:
        def open_at(position: int) -> Iterator[Any]:
            found = chain.from_iterable(iterate(one, open_file) for one in paths)
            return (try_read(decode, one) for one in islice(found, position, None))

        return JobSource(
            open_at, digest=digest, describe=lambda position: f"{unit} {position + 1} of {name}"
        )

    shards = tuple(make([one], one, os.path.basename(one)) for one in paths)
    names = hash_texts(one.digest for one in shards)
    return replace(make(paths, path, names if is_fixed else ""), shards=shards)


def read_shards(path: str | os.PathLike[str]) -> JobSource:
    """Read samples of WebDataset: files of a tar archive that differ in their endings alone.

    An item maps endings such as ``"jpg"`` to bytes, and ``"__key__"`` to the common name. `path`
    may be a pattern or URL. Raises SourceError as `read_files`, and if an archive is damaged.
    """
    return _read_in_turn(path, _read_samples, dict, "sample", is_fixed=True)


def _read_samples(path: str, open_file: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    def read_members() -> Iterator[tuple[str, str, bytes]]:
        with open_file(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as shard:
            for member in shard:
                name = re.fullmatch(r"((?:.*/|)(?!__)[^./][^./]*)[.]([^/]*)", member.name)
                if name and (content := shard.extractfile(member)):
                    yield name[1], name[2].lower(), content.read()

    try:
        for key, members in groupby(read_members(), itemgetter(0)):
            yield {"__key__": key, **{ending: content for _, ending, content in members}}
    except Exception as error:  # tarfile raises many kinds
        raise SourceError(
            f"the archive cannot be read: {describe_error(error)}",
            at=path,
            fix="replace it, and run() again",
        ) from error


def read_rows(
    data: Any, columns: Sequence[str] | Mapping[str, Any] | None = None, filter: Any = None
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
        The rows to read. Positions count only these.

    Raises
    ------
    SourceError
        If the data do not exist, or the extra ``[jobs]`` is not installed.
    """
    try:
        table = _open_dataset(data)
        total = table.count_rows() if filter is None else None
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own are subclasses
        raise SourceError(
            f"cannot read the rows: {describe_error(error)}",
            at=str(data)[:200],
            fix="give files that are there and of one schema: .parquet, .arrow, .csv or .orc",
        ) from error
    read = {"columns": columns, "filter": filter, "schema": table.schema}
    read |= {"batch_size": BATCH_ROWS, "batch_readahead": 2, "fragment_readahead": 1}

    fragments = list(table.get_fragments(filter))

    def read_batches(position: int, fragments: Sequence[Any]) -> Iterator[Any]:
        for fragment in fragments:
            split = getattr(fragment, "split_by_row_group", None)
            for group in split(filter) if split else [fragment]:
                # Without a filter, groups before the position are skipped unread.
                counted = group.row_groups if split and filter is None else ()
                if 0 < (count := sum(one.num_rows for one in counted)) <= position:
                    position -= count
                    continue
                for batch in group.to_batches(**read):
                    yield batch.slice(position)
                    position = max(position - batch.num_rows, 0)

    def open_at(position: int, fragments: Sequence[Any] = fragments) -> Iterator[Any]:
        batches = read_batches(position, fragments)
        with ThreadPoolExecutor(1) as thread:  # it waits for the next batch meanwhile
            ahead = thread.submit(next, batches, None)
            while (batch := ahead.result()) is not None:
                ahead = thread.submit(next, batches, None)
                yield from _to_rows(batch)

    names = map(os.path.basename, getattr(table, "files", ()))
    shown = map(str, (table.schema.remove_metadata(), columns, filter))
    shards = (
        JobSource(partial(open_at, fragments=[one]), digest=getattr(one, "path", ""))
        for one in fragments
    )
    digest = hash_texts([*names, *shown])
    return JobSource(open_at, total, digest, shards=tuple(shards) if filter is not None else ())


def _read_queue(path: str | os.PathLike[str]) -> JobSource:
    from .queue import Queue

    _find_files(path)  # it must be there
    return to_source(Queue(path))


_READERS: dict[str, Callable[[Any], JobSource]] = {
    **dict.fromkeys((".parquet", *_FORMATS), read_rows),
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_lines),
    **dict.fromkeys((".tar", ".tgz"), read_shards),
    **dict.fromkeys((".sqlite", ".db"), _read_queue),
}


def _open_dataset(data: Any) -> Any:
    datasets = import_package("pyarrow.dataset")
    if not isinstance(data, str | os.PathLike):
        return data if isinstance(data, datasets.Dataset) else datasets.dataset(data)
    where = os.fspath(data)
    system = _find_system(where)
    kind = _FORMATS.get(os.path.splitext(where)[1], "parquet")
    found = _find_files(data)[0] if "*" in where else where
    return datasets.dataset(found, filesystem=system, format=kind)


def _to_rows(batch: Any) -> list[dict[str, Any]]:
    names, columns = batch.schema.names, map(_to_values, batch.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _to_values(column: Any) -> Sequence[Any]:
    if _is_number(column.type) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False))
    if _is_number(getattr(column.type, "value_type", None)):
        if hasattr(column, "offsets") and not column.null_count + column.values.null_count:
            numbers = column.values.to_numpy(zero_copy_only=False)
            return [numbers[begin:end] for begin, end in pairwise(column.offsets.tolist())]
        lists = (one.values for one in column)
        return [None if one is None else one.to_numpy(zero_copy_only=False) for one in lists]
    return list(column.to_pylist())


def _is_number(kind: Any) -> bool:
    return re.fullmatch(r"(u?int|float|half|double|bool).*", str(kind)) is not None


def hash_texts(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def import_package(module: str, package: str = "", install: str = "") -> Any:
    """Import `module` of `package`; a SourceError says the `install` command of a missing one."""
    missing = f"{package or module.partition('.')[0]} is not installed"
    return import_extra(module, missing, install or get_install_command("jobs"), SourceError)


def _find_system(where: str) -> Any:
    return import_package("fsspec.core").url_to_fs(where)[0] if "://" in where else None


def _find_files(path: str | os.PathLike[str]) -> tuple[list[str], Any]:
    where = os.fspath(path)
    if system := _find_system(where):
        pattern = where if "*" in where or system.isfile(where) else f"{where.rstrip('/')}/*"
        found = system.glob(pattern)
    else:
        pattern = os.path.join(escape(where), "*") if os.path.isdir(where) else where
        found = [where] if os.path.isfile(where) else glob(pattern, recursive=True)
        found = filter(os.path.isfile, found)
    if not (paths := sorted(found)):
        raise SourceError(f"there is no file {where}", fix="name a file, folder or pattern")
    return paths, system.open if system else open
