"""Folders of jobs, local or at URLs, and files that replace others as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...graph.formats.files import Refuse, replace_file
from ...graph.values.errors import describe_error
from ..errors import JobError
from .sources import import_package

Chunks = Iterable[bytes | memoryview]


def to_path(where: str | os.PathLike[str]) -> Path:
    """Return a local path; for a URL, the path of universal_pathlib, which has the same methods."""
    if isinstance(where, Path) or "://" not in str(where):
        return Path(where)
    import_package("fsspec")
    # Another process may write there: listings are not kept.
    found = import_package("upath", "universal_pathlib").UPath(where, use_listings_cache=False)
    made: Path = Path(found.path) if found.protocol in ("file", "local") else found
    return made


def is_local(path: object) -> bool:
    """False for the path of a URL, although annotations call it a Path."""
    return isinstance(path, Path)


def write_file(path: Path, chunks: Chunks, refuse: Refuse = JobError, *, draft: str = "") -> None:
    """Write a file as a whole: a draft, which is renamed.

    A server of HTTP has no names to change: it gets the file by one request.

    Parameters
    ----------
    draft : str, optional
        A fixed ending of the draft, which the next attempt overwrites. By default it is random.
    """
    if is_local(path):
        replace_file(path, chunks, refuse, draft=draft)
        return
    found: Any = path
    try:
        content = b"".join(chunks)
        if is_sent_again(path):
            found.fs.pipe_file(found.path, content)
            return
        made = found.with_name(f".{path.name}.{draft or os.urandom(8).hex()}")
        made.write_bytes(content)
        found.fs.mv(made.path, found.path)
    except Exception as error:  # each file system has its own
        raise refuse(
            f"cannot write {path}: {describe_error(error)}",
            fix="name a folder or an object store in which files can be written and renamed",
        ) from error


@contextmanager
def send_file(target: Path, refuse: Refuse) -> Iterator[Path]:
    """Return the local path to write; at a URL, send the file afterwards."""
    if is_local(target):
        yield target
        return
    with TemporaryDirectory() as folder:
        yield (made := Path(folder, target.name))
        write_file(target, [made.read_bytes()], refuse)


@contextmanager
def fetch_file(source: Path) -> Iterator[Path]:
    """Return the local path of a file, or of a copy."""
    if is_local(source):
        yield source
        return
    with TemporaryDirectory() as folder:
        (made := Path(folder, source.name)).write_bytes(source.read_bytes())
        yield made


def is_sent_again(path: Path) -> bool:
    """True if a process that is killed has had an effect that the next one repeats."""
    return getattr(path, "protocol", "") in ("http", "https")
