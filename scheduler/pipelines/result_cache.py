"""Results of expensive steps in an SQLite file, by content of the arguments.

A row is written by one transaction, so a process that is killed leaves it whole or not at all.
Values are numbers, text, bytes, arrays and containers of these: no file can run code.
"""

from __future__ import annotations

import inspect
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Lock
from types import NoneType
from typing import Any

import msgspec
import numpy as np

from ...graph.functions.function_digest import hash_function, hash_value, list_codes, read_variables
from ...graph.functions.function_state import find_code, find_state, walk_functions
from ...graph.values.dtypes import dtype_of, is_extension
from ...graph.values.errors import GraphError

LEAST_BYTES = 1 << 16
SLACK_BYTES = 1 << 15
"""More than an empty file has, and more than a row adds beside its value."""
BUSY_S = 10.0
_CHANCE = {"random", "secrets", "urandom", "uuid1", "uuid4"}
_SEEDS = {"Generator", "Random", "RandomState", "SeedSequence", "default_rng", "manual_seed"}
_OPEN = """
PRAGMA trusted_schema = OFF;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS results (key BLOB UNIQUE, value BLOB, used INTEGER);
CREATE INDEX IF NOT EXISTS results_used ON results (used);
"""
_FIND = "SELECT value FROM results WHERE key = ?"
_USE = "UPDATE results SET used = ? WHERE key = ?"
_KEEP = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
_DROP = "DELETE FROM results WHERE rowid = (SELECT rowid FROM results ORDER BY used LIMIT 1)"
_SIZE = """SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""


class ResultCache:
    """Values by key in a file that threads and processes share; the least recently used go.

    `max_bytes` is the largest size of the file without its log. Raises GraphError if it cannot be
    opened.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._opened: list[tuple[int, Lock, sqlite3.Connection]] = []
        self._open()

    def __reduce__(self) -> Any:
        return type(self), (self._path, self._max_bytes)

    def _open(self) -> tuple[Lock, sqlite3.Connection]:
        if not self._opened or self._opened[-1][0] != os.getpid():
            try:
                made = sqlite3.connect(self._path, BUSY_S, 0, None, check_same_thread=False)
                made.executescript(_OPEN)
            except sqlite3.Error as error:
                raise self._make_error(error) from error
            self._opened.append((os.getpid(), Lock(), made))
        return self._opened[-1][1:]

    def _make_error(self, error: Exception) -> GraphError:
        return GraphError(
            f"the cache of results cannot be used: {error}",
            at=str(self._path),
            fix="name another file, or delete this one",
        )

    def find(self, key: bytes) -> bytes | None:
        lock, connection = self._open()
        with lock:
            try:
                row = connection.execute(_FIND, (key,)).fetchone()
            except sqlite3.Error as error:
                raise self._make_error(error) from error
            with suppress(sqlite3.OperationalError):  # a file that is only read
                connection.execute(_USE, (time.time_ns(), key))
        if row is None or sha256(row[0][32:]).digest() != row[0][:32]:
            return None
        return bytes(row[0][32:])

    def keep(self, key: bytes, value: bytes) -> None:
        most = self._max_bytes - len(value) - SLACK_BYTES
        if most < SLACK_BYTES:  # it has no room, even alone
            return
        lock, connection = self._open()
        with lock:
            try:
                connection.execute("BEGIN IMMEDIATE")
                while connection.execute(_SIZE).fetchone()[0] > most:
                    if not connection.execute(_DROP).rowcount:
                        break
                row = key, sha256(value).digest() + value, time.time_ns()
                connection.execute(_KEEP, row)
                connection.execute("COMMIT")
            except sqlite3.OperationalError:
                with suppress(sqlite3.OperationalError):
                    connection.execute("ROLLBACK")


