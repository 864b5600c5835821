"""Images from columns, by kernels of ``(xp, inputs, outputs, attributes, scratch) -> Step``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.convolution import to_window
from ...graph.operators.windows import resolve_window
from ...graph.values.tensor import TensorSpec
from .arguments import get_integers
from .precision import declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel
from .sliding import AxisWindow, list_axis_windows


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return declare_wide_copies(outputs)


@kernel("Col2Im", scratch=_declare_scratch, binds=True)
def col2im(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = for each cell of the image, the sum of the blocks' cells that lie on it. Blocks are added
    # tap by tap: a tap's cells of all blocks lie a stride apart.
    image, block = outputs[0].shape[2:], get_integers(inputs, 2)
    assert block is not None
    window, counts = resolve_window(image, to_window(attributes), block)
    assert window is not None
    wide = widen(xp, (), outputs, scratch)
    (y,) = wide.outputs
    blocks = inputs[0].reshape(*y.shape[:2], *block, *counts)
    steps: list[Step] = [partial(y.fill, 0)]
    for tap in itertools.product(*map(range, block)):
        axes = list_axis_windows(window, image, blocks.shape[2 + len(block) :])
        chosen, cells = zip(*map(AxisWindow.slices, axes, tap), strict=True)
        target = y[(..., *cells)]
        steps.append(
            partial(xp.add, target, blocks[(slice(None), slice(None), *tap, *chosen)], target)
        )
    return wide.around(steps)
