"""Weighted sums of cells along one axis, by slices where outputs repeat a pattern.

Doubled, an axis has two kinds of outputs: those a quarter of a cell before a cell and those a
quarter behind. Each kind reads cells one apart with the same weights, so that slices do. Measured
on 96×80×80 float32, one thread: doubled in 2.9 ms, by gathers in 3.9; halved from there in 0.9 and
2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.tensor import Array
from .axes import at
from .interpolation import Cells, Floats, Weighted
from .nearest import gather
from .registry import ArrayModule
from .steps import Step

LONGEST_PERIOD = 8
SHORTEST_RUN = 4
"""Outputs, on the average; with less, one gather for all of them is faster."""


class SumRun(NamedTuple):
    """Outputs at equal distances, the first cell that each reads, and weights: (outputs, taps).

    The cells are at equal distances too, or any cells, to be gathered.
    """

    outputs: slice
    cells: slice | Cells
    weights: Floats


def split_into_runs(places: Floats, weighted: Weighted) -> list[SumRun]:
    """Return runs that together make up all outputs."""
    first, weights = weighted
    count = len(places)
    if not count:
        return []
    pace = Fraction((places[-1] - places[0]) / max(count - 1, 1)).limit_denominator(LONGEST_PERIOD)
    period, step = pace.denominator, max(pace.numerator, 1)
    runs: list[SumRun] = []
    for phase in range(min(period, count)):
        alike = np.arange(phase, count, period)
        for run in np.split(alike, np.flatnonzero(np.diff(first[alike]) != step) + 1):
            outputs = slice(int(run[0]), int(run[-1]) + 1, period)
            cells = slice(int(first[run[0]]), int(first[run[-1]]) + 1, step)
            runs.append(SumRun(outputs, cells, weights[run]))
    if len(runs) * SHORTEST_RUN <= count or count == 1:
        return runs
    return [SumRun(slice(0, count), first, weights)]


def longest_run(runs: Sequence[SumRun]) -> int:
    """Return the number of outputs in the longest run."""
    return max((len(run.weights) for run in runs), default=0)


def add_weighted(
    xp: ArrayModule,
    source: Array,
    run: SumRun,
    axis: int,
    target: Array,
    total: Array,
    product: Array,
) -> list[Step]:
    """Return the steps that write a run's outputs along an axis of the target.

    Equal weights are applied to the sum, once. `total` and `product` are flat buffers, long enough
    for the longest run's outputs.
    """
    outputs = target[at(axis, run.outputs)]
    taps = [int(tap) for tap in np.flatnonzero(run.weights.any(axis=0))]
    if not taps:
        return [partial(outputs.fill, 0)]
    total, product = (flat[: outputs.size].reshape(outputs.shape) for flat in (total, product))
    factors = [_factor(xp, run.weights[:, tap], outputs, axis) for tap in taps]
    same = len(taps) == 1 or all(isinstance(f, float) and f == factors[0] for f in factors)
    steps: list[Step] = []
    sums: Array = None
    for tap, factor in zip(taps, factors, strict=True):
        buffer = total if sums is None else product
        cells = _read(xp, source, run, axis, tap, buffer, steps)
        if not same:
            steps.append(partial(xp.multiply, cells, factor, out=buffer))
            cells = buffer
        if sums is not None:
            ends = tap == taps[-1] and not same
            steps.append(partial(xp.add, sums, cells, out=outputs if ends else total))
        sums = cells if sums is None else total
    return [*steps, partial(xp.multiply, sums, factors[0], out=outputs)] if same else steps


def _factor(xp: ArrayModule, weights: Floats, outputs: Array, axis: int) -> Any:
    """Return a tap's weights as one number, or as an array along the axis."""
    narrow = weights.astype(outputs.dtype)
    if (narrow == narrow[0]).all():
        return float(narrow[0])
    return xp.asarray(narrow).reshape(-1, *(1 for _ in outputs.shape[axis + 1 :]))


def _read(
    xp: ArrayModule,
    source: Array,
    run: SumRun,
    axis: int,
    tap: int,
    buffer: Array,
    steps: list[Step],
) -> Array:
    """Return a tap's cells: a view, or the buffer after a step that gathers them into it."""
    if isinstance(run.cells, slice):
        shifted = slice(run.cells.start + tap, run.cells.stop + tap, run.cells.step)
        return source[at(axis, shifted)]
    steps.append(gather(xp, source, xp.asarray(run.cells + tap), axis, buffer))
    return buffer
