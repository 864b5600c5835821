"""Values of variables that items hand on as they run.

An item reads the version of the previous item, and writes the next one. A version becomes the
committed value once its item and all earlier ones have succeeded; those of a failed item are
withdrawn, so that the previous version applies. There are at most as many versions as items in
flight, and one committed value; arrays are reused.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np

from ....devices.memory import UndoLog
from ....graph.values.tensor import Array, copy_read_only
from .slot import Slot


class StateVersions:
    """Versions by variable and item. Thread-safe.

    Items are numbered in order. Before reading a variable, the caller must wait until all earlier
    items have written it, or have left.

    Attributes
    ----------
    undo : UndoLog
        Of values that items write in place.
    slots : Mapping of OpenPlan to Mapping of int to Slot
        The slots bound to such values.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed: dict[str, Array] = {}
        self._versions: dict[str, dict[int, Array]] = {}
        self._spare: dict[str, list[Array]] = {}
        self.undo = UndoLog()
        self.slots: WeakKeyDictionary[object, dict[int, Slot]] = WeakKeyDictionary()

    def pin(self, name: str) -> Array:
        """Return the committed value of `name` in an array that items may write in place."""
        with self._lock:
            array = self._committed[name]
            if not array.flags.writeable:
                array = self._committed[name] = np.array(array, order="C")
            return array

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._committed)

    def begin(self, values: Mapping[str, Array]) -> None:
        """Set `values`, which the first item reads; these arrays are never written to."""
        with self._lock:
            self._committed = dict(values)
            self._versions = {name: {} for name in values}
            self._spare = {name: [] for name in values}

    def fork(self, values: Mapping[str, Array] | None) -> StateVersions:
        """Return versions of the same variables with `values`, by default those committed here.

        Spare arrays are shared.
        """
        other = StateVersions()
        other.begin(self._committed if values is None else values)
        other._lock, other._spare = self._lock, self._spare
        return other

    def end(self) -> dict[str, Array]:
        found = self.copy_committed()
        self._committed = {}
        return found

    def hold(self, values: Mapping[str, Array]) -> None:
        """Set committed `values`, while no item is in flight; these arrays are never written to."""
        with self._lock:
            self._committed.update(values)

    def copy_committed(self) -> dict[str, Array]:
        with self._lock:
            return {name: copy_read_only(array) for name, array in self._committed.items()}

    def view_committed(self, name: str) -> Array:
        """Return the committed value of `name` itself, which stays until the next commit."""
        return self._committed[name]

    def read(self, name: str, item: int, target: Array) -> None:
        with self._lock:
            earlier = [number for number in self._versions[name] if number < item]
            found = self._versions[name][max(earlier)] if earlier else self._committed[name]
            np.copyto(target, found)

    def write(self, name: str, item: int, value: Array) -> None:
        with self._lock:
            spare = self._spare[name]
            array = spare.pop() if spare else np.empty_like(value, order="C")
            np.copyto(array, value)
            self._versions[name][item] = array

    def commit(self, item: int) -> None:
        """Make the versions of `item` the committed values, after all earlier items."""
        with self._lock:
            self.undo.clear()
            for name, versions in self._versions.items():
                if item in versions:
                    self._put_back(name, self._committed[name])
                    self._committed[name] = versions.pop(item)

    def withdraw(self, item: int) -> bool:
        with self._lock:
            if item == self.undo.item:
                self.undo.undo()
            found = [name for name, versions in self._versions.items() if item in versions]
            for name in found:
                self._put_back(name, self._versions[name].pop(item))
        return bool(found)

    def _put_back(self, name: str, array: Array) -> None:
        if array.flags.writeable:  # else it is the value of the session
            self._spare[name].append(array)
