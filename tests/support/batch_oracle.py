"""Sequential oracles of batches: lists, searched from the start each time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Asked:
    """An item as it was drawn, and what becomes of it."""

    rows: int
    since_s: float
    client: Hashable = None
    group: Hashable = None
    until_s: float = float("inf")
    gone_s: float = float("inf")
    is_bad: bool = False
    name: int = 0
    ended: str = ""


@dataclass
class QueueOracle:
    """The queue: who is served longest ago goes first, one item each, of one group."""

    size: int
    max_delay_s: float
    waiting: list[Asked] = field(default_factory=list)
    stamps: dict[Hashable, int] = field(default_factory=dict)
    """When a client was served, or came, last; of those that wait."""
    clock: int = 0

    def add(self, item: Asked) -> None:
        if item.client not in self.stamps:
            self._stamp(item.client)
        self.waiting.append(item)

    def remove(self, item: Asked) -> None:
        self.waiting.remove(item)
        if all(one.client != item.client for one in self.waiting):
            del self.stamps[item.client]

    def due_s(self) -> float:
        return min((self._due_s(item.group) for item in self.waiting), default=float("inf"))

    def batch(self, now_s: float) -> list[Asked]:
        ready = [item for item in self.waiting if self._due_s(item.group) <= now_s]
        if not ready:
            return []
        group = self._first(ready).group
        taken: list[Asked] = []
        while True:
            room = self.size - sum(max(1, item.rows) for item in taken)
            heads: dict[Hashable, Asked] = {}
            for item in self.waiting:
                if item.group == group:
                    heads.setdefault(item.client, item)
            fitting = [item for item in heads.values() if max(1, item.rows) <= room]
            if not fitting:
                return taken
            item = self._first(fitting)
            self.remove(item)
            if item.client in self.stamps:
                self._stamp(item.client)
            taken.append(item)

    def _first(self, items: Sequence[Asked]) -> Asked:
        return min(items, key=lambda item: self.stamps[item.client])  # of equals the oldest

    def _due_s(self, group: Hashable) -> float:
        same = [item for item in self.waiting if item.group == group]
        is_full = sum(max(1, item.rows) for item in same) >= self.size
        return float("-inf") if is_full else same[0].since_s + self.max_delay_s

    def _stamp(self, client: Hashable) -> None:
        self.clock += 1
        self.stamps[client] = self.clock


@dataclass
class ServerOracle:
    """Batches of a device that takes one after the other, and ends one at each of its ticks.

    What it has taken ends at a tick, also if everybody has left.

    Attributes
    ----------
    runs : list of lists of int
        The names of the items in each batch that the device ran, in order.
    """

    queue: QueueOracle
    most_in_flight: int
    max_waiting: int
    alone: list[Asked] = field(default_factory=list)
    under_way: list[list[Asked]] = field(default_factory=list)
    runs: list[list[int]] = field(default_factory=list)

    def play(self, items: Sequence[Asked], tick_s: float, offset_s: float) -> None:
        """Let everything happen, in the order of time."""
        pending = sorted(items, key=lambda item: item.since_s)
        now_s, n_ticks = 0.0, 0
        while pending or any(not item.ended for item in items) or self.under_way:
            alive = [item for item in items if not item.ended and item not in pending]
            moments = [offset_s + tick_s * n_ticks]
            moments += [item.since_s for item in pending[:1]]
            moments += [min(item.until_s, item.gone_s) for item in alive]
            if len(self.under_way) < self.most_in_flight:
                moments += [max(now_s, self.queue.due_s())]
            now_s = min(moments)
            if pending and pending[0].since_s == now_s:
                self._arrive(pending.pop(0))
            for item in alive:
                if item.until_s == now_s:
                    self._end(item, "late")
                elif item.gone_s == now_s:
                    self._end(item, "gone")
            if now_s == offset_s + tick_s * n_ticks:
                n_ticks += 1
                self._tick()
            while len(self.under_way) < self.most_in_flight and self._start(now_s):
                pass

    def _arrive(self, item: Asked) -> None:
        if len(self.queue.waiting) >= self.max_waiting:
            item.ended = "refused"
        else:
            self.queue.add(item)

    def _end(self, item: Asked, how: str) -> None:
        item.ended = how
        if item in self.queue.waiting:
            self.queue.remove(item)
        if item in self.alone:
            self.alone.remove(item)
        waiting = self.under_way[1:]  # for the device; one that everybody has left does so no more
        self.under_way[1:] = [batch for batch in waiting if not all(one.ended for one in batch)]

    def _start(self, now_s: float) -> bool:
        batch = [self.alone.pop(0)] if self.alone else self.queue.batch(now_s)
        if batch:
            self.under_way.append(batch)
        return bool(batch)

    def _tick(self) -> None:
        """End the oldest batch; one that everybody has left is not run."""
        if not self.under_way:
            return
        batch = self.under_way.pop(0)
        alive = [item for item in batch if not item.ended]
        if not alive:
            return
        self.runs.append([item.name for item in batch])
        if not any(item.is_bad for item in batch):
            for item in alive:
                item.ended = "done"
        elif len(batch) == 1:
            alive[0].ended = "failed"
        else:
            self.alone += alive
