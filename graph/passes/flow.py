"""Minimum cuts: split vertices into two sides so that the cost of crossing edges is least."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf


class Flow:
    """A network; vertex 0 is the source, vertex 1 the sink. Maximum flow by Dinic's algorithm.

    Parameters
    ----------
    count : int
        Initial number of vertices, including these two.

    References
    ----------
    E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
    estimation", Soviet Math. Dokl. 11 (1970).
    """

    def __init__(self, count: int) -> None:
        self._after: list[list[int]] = [[] for _ in range(count)]
        self._target: list[int] = []
        self._room: list[float] = []

    def edge(self, source: int, target: int, capacity: float) -> None:
        """Charge `capacity` if `source` is on the source's side and `target` is not."""
        if capacity > 0:
            for a, b, room in ((source, target, capacity), (target, source, 0)):
                self._after[a].append(len(self._target))
                self._target.append(b)
                self._room.append(room)

    def vertex(self) -> int:
        self._after.append([])
        return len(self._after) - 1

    def any_on_other_side(self, side: int, readers: Sequence[int], price: float) -> None:
        """Charge `price` once if any of `readers` is not on `side` (0: the source's)."""
        hub = self.vertex()
        if side == 0:
            self.edge(0, hub, price)
            for reader in readers:
                self.edge(hub, reader, inf)
        else:
            self.edge(hub, 1, price)
            for reader in readers:
                self.edge(reader, hub, inf)

    def some_across(self, producer: int, readers: Sequence[int], there: float, back: float) -> None:
        """Charge once if some of `readers` are on the other side than `producer`.

        It costs `there` if the producer is on the source's side, else `back`.
        """
        if len(readers) == 1:
            self.edge(producer, readers[0], there)
            self.edge(readers[0], producer, back)
            return
        hub = self.vertex()
        self.edge(producer, hub, there)
        for reader in readers:
            self.edge(hub, reader, inf)
        hub = self.vertex()
        self.edge(hub, producer, back)
        for reader in readers:
            self.edge(reader, hub, inf)

    def source_side(self) -> list[bool]:
        """Return for each vertex whether it is on the source's side, which is minimal."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return [one >= 0 for one in level]
            position = [0] * len(self._after)
            while self._augment(level, position):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self._after)
        level[0] = 0
        queue = deque([0])
        while queue:
            vertex = queue.popleft()
            for edge in self._after[vertex]:
                target = self._target[edge]
                if level[target] < 0 and self._room[edge] > 1e-15:
                    level[target] = level[vertex] + 1
                    queue.append(target)
        return level

    def _augment(self, level: list[int], position: list[int]) -> bool:
        """Push flow along a path of rising `level`, from `position`; return False without one."""
        path: list[int] = []
        vertex = 0
        after, target, room = self._after, self._target, self._room
        while vertex != 1:
            edges = after[vertex]
            while position[vertex] < len(edges):
                edge = edges[position[vertex]]
                if room[edge] > 1e-15 and level[target[edge]] == level[vertex] + 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return False
                vertex = target[path.pop() ^ 1]
                position[vertex] += 1
                continue
            path.append(edge)
            vertex = target[edge]
        pushed = min(room[edge] for edge in path)
        if pushed == inf:  # a node without a possible device, which callers check
            return False
        for edge in path:
            room[edge] -= pushed
            room[edge ^ 1] += pushed
        return True
