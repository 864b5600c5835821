"""The gradient of Col2Im: each block of the image becomes a column."""

from __future__ import annotations

import math

from .adjoint import Adjoint
from .elementwise import Gradients
from .registry import gradient


@gradient("Col2Im")
def col2im(at: Adjoint) -> Gradients:
    """A convolution of each channel, one of whose features is each cell of a block."""
    x, dy, formula = at.input(0), at.dy, at.formula
    block = at.input(2).value
    if block is None:
        raise at.refused_error("its block_shape is computed", "pass it as a constant")
    kernel = [int(size) for size in block]
    cells = formula.constant([math.prod(kernel)])
    unit = formula.filled(formula.joined(cells, cells), 0, dy.dtype).op("EyeLike")
    taps = unit.reshaped(formula.constant([math.prod(kernel), 1, *kernel]))
    one = formula.constant([1])
    planes = dy.reshaped(formula.joined(formula.size_of(dy, 0, 2), one, formula.shape_of(dy, 2)))
    window = {name: at[name] for name in ("dilations", "pads", "strides")}
    yield 0, planes.op("Conv", taps, **window).reshaped(formula.shape_of(x))
