"""Heavy sets of pairwise conflicting blocks, which are lower bounds of the peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .relation import Conflicts, Indices

MAX_BLOCKS = 5000
"""With more blocks, bit sets take too much time: few seeds are tried."""

SEEDS = 64

MOST_WORK = 1_000_000
"""Limit of blocks added to cliques, where a few thousand comparisons count as one. Cheap proofs are
complete, and cliques around light blocks are skipped first."""

COMPARED = 2000


def find_heavy_cliques(conflicts: Conflicts, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return cliques of `conflicts` around every block, extended greedily.

    The heaviest blocks come first, by `sizes`, by neighbours, or by both. Cliques are unique, with
    sorted blocks. In large problems only the heaviest blocks have one.
    """
    weights = np.array(sizes, np.int64)
    around = _sum_conflicts(conflicts, weights)
    found: dict[tuple[int, ...], None] = {}
    work = 0.0
    keys = (weights, around, weights * conflicts.degrees)
    for turn, key in enumerate(keys, 1):
        order = np.argsort(-key, kind="stable")
        masks = _make_masks(conflicts, order)
        blocks = order.tolist()
        for first, left in enumerate(masks):
            if work > MOST_WORK * turn / len(keys):
                break
            clique = [blocks[first]]
            while left:
                place = (left & -left).bit_length() - 1
                clique.append(blocks[place])
                left &= masks[place]
            found[tuple(sorted(clique))] = None
            work += len(clique) * (1 + len(blocks) / COMPARED)
    return list(found)


def _make_masks(conflicts: Conflicts, order: Indices) -> list[int]:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    masks = []
    for block in order.tolist():
        row = np.zeros(len(order), np.bool_)
        row[place[conflicts.near(block)]] = True
        masks.append(int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little"))
    return masks


def weigh_heavy_clique(conflicts: Conflicts, sizes: Sequence[int]) -> int:
    """Return the bytes, by `sizes`, of the heaviest of a few greedy cliques of `conflicts`."""
    weights = np.array(sizes, np.int64)
    load: list[int] = (weights + _sum_conflicts(conflicts, weights)).tolist()
    best = max(sizes, default=0)
    for seed in sorted(range(len(sizes)), key=lambda i: -load[i])[:SEEDS]:
        if load[seed] <= best:
            break
        total = sizes[seed]
        left = set(conflicts.near(seed).tolist())
        while left:
            block = max(left, key=lambda i: (sizes[i], load[i], -i))
            total += sizes[block]
            left.intersection_update(conflicts.near(block).tolist())
        best = max(best, total)
    return best


def _sum_conflicts(conflicts: Conflicts, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    first, second = conflicts.pairs()
    return np.bincount(first, weights[second], len(weights)).astype(np.int64)
