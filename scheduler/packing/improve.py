"""Packings without an order: from both sides, stack on stack, and by small changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from .first_fit import place
from .problem import Problem

NEVER = float("inf")


def sweep_both_sides(problem: Problem, capacity: int) -> list[int] | None:
    """Place blocks by start, in the tightest gap, next to blocks that die with them or later.

    The walls, at 0 and `capacity`, never die. Blocks that end together leave one large gap, as
    chains need, where first fit leaves many small ones. Without lifetimes, blocks of `problem`
    must be numbered in the order of first writers, and live until their last conflict is written.
    None if a block does not fit, or any offset is fixed.
    """
    if max(problem.fixed, default=-1) >= 0:
        return None
    sizes, near = problem.sizes, problem.near
    if problem.intervals is None:
        lowers = list(range(len(sizes)))
        uppers = [max([block, *near[block]]) for block in lowers]
    else:
        lowers = np.asarray(problem.intervals.lower).tolist()
        uppers = np.asarray(problem.intervals.upper).tolist()
    offsets = [-1] * len(sizes)
    for block in sorted(range(len(sizes)), key=lambda block: (lowers[block], -sizes[block])):
        taken = [
            (offset, offset + sizes[other], uppers[other])
            for other in near[block]
            if (offset := offsets[other]) >= 0
        ]
        gap = _find_tightest_gap(sorted(taken), capacity, sizes[block], problem.alignments[block])
        if gap is None:
            return None
        start, end, below, above = gap
        if _rate_side(above, uppers[block]) < _rate_side(below, uppers[block]):
            alignment = problem.alignments[block]
            start = (end - sizes[block]) // alignment * alignment
        offsets[block] = start
    return offsets


def _rate_side(side: float, upper: int) -> tuple[bool, float]:
    """Rate a neighbour that dies at `side`: worst if that is before `upper` and leaves a gap."""
    return side < upper, abs(side - upper)


def _find_tightest_gap(
    alive: Sequence[tuple[int, int, float]], capacity: int, size: int, alignment: int
) -> tuple[int, int, float, float] | None:
    best: tuple[int, int, float, float] | None = None
    top, below = 0, NEVER
    for start, end, upper in [*alive, (capacity, capacity, NEVER)]:
        low = -(-top // alignment) * alignment
        if start - low >= size and (best is None or start - low < best[1] - best[0]):
            best = low, start, below, upper
        if end > top:
            top, below = end, upper
    return best


def stack(
    problem: Problem, labels: Sequence[int], pack: Callable[[Problem], Sequence[int]]
) -> list[int] | None:
    """Pack the blocks of each of `labels` separately by `pack`, stack the labels, and settle.

    The result never exceeds one arena per label. None if any offset in `problem` is fixed.
    """
    if max(problem.fixed, default=-1) >= 0:
        return None
    whole = math.lcm(*problem.alignments)
    offsets = [0] * len(problem)
    base = 0
    by_label: dict[int, list[int]] = {}
    for block, label in enumerate(labels):
        by_label.setdefault(label, []).append(block)
    for _, mine in sorted(by_label.items()):
        inner = problem.restrict(mine)
        packed = pack(inner)
        for block, offset in zip(mine, packed, strict=True):
            offsets[block] = base + offset
        base = -(-(base + inner.peak(packed)) // whole) * whole
    return place(problem, order_by_offset(problem, offsets), base) or offsets


def reorder(
    problem: Problem,
    order: Sequence[int],
    offsets: Sequence[int],
    *,
    tries: int,
    is_enough: Callable[[Sequence[int]], bool],
) -> list[int]:
    """Move blocks of `order` at the peak before one of their conflicts, while that is harmless.

    Placed in `order`, `problem` has the given `offsets`. Return the best packing after `tries`
    moves without success, or when it `is_enough`.
    """
    sizes, near = problem.sizes, problem.near
    dice = random.Random(0)
    current, best = list(order), list(offsets)
    state, fails = best, 0
    peak = max(map(int.__add__, best, sizes))
    while fails < tries and not is_enough(best):
        fails += 1
        highest = [b for b in range(len(sizes)) if state[b] + sizes[b] == peak]
        block = dice.choice(highest)
        position = {b: i for i, b in enumerate(current)}
        ahead = [b for b in near[block] if position[b] < position[block]]
        if not ahead:
            continue
        target = position[dice.choice(ahead)]
        changed = [b for b in current if b != block]
        changed.insert(target, block)
        placed = place(problem, changed, peak)
        if placed is None:
            continue
        current, state = changed, placed
        reached = max(map(int.__add__, placed, sizes))
        if reached < peak:
            peak, best, fails = reached, placed, 0
    return best


def order_by_offset(problem: Problem, offsets: Sequence[int]) -> list[int]:
    """Return an order in which first fit packs `problem` at these `offsets` or lower ones."""
    return sorted(range(len(problem)), key=lambda block: (offsets[block], -problem.sizes[block]))
