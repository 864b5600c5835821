"""State by key: each key of a stream has its own variables, and its own instances of operators.

Keys are kept in order of their last use. Once there are as many as allowed, a new key is refused,
or takes the place of the least recently used one, whose state is dropped or written to a file. A
dropped state stays valid for its items in flight; if the key comes back, it gets another one. So
the results of a stream do not depend on which items are still in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import numpy as np
import trio

from ....graph.values.errors import PlaitError, describe_error
from ....graph.values.tensor import Array, copy_read_only
from ...errors import FeedError, raise_error
from ..items.pipeline import KeyState
from ..opened.versions import StateVersions
from ..virtual_time import VirtualTimeDriver
from .files import load_values, save_values

Evict: TypeAlias = Literal["error", "drop"] | Path

MAX_KEYS = 1024


class KeyFailure:
    """Stands for the key of an item that has none, with the error that the item fails with."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class KeyedStates:
    """The states of a session by key; used on the trio thread only, or while that rests.

    `initial` has the values that new keys begin with.
    """

    def __init__(self, driver: VirtualTimeDriver) -> None:
        self._driver = driver
        self.initial = StateVersions()
        self._states: dict[Hashable, KeyState] = {}
        self._most = MAX_KEYS
        self._evict: Evict = "error"
        self._files: dict[Hashable, Path] = {}
        self._dropped: set[KeyState] = set()
        # Held while a state is neither in memory nor in a file.
        self._moving = trio.Lock()
        self._failures: list[BaseException] = []

    def limit(self, max_keys: int, evict: Evict) -> None:
        self._most, self._evict = max_keys, evict

    def __iter__(self) -> Iterator[Hashable]:
        """Yield all keys, the least recently used first."""
        yield from (*self._files, *self._states)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._states or key in self._files

    def find_nowait(self, key: Hashable, *, drops: bool = True) -> KeyState | None:
        """Return the state of `key`, made if it is new; None if that takes a file.

        If it `drops` no other key, None also where that makes room. Raises the error of an item
        without a key, and a FeedError for one key too many.
        """
        return None if self._moving.locked() else self._find_in_memory(key, drops=drops)

    async def find(self, key: Hashable) -> KeyState:
        """Return the state of `key`; FeedError for one too many, GraphError for a bad file."""
        state = self.find_nowait(key)
        if state is None:
            async with self._moving:
                state = self._find_in_memory(key)
                if state is None:
                    await self._make_room()
                    state = self._put(key, await self._take_from_file(key))
        return state

    async def hold(self, key: Hashable, values: Mapping[str, Array]) -> None:
        """Set `values` of `key`, and its others to the initial ones if it is new."""
        async with self._moving:
            if key not in self._states:
                self._put(key, await self._take_from_file(key))
            self._states[key].versions.hold(values)

    async def fetch(self, key: Hashable) -> dict[str, Array]:
        """Return the committed values of `key`, a known one; this does not count as a use."""
        async with self._moving:
            if key in self._states:
                return self._states[key].versions.copy_committed()
            return await self._read(self._files[key])

    async def drop(self, key: Hashable) -> None:
        async with self._moving:
            if key in self._states:
                self._drop(key)
            else:
                await self._driver.on_thread(self._files.pop(key).unlink)

    def leave(self, state: KeyState, user: object) -> None:
        state.users.discard(user)
        if state.is_dropped:
            self._close(state)

    def closings(self) -> Iterator[Callable[[], None]]:
        yield from (one.instances.close for one in (*self._states.values(), *self._dropped))
        yield from (partial(path.unlink, missing_ok=True) for path in self._files.values())
        yield from (partial(raise_error, error) for error in self._failures)

    def _find_in_memory(self, key: Hashable, *, drops: bool = True) -> KeyState | None:
        if isinstance(key, KeyFailure):
            raise key.error
        state = self._states.pop(key, None)
        if state is not None:
            self._states[key] = state  # now the last that is evicted
            return state
        if key in self._files:
            return None
        while len(self._states) >= self._most:
            if self._evict == "error":
                ways = " or a pathlib.Path to write states to; or session.drop_keys([...])"
                raise make_key_error(self._most, key, ways)
            if self._evict != "drop" or not drops:
                return None
            self._drop(next(iter(self._states)))
        return self._put(key, None)

    def _put(self, key: Hashable, values: Mapping[str, Array] | None) -> KeyState:
        state = self._states[key] = KeyState(key, self.initial.fork(values))
        return state

    def _drop(self, key: Hashable) -> None:
        state = self._states.pop(key)
        state.is_dropped = True
        self._dropped.add(state)
        self._close(state)

    def _close(self, state: KeyState) -> None:
        if state.users:
            return
        self._dropped.discard(state)
        if not state.instances.is_empty:
            self._dropped.add(state)
            self._driver.spawn(self._close_instances, state)

    async def _close_instances(self, state: KeyState) -> None:
        try:
            await self._driver.on_thread(state.instances.close)
        except PlaitError as error:  # raised when the session closes
            self._failures.append(error)
        self._dropped.discard(state)

    async def _make_room(self) -> None:
        while len(self._states) >= self._most and isinstance(self._evict, Path):
            idle = next((one for one in self._states.values() if not one.users), None)
            if idle is None:
                return
            path = self._evict / f"plait-{uuid4().hex}.plait"
            values = idle.versions.copy_committed()
            # Of use to this process alone, so that waiting for the disk would gain nothing.
            write = partial(save_values, {None: values}, path, is_durable=False)
            await self._driver.on_thread(write)
            del self._states[idle.key]
            self._files[idle.key] = path

    async def _take_from_file(self, key: Hashable) -> Mapping[str, Array] | None:
        path = self._files.get(key)
        if path is None:
            return None
        values = await self._read(path)
        await self._driver.on_thread(path.unlink)
        del self._files[key]
        return values

    async def _read(self, path: Path) -> dict[str, Array]:
        values = await self._driver.on_thread(partial(load_values, path))
        return {name: copy_read_only(value) for name, value in values[None].items()}


def to_key(value: Any) -> Hashable:
    """Return `value` as a key; the element of an array of one.

    Raises FeedError if it cannot be one.
    """
    if type(value) is str or type(value) is int:
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.size != 1:
            raise FeedError(
                f"a key is an array of {value.size} elements",
                fix="use arrays of one element, or key=lambda item: item['id'].tobytes()",
            )
        value = value.item()
    try:
        hash(value)
    except Exception as error:
        raise FeedError(
            f"a key is a {type(value).__name__}: {describe_error(error)}",
            fix="use text, numbers, or tuples of them",
        ) from error
    if value is None or value != value:  # NaN would be another key each time
        raise FeedError(f"a key is {value!r}", fix="use a value that equals itself and is not None")
    key: Hashable = value
    return key


def make_key_error(most: float, key: Hashable, ways: str = "") -> FeedError:
    """Return the error for `key`, a new one beside `most`; `ways` are other ways to go on."""
    what = f"{most:,} keys have a state, and {key!r} is one more"
    return FeedError(what, fix=f"stream with a larger max_keys=, or with evict='drop'{ways}")
