"""Folders of jobs, local or at URLs, and files that replace others as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...graph.formats.files import Refuse, replace_file
from ...graph.values.errors import PlaitError, describe_error
from ..errors import JobError
from .sources import import_package

Chunks = Iterable[bytes | memoryview]


def to_path(where: str | os.PathLike[str]) -> Path:
    """Convert `where` to a path of universal_pathlib if it is a URL, otherwise to a local path."""
    if isinstance(where, Path) or "://" not in str(where):
        return Path(where)
    import_package("fsspec")
    # Another process may write there: listings are not kept.
    found = import_package("upath", "universal_pathlib").UPath(where, use_listings_cache=False)
    made: Path = Path(found.path) if found.protocol in ("file", "local") else found
    return made


def is_local(path: object) -> bool:
    return isinstance(path, Path)


def write_file(path: Path, chunks: Chunks, refuse: Refuse = JobError, *, draft: str = "") -> None:
    """Write `chunks` to file `path`, which readers see as a whole or not at all.

    A draft with the ending `draft`, or a random one, is renamed; a web server gets the file in one
    request. Failures raise `refuse`.
    """
    found: Any = path
    try:
        if is_sent_again(path):
            found.fs.pipe_file(found.path, b"".join(chunks))
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_local(path):
            replace_file(path, chunks, refuse, draft=draft)
            return
        made = found.with_name(f".{path.name}.{draft or os.urandom(8).hex()}")
        made.write_bytes(b"".join(chunks))
        found.fs.mv(made.path, found.path)
    except PlaitError:
        raise
    except Exception as error:  # each file system has its own
        raise refuse(
            f"cannot write {path}: {describe_error(error)}",
            fix="name a folder or an object store in which files can be written and renamed",
        ) from error


@contextmanager
def copy_here(path: Path, refuse: Refuse | None = None) -> Iterator[Path]:
    """Yield a local path to read `path` from; with `refuse`, one to write to, sent on exit."""
    if is_local(path):
        yield path
        return
    with TemporaryDirectory() as folder:
        made = Path(folder, path.name)
        if refuse is None:
            made.write_bytes(path.read_bytes())
        yield made
        if refuse is not None:
            write_file(path, [made.read_bytes()], refuse)


def is_sent_again(path: Path) -> bool:
    """Return whether a restarted process sends the file `path` again: at web servers it does."""
    return getattr(path, "protocol", "") in ("http", "https")
