"""Heavy sets of blocks of which each conflicts with all others: what the peak cannot be below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .relation import Conflicts, Indices

MAX_BLOCKS = 5000
"""With more, sets of bits as long as there are blocks take too much time: few seeds are tried."""

SEEDS = 64

MOST_WORK = 1_000_000
"""So many blocks are added to cliques at most, where comparing a few thousand counts as one: what
is cheap to prove is proven, and cliques around light blocks are the first to go."""

COMPARED = 2000


def heavy_cliques(conflicts: Conflicts, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return cliques around every block, to which greed adds by size, by what is near, and both.

    Each comes once, its blocks in ascending order. In large problems not every block has one: those
    come first by whose key is the largest.
    """
    weights = np.array(sizes, np.int64)
    around = _around(conflicts, weights)
    found: dict[tuple[int, ...], None] = {}
    work = 0.0
    keys = (weights, around, weights * conflicts.degrees)
    for turn, key in enumerate(keys, 1):
        order = np.argsort(-key, kind="stable")
        masks = _masks(conflicts, order)
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


def _masks(conflicts: Conflicts, order: Indices) -> list[int]:
    """Return for blocks in an order those that they conflict with, as bits in that order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    masks = []
    for block in order.tolist():
        row = np.zeros(len(order), np.bool_)
        row[place[conflicts.near(block)]] = True
        masks.append(int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little"))
    return masks


def heavy_clique(conflicts: Conflicts, sizes: Sequence[int]) -> int:
    """Return the bytes of the heaviest clique that greed finds around a few blocks."""
    weights = np.array(sizes, np.int64)
    load: list[int] = (weights + _around(conflicts, weights)).tolist()
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


def _around(conflicts: Conflicts, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for every block the bytes of those that it conflicts with."""
    first, second = conflicts.pairs()
    return np.bincount(first, weights[second], len(weights)).astype(np.int64)
