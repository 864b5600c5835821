"""Pipelines for a stream: the nodes in order, cut into one run per device.

The longest stage limits the throughput. For every order of up to four devices, dynamic programming
over all places finds the best cuts.
"""

from __future__ import annotations

from itertools import islice, permutations

import numpy as np

from ....graph.values.tensor import Array
from .problem import PartitionProblem

MOST_DEVICES = 4
MOST_ORDERS = 24
MOST_NODES = 1500


def make_pipelines(problem: PartitionProblem) -> dict[str, list[int]]:
    """Return assignments of `problem` by name, one for each feasible order of devices."""
    count = len(problem.names)
    if problem.n_nodes > MOST_NODES or not problem.n_nodes:
        return {}
    # Stages may be empty, which includes orders of fewer devices.
    orders = list(islice(permutations(range(count), min(count, MOST_DEVICES)), MOST_ORDERS))
    crossing = _sum_crossing(problem)
    found = {}
    for order in orders:
        assignment = _cut(problem, order, crossing)
        if assignment is not None:
            names = ", ".join(problem.names[device] for device in dict.fromkeys(assignment))
            found[f"pipeline on {names}"] = assignment
    return found


def _sum_crossing(problem: PartitionProblem) -> Array:
    crossing = np.zeros(problem.n_nodes + 2)
    for producer, nbytes, readers, fetched in problem.tensors:
        last = problem.n_nodes if fetched else max(readers)
        crossing[producer + 1] += nbytes
        crossing[last + 1] -= nbytes
    return np.cumsum(crossing)[: problem.n_nodes + 1]


def _cut(problem: PartitionProblem, order: tuple[int, ...], crossing: Array) -> list[int] | None:
    """Assign stages to devices in `order` so that the longest is shortest; None if impossible.

    `crossing` has the bytes between nodes of `problem`.
    """
    count = problem.n_nodes
    seconds = np.array([[row[device] for device in order] for row in problem.seconds])
    lacking = np.isinf(seconds)
    nothing = np.zeros(len(order))
    # Differences of infinite sums are undefined: count lacking nodes separately.
    lacks = np.vstack([nothing, np.cumsum(lacking, axis=0)])
    finite = np.vstack([nothing, np.cumsum(np.where(lacking, 0.0, seconds), axis=0)])
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    previous: list[Array] = []
    for stage, device in enumerate(order):
        load = finite[None, :, stage] - finite[:, None, stage]  # [from, to]
        load = load + problem.submit_s[device] * (load > 0)
        if stage:
            way = problem.ways[order[stage - 1]][device]
            load = load + way.latency_s + way.s_per_byte * crossing[:, None]
        load[(lacks[None, :, stage] - lacks[:, None, stage]) > 0] = np.inf
        load[np.tril_indices(count + 1, -1)] = np.inf
        np.fill_diagonal(load, 0.0)
        longest = np.maximum(best[:, None], load)
        previous.append(np.argmin(longest, axis=0))
        best = longest[previous[-1], np.arange(count + 1)]
    if not np.isfinite(best[count]):
        return None
    assignment, end = [0] * count, count
    for stage in range(len(order) - 1, -1, -1):
        begin = int(previous[stage][end])
        assignment[begin:end] = [order[stage]] * (end - begin)
        end = begin
    return assignment
