"""The assignment with the least work and copying in total: a minimum cut.

Of two devices, give every node to one side; a node pays its time on that side, a tensor its copy
when it has readers on the other (Stone, IEEE TSE 3(1), 1977). It is the best there is where nothing
runs side by side, as in a chain. More devices are taken two at a time, in turns, until none of the
pairs finds anything better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from math import inf

from .problem import OUTSIDE, Problem

ROUNDS = 3
MOST_PAIRS = 24


def least_work(problem: Problem, start: Sequence[int]) -> list[int]:
    """Return an assignment of no more work and copying than the one given."""
    assignment = list(start)
    pairs = list(combinations(range(len(problem.names)), 2))[:MOST_PAIRS]
    idle = 0
    for pair in pairs * (ROUNDS if len(pairs) > 1 else 1):
        changed = _split(problem, assignment, *pair)
        idle = idle + 1 if changed == assignment else 0
        assignment = changed
        if idle == len(pairs) - 1:
            break
    return assignment


def _split(problem: Problem, assignment: list[int], first: int, second: int) -> list[int]:
    """Return the assignment with the nodes of two devices shared out anew between them."""
    movable = [node for node, device in enumerate(assignment) if device in (first, second)]
    if all(
        problem.seconds[node][first] == inf or problem.seconds[node][second] == inf
        for node in movable
    ):
        return assignment
    vertex = {node: index + 2 for index, node in enumerate(movable)}
    flow = _Flow(len(movable) + 2)
    for node, index in vertex.items():
        flow.edge(0, index, problem.seconds[node][second])
        flow.edge(index, 1, problem.seconds[node][first])
    _add_copies(problem, assignment, flow, vertex, first, second)
    mine = flow.source_side()
    changed = list(assignment)
    for node, index in vertex.items():
        changed[node] = first if mine[index] else second
    if any(problem.seconds[node][changed[node]] == inf for node in movable):
        return assignment
    return changed


def _add_copies(
    problem: Problem,
    assignment: Sequence[int],
    flow: _Flow,
    vertex: dict[int, int],
    first: int,
    second: int,
) -> None:
    """Add what tensors cost that are read on another device than where they are made."""
    ways = problem.ways
    submit = [*problem.submit_s, 0.0]

    def copy(source: int, target: int, nbytes: int) -> float:
        if source == target:
            return 0.0
        way = ways[source][target]
        return way.latency_s + nbytes * way.s_per_byte + submit[target]

    for (producer, nbytes, readers, fetched), fed_at, taken_at in zip(
        problem.tensors, problem.fed_at, problem.taken_at, strict=True
    ):
        own = vertex.get(producer, -1)
        inside = [vertex[reader] for reader in readers if reader in vertex]
        if own < 0:
            source = fed_at if producer == OUTSIDE else assignment[producer]
            for side, other in ((0, second), (1, first)):
                price = copy(source, other, nbytes)
                if inside and price and other != source:
                    flow.any_on_other_side(side, inside, price)
            continue
        out = {assignment[reader] for reader in readers if reader not in vertex}
        for target in sorted(out | ({taken_at} if fetched else set())):
            flow.edge(own, 1, copy(first, target, nbytes))
            flow.edge(0, own, copy(second, target, nbytes))
        others = [index for index in inside if index != own]
        if others:
            flow.some_across(own, others, copy(first, second, nbytes), copy(second, first, nbytes))


class _Flow:
    """A network; vertex 0 is the source, vertex 1 the sink. Maximum flow by Dinic's algorithm."""

    def __init__(self, count: int) -> None:
        self._after: list[list[int]] = [[] for _ in range(count)]
        self._target: list[int] = []
        self._room: list[float] = []

    def edge(self, source: int, target: int, capacity: float) -> None:
        if capacity > 0:
            for a, b, room in ((source, target, capacity), (target, source, 0.0)):
                self._after[a].append(len(self._target))
                self._target.append(b)
                self._room.append(room)

    def vertex(self) -> int:
        self._after.append([])
        return len(self._after) - 1

    def any_on_other_side(self, side: int, readers: Sequence[int], price: float) -> None:
        """Charge once if any of the readers is not on the side (0: the source's) given."""
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
        """Charge once if any reader is on another side than the producer."""
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
        """Return which vertices are on the source's side of a minimum cut."""
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
        """Push along one path; False when none is left."""
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
        if pushed == inf:  # a node that runs nowhere; callers look for that
            return False
        for edge in path:
            room[edge] -= pushed
            room[edge ^ 1] += pushed
        return True
