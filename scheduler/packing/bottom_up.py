"""Packings of a partial order, filled from the bottom in order of the bytes above each block.

Cliques replace sections of time: a block's tail is the most bytes that a clique with it still has
to stack. Each try places one block after another on those below it, as in scheduling (Giffler and
Thompson, 1960). Blocks above the target get more weight in later tries ("squeaky wheel", Joslin and
Clements, 1999). A good packing is then settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .best import Budget
from .first_fit import FAR, place
from .problem import Problem

MOST_CLIQUES = 32
"""Limit of a block's heaviest cliques."""

NOISE = 0.05
"""Variation of weights between tries, as a factor."""

MOST_WEIGHT = 1e100
"""Prevents overflow for an unreachable target."""

PROMISING = 1.1
"""Ratio to the best up to which a packing is settled."""


class BottomUp:
    """Packs one problem repeatedly.

    The `problem` has no fixed blocks.
    """

    def __init__(self, problem: Problem, target: int) -> None:
        self._problem, self._target = problem, max(target, 1)
        self._sizes = np.array(problem.sizes, np.int64)
        self._alignments = np.array(problem.alignments, np.int64)
        self._near = [problem.conflicts.near(block) for block in range(len(problem))]
        self._loads, self._cliques = _tabulate(problem.cliques, problem.sizes)

    def tries(self) -> Iterator[list[int]]:
        """Yield packings forever; each depends on those before it."""
        dice = np.random.default_rng(0)
        count = len(self._sizes)
        weights = noisy = np.ones(count)
        best, eager = FAR, False
        while True:
            offsets = self._fill(noisy, eager)
            peak = int((offsets + self._sizes).max())
            found = offsets.tolist()
            if peak < PROMISING * best:
                found = settle(self._problem, found)
                best = min(best, peak, self._problem.peak(found))
            yield found
            above = np.maximum(offsets + self._sizes - self._target, 0) / self._target
            weights = weights * (1 + above * (1 + 0.3 * dice.random(count)))
            weights = np.minimum(weights, MOST_WEIGHT)
            noisy = weights * (1 + NOISE * dice.random(count))
            eager = not eager

    def _fill(self, weights: npt.NDArray[np.float64], eager: bool) -> npt.NDArray[np.int64]:
        """Place one block after another, each on top of its conflicts.

        Next is the block with the most bytes above it, scaled by `weights`: of the lowest blocks if
        `eager`, otherwise of all that begin below all possible ends.
        """
        sizes, rest = self._sizes, self._loads.copy()
        low, ends = np.zeros(len(sizes), np.int64), sizes.copy()
        offsets = np.zeros(len(sizes), np.int64)
        for _ in range(len(sizes)):
            bar = low.min() if eager else max(low.min(), ends.min() - 1)
            ready = np.flatnonzero(low <= bar)
            block = ready[0]
            if len(ready) > 1:
                tails = rest[self._cliques[ready]].max(axis=1)
                block = ready[np.argmax(tails * weights[ready] - low[ready])]
            offsets[block] = low[block]
            low[block] = ends[block] = FAR
            rest[self._cliques[block]] -= sizes[block]
            near = self._near[block]
            alignments = self._alignments[near]
            top = -(-(offsets[block] + sizes[block]) // alignments) * alignments
            low[near] = lifted = np.maximum(low[near], top)
            ends[near] = lifted + sizes[near]
        return offsets


def _tabulate(
    cliques: Sequence[Sequence[int]], sizes: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of each of `cliques`, and for every block the numbers of its heaviest ones.

    `sizes` are those of blocks. Rows are padded with the number of an empty clique.
    """
    loads = [sum(sizes[block] for block in clique) for clique in cliques]
    rows: list[list[int]] = [[] for _ in sizes]
    for number in sorted(range(len(cliques)), key=lambda number: -loads[number]):
        for block in cliques[number]:
            if len(rows[block]) < MOST_CLIQUES:
                rows[block].append(number)
    width = max(map(len, rows))
    full = [row + [len(loads)] * (width - len(row)) for row in rows]
    return np.array([*loads, 0], np.int64), np.array(full, np.int64)


def settle(problem: Problem, offsets: Sequence[int], budget: Budget | None = None) -> list[int]:
    """Let blocks at `offsets` rise, highest first, then sink, lowest first, while that helps.

    This closes gaps: "justification" (Valls, 2005). No block of `problem` may be fixed. A given
    `budget` limits the time.
    """
    sizes = problem.sizes
    blocks, best = range(len(sizes)), list(offsets)
    peak = problem.peak(best)
    while True:
        # Rising is sinking upside down: the highest end comes first.
        falling = sorted(blocks, key=lambda b: (-best[b] - sizes[b], -sizes[b]))
        depths = place(problem, falling, FAR)
        assert depths is not None
        rising = sorted(blocks, key=lambda b: (-depths[b] - sizes[b], -sizes[b]))
        found = place(problem, rising, peak)
        if found is None or problem.peak(found) >= peak:
            return best
        best, peak = found, problem.peak(found)
        if budget is not None and not budget.left_s():
            return best
