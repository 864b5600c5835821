"""Weighted sums of cells along one axis, by slices where outputs repeat a pattern.

Doubled, an axis has two kinds of outputs: those a quarter of a cell before a cell and those a
quarter behind. Each kind reads cells one apart with the same weights, so that slices do: a gather
costs numpy three times as much (96×80×80 float32 to twice the size: see the benchmark of Resize).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.tensor import Array
from .interpolation import Cells, Floats, Weighted
from .nearest import gather
from .registry import ArrayModule
from .steps import Step

LONGEST_PERIOD = 8
SHORTEST_RUN = 4
"""Outputs, on the average; with less, one gather for all of them is faster."""


class Run(NamedTuple):
    """Outputs at equal distances, the first cell that each reads, and weights: (outputs, taps).

    The cells are at equal distances too, or any cells, to be gathered.
    """

    outputs: slice
    cells: slice | Cells
    weights: Floats


def split_into_runs(places: Floats, weighted: Weighted) -> list[Run]:
    """Return runs that together make up all outputs."""
    first, weights = weighted
    count = len(places)
    if not count:
        return []
    pace = Fraction((places[-1] - places[0]) / max(count - 1, 1)).limit_denominator(LONGEST_PERIOD)
    period, step = pace.denominator, max(pace.numerator, 1)
    runs: list[Run] = []
    for phase in range(min(period, count)):
        alike = np.arange(phase, count, period)
        for run in np.split(alike, np.flatnonzero(np.diff(first[alike]) != step) + 1):
            outputs = slice(int(run[0]), int(run[-1]) + 1, period)
            cells = slice(int(first[run[0]]), int(first[run[-1]]) + 1, step)
            runs.append(Run(outputs, cells, weights[run]))
    if len(runs) * SHORTEST_RUN <= count or count == 1:
        return runs
    return [Run(slice(0, count), first, weights)]


def longest_run(runs: Sequence[Run]) -> int:
    """Return the number of outputs in the longest run."""
    return max((len(run.weights) for run in runs), default=0)


def add_weighted(
    xp: ArrayModule,
    source: Array,
    run: Run,
    axis: int,
    target: Array,
    total: Array,
    product: Array,
) -> list[Step]:
    """Return the steps that write a run's outputs along an axis of the target.

    `total` and `product` are flat buffers, long enough for the longest run's outputs.
    """
    before = (slice(None),) * axis
    outputs = target[(*before, run.outputs)]
    taps = np.flatnonzero(run.weights.any(axis=0))
    if not len(taps):
        return [partial(outputs.fill, 0)]
    total, product = (flat[: outputs.size].reshape(outputs.shape) for flat in (total, product))
    across = (-1, *(1 for _ in outputs.shape[axis + 1 :]))
    steps: list[Step] = []
    for tap in taps:
        weights = xp.asarray(run.weights[:, tap], target.dtype).reshape(across)
        into = product if steps else total
        if isinstance(run.cells, slice):
            start, stop, step = run.cells.start, run.cells.stop, run.cells.step
            cells = source[(*before, slice(start + tap, stop + tap, step))]
        else:
            cells = into
            steps.append(gather(xp, source, xp.asarray(run.cells + tap), axis, cells))
        ends = tap == taps[-1]
        if tap == taps[0]:
            steps.append(partial(xp.multiply, cells, weights, out=outputs if ends else total))
        else:
            steps.append(partial(xp.multiply, cells, weights, out=product))
            steps.append(partial(xp.add, total, product, out=outputs if ends else total))
    return steps
