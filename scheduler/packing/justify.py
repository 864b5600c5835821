"""Rising and sinking, which closes gaps of a packing: "justification" (Valls, 2005)."""

from __future__ import annotations

from collections.abc import Sequence

from .best import Budget
from .first_fit import FAR, place
from .problem import Problem


def settle(problem: Problem, offsets: Sequence[int], budget: Budget | None = None) -> list[int]:
    """Let blocks at `offsets` rise, highest first, then sink, lowest first, while that helps.

    No block of `problem` may be fixed. A given `budget` limits the time.
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
