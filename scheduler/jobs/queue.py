"""A queue in a file of SQLite, which processes add to and jobs read in order."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from ..errors import SourceError
from .sinks import to_plain
from .sources import try_read

BUSY_S = 60.0
ROWS = 1000
_MAKE = "CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT)"
_PUT = "INSERT INTO items (item) VALUES (?)"
_READ = f"SELECT id, item FROM items WHERE id > ? ORDER BY id LIMIT {ROWS}"


class Queue:
    """Items in a file of SQLite: any thread or process of the machine adds some, and jobs read.

    Each job drains it exactly once: its position says which item is next. Items that all jobs have
    done may be deleted: ``DELETE FROM items WHERE id <= position``.

    Parameters
    ----------
    path : str or path
        The file; it is made if it is missing. SourceError if it is of another kind.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with self._open() as opened:
            opened.execute("PRAGMA journal_mode = WAL")  # readers and writers do not wait
            opened.execute(_MAKE)

    def put(self, *items: Any) -> None:
        """Add items of JSON or numpy values, all or none; they are on disk when this returns.

        Raises
        ------
        SourceError
            If a value cannot be written, or the disk is full.
        """
        with self._open() as opened:
            texts = [msgspec.json.encode(item, enc_hook=to_plain).decode() for item in items]
            opened.executemany(_PUT, [(text,) for text in texts])

    def open_at(self, position: int) -> Iterator[Any]:
        while True:
            with self._open() as opened:
                rows = opened.execute(_READ, (position,)).fetchall()
            if not rows:
                return
            for number, text in rows:
                position += 1
                if number != position:  # SQLite counts without gaps, one writer at a time
                    raise SourceError(
                        f"item {position - 1:,} was deleted from the queue",
                        at=self._path,
                        fix="delete items that all jobs have done, and no failed ones",
                    )
                yield try_read(msgspec.json.decode, text)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one transaction; threads and forks share none."""
        try:
            with closing(sqlite3.connect(self._path, BUSY_S)) as opened, opened:
                yield opened
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise SourceError(
                f"the queue cannot be used: {error}",
                at=self._path,
                fix="give a file of plait.jobs.Queue, and items that JSON has",
            ) from error
