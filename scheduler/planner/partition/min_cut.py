"""The assignment with the least work and copying in total: a minimum cut.

Every node is given to one of two devices; a node pays its time there, a tensor its copy if it has
readers on the other (Stone, IEEE TSE 3(1), 1977). This is optimal if nothing runs concurrently, as
in a chain. More devices are taken in pairs, in turns, until no pair improves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf

from ....graph.passes.flow import Flow
from .problem import OUTSIDE, PartitionProblem

ROUNDS = 3
MOST_PAIRS = 24


def find_least_work(problem: PartitionProblem, start: Sequence[int]) -> list[int]:
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


def _split(problem: PartitionProblem, assignment: list[int], first: int, second: int) -> list[int]:
    movable = [node for node, device in enumerate(assignment) if device in (first, second)]
    if all(
        problem.seconds[node][first] == inf or problem.seconds[node][second] == inf
        for node in movable
    ):
        return assignment
    vertex = {node: index + 2 for index, node in enumerate(movable)}
    flow = Flow(len(movable) + 2)
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
    problem: PartitionProblem,
    assignment: Sequence[int],
    flow: Flow,
    vertex: dict[int, int],
    first: int,
    second: int,
) -> None:
    """Add costs of copies to `flow`, between `first` and `second` and to other devices.

    `vertex` maps nodes of `problem` that may move to vertices; the rest stay as in `assignment`.
    """
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
