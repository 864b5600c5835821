"""The queue in front of batches: which items go into the next one, and when it is due.

Clients take turns: the one served longest ago goes first, and gets one item into a batch before
any gets another. Only items of one group share a batch. The caller passes the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class QueuedItem:
    rows: int
    """Its length along the axis of the batch."""
    group: Hashable
    """Items of one group can be stacked."""
    client: Hashable
    """The one that requested it."""
    since_s: float
    """When it came."""
    until_s: float = NEVER
    """From when on it is too late for it."""
    number: int = 0
    """Its place among all that came, once it is in the queue."""


T = TypeVar("T", bound=QueuedItem)


class BatchQueue(Generic[T]):
    """Items that wait for a batch.

    A batch has at most `size` rows; no item has more. The first item of a group waits `max_delay_s`
    for others.
    """

    def __init__(self, size: int, max_delay_s: float) -> None:
        self._size = size
        self._max_delay_s = max_delay_s
        self._numbers = count()
        self._groups: dict[Hashable, OrderedDict[T, None]] = {}
        self._rows: dict[Hashable, int] = {}
        # By client, the one served longest ago first, and by group: each in order of arrival.
        self._clients: OrderedDict[Hashable, dict[Hashable, OrderedDict[T, None]]]
        self._clients = OrderedDict()
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def __iter__(self) -> Iterator[T]:
        return (item for group in self._groups.values() for item in group)

    def add(self, item: T) -> None:
        item.number = next(self._numbers)
        own = self._clients.setdefault(item.client, {})
        own.setdefault(item.group, OrderedDict())[item] = None
        self._groups.setdefault(item.group, OrderedDict())[item] = None
        self._rows[item.group] = self._rows.get(item.group, 0) + _weigh(item)
        self._n_waiting += 1

    def remove(self, item: T) -> bool:
        """Take `item` out; return False if it was not in the queue any more."""
        group = self._groups.get(item.group)
        if group is None or item not in group:
            return False
        del group[item]
        self._rows[item.group] -= _weigh(item)
        if not group:
            del self._groups[item.group], self._rows[item.group]
        own = self._clients[item.client]
        del own[item.group][item]
        if not own[item.group]:
            del own[item.group]
        if not own:
            del self._clients[item.client]
        self._n_waiting -= 1
        return True

    def due_s(self) -> float:
        """Return the time when the first group is due: -inf if one is full, inf if none waits."""
        return min(map(self._group_due_s, self._groups), default=NEVER)

    def take_late(self, now_s: float) -> list[T]:
        late = [item for item in self if item.until_s <= now_s]
        for item in late:
            self.remove(item)
        return late

    def take_batch(self, now_s: float) -> list[T]:
        due = {group for group in self._groups if self._group_due_s(group) <= now_s}
        for own in self._clients.values():
            ready = [next(iter(items)) for group, items in own.items() if group in due]
            if ready:
                return self._take(min(ready, key=lambda item: item.number).group)
        return []

    def _group_due_s(self, group: Hashable) -> float:
        if self._rows[group] >= self._size:
            return -NEVER
        return next(iter(self._groups[group])).since_s + self._max_delay_s

    def _take(self, group: Hashable) -> list[T]:
        taken: list[T] = []
        room, n_before = self._size, -1
        while len(taken) > n_before:
            n_before = len(taken)
            for client, own in list(self._clients.items()):
                item = next(iter(own.get(group, ())), None)
                if item is None or _weigh(item) > room:
                    continue
                self.remove(item)
                if client in self._clients:
                    self._clients.move_to_end(client)
                taken.append(item)
                room -= _weigh(item)
        return taken


def _weigh(item: QueuedItem) -> int:
    return max(1, item.rows)
