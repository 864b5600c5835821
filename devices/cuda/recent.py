"""Mappings of limited size, for results that depend on shapes: a service may see any number."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

KEPT_SHAPES = 4096
"""Limit of results in host memory: some tens of lengths of a large network."""

K = TypeVar("K")
V = TypeVar("V")


class RecentItems(Generic[K, V]):
    """A mapping without the least recently used keys. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[K, V] = {}

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = value
            if len(self._items) > KEPT_SHAPES:
                del self._items[next(iter(self._items))]

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._items.pop(key, None)
            if found is not None:
                self._items[key] = found  # the last one is used most recently
            return found
