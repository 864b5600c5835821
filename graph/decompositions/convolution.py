"""Forms of convolutions that a device lacks, as other convolutions of `x` by `w` plus `bias`."""

from __future__ import annotations

import numpy as np

from ..operators.windows import resolve_window
from .pooling import to_rows
from .rules import DecompositionBuilder, decomposition

MOST_GROUPS = 64
"""Most groups of a convolution that is decomposed."""


@decomposition("Conv", wide=False)
def without_bias(builder: DecompositionBuilder, x: str, w: str, bias: str = "") -> str | None:
    rank = builder.spec(x).rank
    if not bias or rank is None:
        return None
    product = builder("Conv", x, w, **builder.attributes)
    return builder("Add", product, builder("Reshape", bias, (-1, *(1,) * (rank - 2))))


@decomposition("Conv", wide=False)
def padded_first(builder: DecompositionBuilder, x: str, w: str, bias: str = "") -> str | None:
    shape, kernel = builder.shape(x), builder.shape(w)
    if shape is None or kernel is None:
        return None
    window, _ = resolve_window(shape[2:], builder.attributes, kernel[2:])
    if window is None or not any((*window.pads_begin, *window.pads_end)):
        return None
    pads = (0, 0, *window.pads_begin, 0, 0, *window.pads_end)
    attributes = {**builder.attributes, "auto_pad": "NOTSET", "pads": None}
    return builder("Conv", builder("Pad", x, pads), w, bias, **attributes)


@decomposition("Conv", wide=False)
def dense(builder: DecompositionBuilder, x: str, w: str, bias: str = "") -> str | None:
    # Dilations are written out as zeros between constant weights.
    dilations, weights = builder.attributes["dilations"], builder.value(w)
    if weights is None or not dilations or max(dilations) == 1:
        return None
    lengths = [(n - 1) * d + 1 for n, d in zip(weights.shape[2:], dilations, strict=True)]
    wide = np.zeros((*weights.shape[:2], *lengths), weights.dtype)
    wide[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = weights
    attributes = {**builder.attributes, "dilations": None, "kernel_shape": None}
    return builder("Conv", x, wide, bias, **attributes)


@decomposition("Conv", wide=False)
def with_rows(builder: DecompositionBuilder, x: str, w: str, bias: str = "") -> str | None:
    # A line is an image of one row.
    if builder.spec(x).rank != 3:
        return None
    image, weights = (builder("Unsqueeze", one, (2,)) for one in (x, w))
    product = builder("Conv", image, weights, bias, **to_rows(builder.attributes))
    return builder("Squeeze", product, (2,))


@decomposition("Conv", "ConvTranspose", wide=False)
def by_groups(builder: DecompositionBuilder, x: str, w: str, bias: str = "") -> str | None:
    groups, shape, kernel = builder.attributes["group"], builder.shape(x), builder.shape(w)
    if not 1 < groups <= MOST_GROUPS or shape is None or kernel is None:
        return None
    parts = [
        builder.several(groups, "Split", one, (length // groups,) * groups, axis=axis)
        for one, axis, length in ((x, 1, shape[1]), (w, 0, kernel[0]))
    ]
    if bias:
        features = builder.spec(bias).static_shape[0] // groups
        parts.append(builder.several(groups, "Split", bias, (features,) * groups, axis=0))
    attributes = {**builder.attributes, "group": 1}
    products = [builder(builder.node.op, *each, **attributes) for each in zip(*parts, strict=True)]
    return builder("Concat", *products, axis=1)
