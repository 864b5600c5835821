"""Definition of the gradient of a convolution's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...graph.tensor import Array, TensorSpec
from .ieee import exact_sum
from .indices import at, indices, table
from .registry import definition
from .windows import is_inside, windows


@definition("ConvWeightsGradient")
def conv_weights_gradient(
    x: Array,
    dy: Array,
    *,
    group: int,
    kernel_shape: Sequence[int],
    outputs: Sequence[TensorSpec],
    **attributes: Any,
) -> Array:
    """dw[f, c, k…] = Σ dy[n, f, o…]·x[n, first(f) + c, o·stride - begin + k·dilation, …].

    The sum is over the samples n and the places o of the window; x is 0 outside. It is what Conv's
    definition yields when the sum of dy·y is differentiated by w[f, c, k…].
    """
    shape, lengths = outputs[0].static_shape, x.shape[2:]
    counts = dy.shape[2:]
    sliding = windows(lengths, counts, kernel_shape, attributes)
    features_per_group = shape[0] // group

    def terms(f: int, c: int, cell: Sequence[int]) -> Iterator[float]:
        channel = f // features_per_group * shape[1] + c
        for window in indices(counts):
            steps = zip(sliding, window, cell, strict=True)
            place = [axis.place(o, k) for axis, o, k in steps]
            if is_inside(place, lengths):
                for n in range(x.shape[0]):
                    yield at(dy, n, f, *window) * at(x, n, channel, *place)

    def element(f: int, c: int, *cell: int) -> float:
        return float(exact_sum(list(terms(f, c, cell))))

    return table(shape, element)
