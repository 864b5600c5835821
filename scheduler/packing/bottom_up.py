"""Packings of a partial order, filled from the bottom by what has most above it still to come.

Sections of time there are none, but cliques do their service: a block's tail is the most bytes that
a clique with it still has to stack. Each try places one block after another on what already lies
below it, as in scheduling (Giffler and Thompson, 1960); a block that comes out above the target has
its tail weighted more from then on ("squeaky wheel", Joslin and Clements, 1999). A good packing is
then settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .first_fit import FAR
from .justify import settled
from .problem import Problem

MOST_CLIQUES = 32
"""A block's heaviest cliques, of which no more are looked at."""

NOISE = 0.05
"""By how much the weights vary from try to try, as a factor."""

MOST_WEIGHT = 1e100
"""Against overflow, where the target is far out of reach."""

PROMISING = 1.1
"""How far above the best a packing may be for settling it to be worth while, as a factor."""


class BottomUp:
    """Packs one problem again and again.

    Parameters
    ----------
    problem : Problem
        No block of it is fixed.
    target : int
        The peak aimed at.
    """

    def __init__(self, problem: Problem, target: int) -> None:
        self._problem, self._target = problem, max(target, 1)
        self._sizes = np.array(problem.sizes, np.int64)
        self._alignments = np.array(problem.alignments, np.int64)
        self._near = [problem.conflicts.near(block) for block in range(len(problem))]
        self._loads, self._cliques = _table(problem.cliques, problem.sizes)

    def tries(self) -> Iterator[list[int]]:
        """Yield packings without end; what each is like depends on those before it."""
        dice = np.random.default_rng(0)
        count = len(self._sizes)
        weights = noisy = np.ones(count)
        best, eager = FAR, False
        while True:
            offsets = self._fill(noisy, eager)
            peak = int((offsets + self._sizes).max())
            found = offsets.tolist()
            if peak < PROMISING * best:
                found = settled(self._problem, found)
                best = min(best, peak, self._problem.peak(found))
            yield found
            above = np.maximum(offsets + self._sizes - self._target, 0) / self._target
            weights = weights * (1 + above * (1 + 0.3 * dice.random(count)))
            weights = np.minimum(weights, MOST_WEIGHT)
            noisy = weights * (1 + NOISE * dice.random(count))
            eager = not eager

    def _fill(self, weights: npt.NDArray[np.float64], eager: bool) -> npt.NDArray[np.int64]:
        """Place one block after another, each on top of those in conflict with it.

        Next is one that lies lowest, if eager; else one that begins below where any could end.
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


def _table(
    cliques: Sequence[Sequence[int]], sizes: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each clique's bytes, and for every block the numbers of its heaviest cliques.

    Rows are filled with the number of one that has no bytes.
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
