"""Ordered steps: each waits until the items before are through the steps of the same key.

A key is a Python function or a variable. Items stand in one line for each key that their plan has,
in the order in which they got their slots, over all replicas and plans. So an item only
ever waits for earlier ones, as it does for copies of regions (`region_ring`), and the earliest can
always continue. An item that fails or is cancelled leaves all lines when it has ended. Pure
decisions, without a clock or a lock: the executor and the simulator take the same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .region_ring import Grant

Keys = Mapping[int, Sequence[str]]
"""For each ordered step its keys."""


class ItemOrder:
    """The lines in which items wait for the ordered steps of earlier items."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[int]] = {}
        self._items: dict[int, _Ordered] = {}
        self._next = 0

    def admit(self, keys: Keys, after: Iterable[str] = ()) -> int:
        """Return the number of a further item, which is the last in the lines of its keys.

        It stays in the lines of `after` until it leaves, even if all steps are complete.
        """
        item = self._next
        self._next += 1
        owed = Counter(key for of_step in keys.values() for key in of_step)
        held = frozenset(after)
        self._items[item] = _Ordered(keys, owed, held)
        for key in {*owed, *held}:
            self._lines.setdefault(key, deque()).append(item)
        return item

    def claim(self, item: int, step: int) -> bool:
        """Return whether a step may start now; if not, it will be returned when it may."""
        one = self._items[item]
        missing = {key for key in one.keys[step] if self._waits(item, key)}
        if missing:
            one.missing[step] = missing
        return not missing

    def complete(self, item: int, step: int) -> list[Grant]:
        """Note that a step is complete; return the steps that may start now."""
        one, granted = self._items[item], list[Grant]()
        for key in one.keys.get(step, ()):
            one.owed[key] -= 1
            if not one.owed[key] and key not in one.held:
                self._leave_line(item, key, granted)
        return sorted(granted)

    def withdraw(self, item: int) -> list[int]:
        """Return the steps of an item that wait; they do so no longer."""
        missing = self._items[item].missing
        steps = list(missing)
        missing.clear()
        return steps

    def leave(self, item: int) -> list[Grant]:
        """Take an item out of all lines; return the steps that may start now."""
        granted: list[Grant] = []
        one = self._items.pop(item)
        for key in {*one.owed, *one.held}:
            if key in one.held or one.owed[key]:
                self._leave_line(item, key, granted)
        return sorted(granted)

    def _waits(self, item: int, key: str) -> bool:
        return bool(self._items[item].owed[key]) and self._lines[key][0] != item

    def _leave_line(self, item: int, key: str, granted: list[Grant]) -> None:
        line = self._lines[key]
        was_first = line[0] == item
        line.remove(item)
        if not line:
            del self._lines[key]
        elif was_first:
            following = line[0]
            missing = self._items[following].missing
            for step in [step for step, keys in missing.items() if key in keys]:
                missing[step].discard(key)
                if not missing[step]:
                    del missing[step]
                    granted.append((following, step))


@dataclass(slots=True)
class _Ordered:
    """The keys of an item's steps, the completions that it owes, and the steps that wait.

    `held` are the keys that it passes on at its end alone; `missing` has, for each step that waits,
    the keys that earlier items have.
    """

    keys: Keys
    owed: Counter[str]
    held: frozenset[str]
    missing: dict[int, set[str]] = field(default_factory=dict)
