"""Mappings of results that are dropped: with the objects that they are of, or for later ones."""

from __future__ import annotations

import threading
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

K = TypeVar("K")
V = TypeVar("V")

KEPT_SHAPES = 4096
"""Default limit of results that depend on shapes: some tens of lengths of a large network."""


class RecentItems(Generic[K, V]):
    """A mapping without the least recently used keys beyond `most`. Thread-safe."""

    def __init__(self, most: int | None = None) -> None:
        self._most = KEPT_SHAPES if most is None else most
        self._lock = threading.Lock()
        self._items: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = value
            if len(self._items) > self._most:
                del self._items[next(iter(self._items))]

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._items.pop(key, None)
            if found is not None:
                self._items[key] = found  # the last one is used most recently
            return found

    def pop(self, key: K) -> V | None:
        with self._lock:
            return self._items.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()


class ByIdentity(Generic[K, V]):
    """Values of objects, by their identity; each lives as long as its object. Thread-safe."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[ref[K], V]] = {}

    def __setitem__(self, one: K, value: V) -> None:
        self._items[id(one)] = ref(one, partial(self._items.pop, id(one))), value

    def get(self, one: K) -> V | None:
        found = self._items.get(id(one))
        return None if found is None else found[1]
