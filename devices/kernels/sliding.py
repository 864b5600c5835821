"""Windows along one axis, as one pair of strided slices per tap of the window.

Output o of a window reads the cells o·stride + tap·dilation - begin that lie in the input. Along
one axis at a time, a pooling over k×k cells costs 2k passes in place of k², and no padded copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...graph.tensor import Array
from .registry import ArrayModule
from .steps import Step


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """A window that slides along one axis.

    Attributes
    ----------
    length, outputs : int
        Cells of the input, and of the output.
    kernel, stride, dilation, begin, end : int
        As in `Window`, along this axis.
    """

    length: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0

    @property
    def is_identity(self) -> bool:
        """True when each output is the input at the same place."""
        return self.kernel == self.stride == 1 and self.begin == 0 and self.length == self.outputs

    def slices(self) -> list[tuple[slice, slice]]:
        """Return, per tap that reads anything, the outputs it reaches and the cells they read."""
        found = []
        for tap in range(self.kernel):
            offset = tap * self.dilation - self.begin
            first = max(0, -(offset // self.stride))
            last = min(self.outputs - 1, (self.length - 1 - offset) // self.stride)
            if first <= last:
                start, stop = first * self.stride + offset, last * self.stride + offset + 1
                found.append((slice(first, last + 1), slice(start, stop, self.stride)))
        return found

    def counts(self, *, padding: bool) -> Array:
        """Return how many cells each window holds, those of the padding counted or not."""
        low, high = (-self.begin, self.length + self.end) if padding else (0, self.length)
        starts = np.arange(self.outputs) * self.stride - self.begin
        cells = starts[:, None] + np.arange(self.kernel) * self.dilation
        return np.count_nonzero((low <= cells) & (cells < high), axis=1)


def slide(
    xp: ArrayModule,
    combine: Callable[..., object],
    source: Array,
    target: Array,
    axis: int,
    window: AxisWindow,
    neutral: object,
) -> list[Step]:
    """Return the steps that write `combine` over each window along an axis to the target.

    Parameters
    ----------
    combine : ufunc
        Associative and commutative: ``xp.maximum``, ``xp.add``.
    neutral : number
        Its neutral element: what a window without cells yields.
    """
    before = (slice(None),) * axis
    pairs = [
        (target[(*before, outputs)], source[(*before, cells)]) for outputs, cells in window.slices()
    ]
    whole = [cells for outputs, cells in pairs if outputs.shape == target.shape]
    partly = [pair for pair in pairs if pair[0].shape != target.shape]
    combine_into = partial(combine, dtype=target.dtype)
    rest = whole[2:]
    steps: list[Step]
    if len(whole) >= 2:
        steps = [partial(combine_into, whole[0], whole[1], out=target)]
    elif whole:
        steps = [partial(xp.copyto, target, whole[0])]
    else:
        steps = [partial(target.fill, neutral)]
    steps += [partial(combine_into, target, cells, out=target) for cells in rest]
    steps += [partial(combine_into, outputs, cells, out=outputs) for outputs, cells in partly]
    return steps
