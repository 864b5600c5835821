"""Local search over assignments: merges subgraphs with neighbours, moves nodes at borders.

Deterministic, with a budget of estimates: the result depends on the problem alone. A clock only
stops it on a far too slow machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import product
from math import inf, prod
from time import monotonic

from .cutting import cut_freest
from .problem import Estimate, PartitionProblem

MOST_EXACT, RECONSIDERED = 1024, 64
"""Most assignments to try each, and how many of the best to estimate in another cut."""

_LESS = 1 - 1e-9

STOP_S = 5.0
CHAINS = (1, 2, 4, 8, 16)
"""Numbers of nodes to move across a border at once."""


@dataclass
class Search:
    """A local search; `budget` is the number of estimates left."""

    problem: PartitionProblem
    budget: int
    _known: dict[tuple[int, ...], Estimate] = field(default_factory=dict)
    _began: float = field(default_factory=monotonic)

    def estimate(self, assignment: Sequence[int]) -> Estimate:
        key = tuple(assignment)
        found = self._known.get(key)
        if found is None:
            self.budget -= 1
            found = self._known[key] = self.problem.estimate(assignment)
        return found

    @property
    def is_spent(self) -> bool:
        return self.budget <= 0 or monotonic() - self._began > STOP_S

    def improve(self, start: Sequence[int], budget: int) -> list[int]:
        """Return an assignment estimated no slower than `start`, after up to `budget` estimates."""
        floor = self.budget - budget
        best = list(start)
        length = self.estimate(best).key
        improved = True
        while improved:
            improved = False
            for changed in self._neighbours(best):
                if self.is_spent or self.budget <= floor:
                    return best
                key = self.estimate(changed).key
                if key[0] < length[0] or (key[0] == length[0] and key[1] < length[1] * _LESS):
                    best, length, improved = changed, key, True
                    break
        return best

    def merged(self, start: Sequence[int]) -> list[int]:
        """Merge small subgraphs of assignment `start` with neighbours, many at a time.

        A subgraph moves if its own time there is less than here with its copies.
        """
        best = current = list(start)
        for _ in range(8):
            changed = _merge_parts(self.problem, current, self.estimate(current))
            if changed == current or self.is_spent:
                break
            current = changed
            if self.estimate(current).key < self.estimate(best).key:
                best = current
        return best

    def _neighbours(self, assignment: list[int]) -> Iterator[list[int]]:
        problem = self.problem
        parts = self.estimate(assignment).components
        # The smallest first: these are the likeliest to cost more than they gain.
        for nodes in sorted(parts, key=lambda nodes: (len(nodes), nodes[0])):
            for device in _find_allowed(problem, nodes):
                if device != assignment[nodes[0]]:
                    yield _move(assignment, nodes, device)
        for length in CHAINS:
            yield from self._border_moves(assignment, parts, length)
        if problem.n_nodes <= 64:
            for node in range(problem.n_nodes):
                for device in _find_allowed(problem, [node]):
                    if device != assignment[node]:
                        yield _move(assignment, [node], device)

    def _border_moves(
        self, assignment: list[int], parts: list[list[int]], length: int
    ) -> Iterator[list[int]]:
        problem = self.problem
        for nodes in parts:
            own = assignment[nodes[0]]
            if length >= len(nodes):
                continue
            first, last = nodes[:length], nodes[-length:]
            before = {assignment[p] for node in first for p in problem.producers[node]}
            after = {assignment[c] for node in last for c, _ in problem.tasks.consumers[node]}
            for chosen, near in ((first, before), (last, after)):
                for device in sorted(near - {own}):
                    if all(problem.seconds[node][device] < inf for node in chosen):
                        yield _move(assignment, chosen, device)


def try_every(problem: PartitionProblem, count: int) -> list[list[int]] | None:
    """Return the best `count` of all assignments of `problem`; None if there are too many."""
    choices = [_find_allowed(problem, [node]) for node in range(problem.n_nodes)]
    if prod(map(len, choices)) > MOST_EXACT:
        return None
    assignments = map(list, product(*choices))
    known = {tuple(one): problem.estimate(one).key for one in assignments}
    close = nsmallest(RECONSIDERED, known, key=lambda one: (known[one], one))
    for one in close:
        known[one] = min(known[one], problem.estimate(one, by=cut_freest).key)
    return [list(one) for one in nsmallest(count, close, key=lambda one: (known[one], one))]


def _find_allowed(problem: PartitionProblem, nodes: Sequence[int]) -> list[int]:
    return [
        device
        for device in range(len(problem.names))
        if all(problem.seconds[node][device] < inf for node in nodes)
    ]


def _move(assignment: Sequence[int], nodes: Sequence[int], device: int) -> list[int]:
    changed = list(assignment)
    for node in nodes:
        changed[node] = device
    return changed


def _merge_parts(
    problem: PartitionProblem, assignment: Sequence[int], known: Estimate
) -> list[int]:
    changed, tasks = list(assignment), problem.tasks
    locked = [False] * problem.n_nodes
    for nodes in known.components:
        own, inside = assignment[nodes[0]], set(nodes)
        around = [
            (other, nbytes)
            for node in nodes
            for other, nbytes in (*tasks.producers[node], *tasks.consumers[node])
            if other not in inside
        ]
        devices = {own, *(assignment[other] for other, _ in around)}
        if len(devices) == 1 or any(locked[other] for other, _ in around):
            continue
        prices = {}
        for device in devices:
            seconds = sum(problem.seconds[node][device] for node in nodes)
            copies = sum(tasks.copy_s(assignment[o], device, nbytes) for o, nbytes in around)
            prices[device] = seconds + copies
        target = min(prices, key=lambda device: (prices[device], device))
        if target != own and prices[target] < prices[own]:
            for node in nodes:
                changed[node], locked[node] = target, True
    return changed
