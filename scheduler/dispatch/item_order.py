"""Ordered steps: each waits until the items before are through the steps of the same key.

A key is a Python function or a variable. Items stand in one line for each key that their plan has,
in the order in which they got their slots, over all replicas and plans. Items with a state of their
own, as in streams by key, have lines of their own, except for functions that all states share. So
an item only ever waits for earlier ones, as it does for copies of regions (`region_ring`), and the
earliest can always continue. An item that fails or is cancelled leaves all lines when it has ended.
Pure decisions, without a clock or a lock: the executor and the simulator take the same.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from .region_ring import Grant

Keys = Mapping[int, Sequence[str]]
"""For each ordered step its keys."""

Line: TypeAlias = "str | tuple[Hashable, str]"
"""A key, with the state of its items if they have one of their own."""


class Ordered(NamedTuple):
    """The ordered steps of a plan."""

    claims: Keys = MappingProxyType({})
    """The steps that wait for earlier items, with their keys."""
    releases: Keys = MappingProxyType({})
    """The steps that let later items go on."""
    held: frozenset[str] = frozenset()
    """The keys that an item releases at its end alone."""
    shared: frozenset[str] = frozenset()
    """The functions with one line for items of all states."""


UNORDERED = Ordered()


class ItemOrder:
    """The lines in which items wait for the ordered steps of earlier items."""

    def __init__(self) -> None:
        self._lines: dict[Line, deque[int]] = {}
        self._waiting: dict[Line, list[int]] = {}
        self._items: dict[int, _Place] = {}
        self._next = 0

    def admit(self, ordered: Ordered, state: Hashable = None) -> int:
        """Put an item last in the lines of its keys in `ordered`; return the number that it gets.

        `state` is the item's own state, or None if it uses that of the session.
        """
        item = self._next
        self._next += 1
        owed: dict[str, int] = {}
        for of_step in ordered.releases.values():
            for key in of_step:
                owed[key] = owed.get(key, 0) + 1
        one = self._items[item] = _Place(ordered, owed, state)
        for key in owed.keys() | ordered.held:
            self._lines.setdefault(one.find_line(key), deque()).append(item)
        return item

    def claim(self, item: int, step: int) -> bool:
        """Return whether `step` of `item` may start now; if not, a later call returns it."""
        one = self._items[item]
        missing = set[Line]()
        for key in one.ordered.claims[step]:
            line = one.find_line(key)
            if (items := self._lines.get(line)) and items[0] < item:
                missing.add(line)
        if missing:
            one.missing[step] = missing
            for line in missing:
                insort(self._waiting.setdefault(line, []), item)
        return not missing

    def complete(self, item: int, step: int) -> list[Grant]:
        one, granted = self._items[item], list[Grant]()
        for key in one.ordered.releases.get(step, ()):
            one.owed[key] -= 1
            if not one.owed[key] and key not in one.ordered.held:
                self._leave_line(item, one.find_line(key), granted)
        return sorted(granted)

    def withdraw(self, item: int) -> list[int]:
        """Drop the waiting steps of `item`, and return them."""
        missing = self._items[item].missing
        steps = list(missing)
        for lines in missing.values():
            for line in lines:
                self._waiting[line].remove(item)
        missing.clear()
        return steps

    def leave(self, item: int) -> list[Grant]:
        """Take `item` out of all lines; return the steps that may start now, each with its item."""
        granted: list[Grant] = []
        one = self._items.pop(item)
        for key in one.owed.keys() | one.ordered.held:
            if key in one.ordered.held or one.owed[key]:
                self._leave_line(item, one.find_line(key), granted)
        return sorted(granted)

    def _leave_line(self, item: int, name: Line, granted: list[Grant]) -> None:
        line, waiting = self._lines[name], self._waiting.get(name)
        line.remove(item)
        if not line:
            del self._lines[name]
            self._waiting.pop(name, None)
        # All up to the first in line may go on, also those that are through with the key.
        while waiting and (not line or waiting[0] <= line[0]):
            following = waiting.pop(0)
            missing = self._items[following].missing
            for step in [step for step, names in missing.items() if name in names]:
                missing[step].discard(name)
                if not missing[step]:
                    del missing[step]
                    granted.append((following, step))


@dataclass(slots=True)
class _Place:
    """The ordered steps of an item, the completions that it owes, and the steps that wait.

    `missing` has, for each step that waits, the lines in which earlier items are.
    """

    ordered: Ordered
    owed: dict[str, int]
    state: Hashable = None
    missing: dict[int, set[Line]] = field(default_factory=dict)

    def find_line(self, key: str) -> Line:
        return key if self.state is None or key in self.ordered.shared else (self.state, key)