class CachedFunction(partial[Any]):
    """A function that is called once for the same arguments; made by `cache_results`."""

    cache: ResultCache
    version: str

    def __call__(self, /, *values: Any) -> Any:
        if inspect.iscoroutinefunction(find_code(self.func)):
            return self._wait(values)
        key = self._make_key(values)
        if found := self._find(key):
            return found[0]
        made = self.func(*values)
        return self._keep(key, list(made) if inspect.isgenerator(made) else made)

    async def _wait(self, values: tuple[Any, ...]) -> Any:
        key = self._make_key(values)
        if found := self._find(key):
            return found[0]
        return self._keep(key, await self.func(*values))

    def _make_key(self, values: tuple[Any, ...]) -> bytes:
        try:
            return hash_value((self.version, values))
        except Exception as error:
            raise GraphError(
                f"an argument of a step with cache= has no content to compare: {error}",
                fix="pass numbers, text, arrays or objects that can be pickled",
            ) from error

    def _find(self, key: bytes) -> tuple[Any] | None:
        found = self.cache.find(key)
        try:
            return None if found is None else (_decode(msgspec.msgpack.decode(found)),)
        except Exception:  # a forged value; it is computed again
            return None

    def _keep(self, key: bytes, value: Any) -> Any:
        try:
            self.cache.keep(key, msgspec.msgpack.encode(_encode(value)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise GraphError(
                f"a step with cache= returned a {type(value).__name__}: {error}",
                fix="return numbers, text, bytes, arrays, or tuples, lists and dicts of these",
            ) from error
        return value


def cache_results(
    function: Callable[..., Any], path: str | os.PathLike[str], max_bytes: int
) -> CachedFunction:
    """Return `function` with its results kept in the file `path` of up to `max_bytes`.

    If `path` is a folder, the file is ``results.sqlite`` in it. Raises GraphError if the function
    keeps state or draws random numbers, or for a wrong argument.
    """
    if type(max_bytes) is not int or max_bytes < LEAST_BYTES:
        raise GraphError(f"max_bytes is {max_bytes!r}", fix=f"use {LEAST_BYTES:,} or more")
    if inspect.isasyncgenfunction(find_code(function)):
        raise GraphError("cache= is given for an async generator", fix="return a list of the rows")
    if kept := find_state(function):
        raise GraphError(
            f"a result depends on the items before: the function keeps state in {kept!r}",
            fix="leave cache= out, or cache another step",
        )
    for found, _ in walk_functions(function, set(), decorators=True):
        owners = (getattr(one, "__self__", one) for one in read_variables(found).values())
        modules = (getattr(one, "__module__", None) or type(one).__module__ for one in owners)
        names = (one.co_names for one in list_codes(found.__code__))
        words = {*chain.from_iterable(names), *".".join(modules).split(".")}
        if (drawn := words & _CHANCE) and not words & _SEEDS:
            raise GraphError(
                f"a result differs from call to call: the function uses {min(drawn)!r}",
                fix="leave cache= out, or pass what is drawn as an argument",
            )
    file = Path(path).absolute()
    made = CachedFunction(function)
    made.cache = ResultCache(file / "results.sqlite" if file.is_dir() else file, max_bytes)
    made.__module__ = getattr(function, "__module__", None) or type(function).__module__
    made.version = hash_function(function, values=True)
    return made


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in (NoneType, bool, int, float, str, bytes):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(_encode, value)]
    if kind is dict:
        return ["dict", *(_encode(one) for pair in value.items() for one in pair)]
    if kind is np.ndarray or isinstance(value, np.generic):
        is_known = is_extension(value.dtype)
        if is_known or value.dtype.kind in "biufcSUMm":
            name = value.dtype.name if is_known else value.dtype.str
            return ["ndarray" if kind is np.ndarray else "", name, value.shape, value.tobytes()]
    raise TypeError(f"a {kind.__name__} is not kept")


def _decode(value: Any) -> Any:
    if type(value) is not list:
        return value
    kind, *rest = value
    if kind in ("ndarray", ""):
        dtype = dtype_of(rest[0])
        if dtype.hasobject:
            raise ValueError("objects would be addresses")
        array: Any = np.ndarray(rest[1], dtype, rest[2])
        return array.copy() if kind else array[()]
    parts = list(map(_decode, rest))
    if kind == "dict":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return parts if kind == "list" else tuple(parts)
