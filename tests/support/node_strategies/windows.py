"""Nodes that slide windows over images: convolution, pooling, and back from columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from plait.graph.operators.windows import resolve_window
from single_node import AnyArray, run_node

from .drawing import (
    ALL,
    ANY,
    FINITE,
    FLOATS,
    NUMBERS,
    WITH_SPECIAL,
    Draw,
    NodeCase,
    Palette,
    Strategy,
    choose,
    few,
    flag,
    i64,
    integer,
    masked,
    ordinary,
    rng_of,
    size_of,
    tensor,
)

SUMS: tuple[Palette, ...] = (few, ordinary)
AUTO_PADS = ("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
LONGEST = {1: 9, 2: 6, 3: 4}
"""The longest axis of an image, by the number of axes."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """An image's lengths, and a window that fits."""

    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)


def sliding(draw: Draw, rank: int | None = None, auto_pad: bool = True) -> Sliding:
    """Draw a window, less padded than it is long, and attributes, left out at times."""
    rank = rank or choose(draw, (1, 2, 2, 3))
    spatial = tuple(integer(draw, 1, LONGEST[rank]) for _ in range(rank))
    kernel = tuple(integer(draw, 1, 3) for _ in range(rank))
    attributes: dict[str, Any] = {}
    if flag(draw):
        attributes["strides"] = [integer(draw, 1, 3) for _ in range(rank)]
    if flag(draw):
        attributes["dilations"] = [integer(draw, 1, 2) for _ in range(rank)]
    if auto_pad:
        attributes["auto_pad"] = choose(draw, AUTO_PADS)
    if attributes.get("auto_pad", "NOTSET") == "NOTSET" and flag(draw):
        attributes["pads"] = [integer(draw, 0, size - 1) for size in (*kernel, *kernel)]
    return Sliding(spatial, kernel, attributes)


def counts_of(window: Sliding, ceil_mode: bool = False) -> tuple[int, ...]:
    """Return how many windows there are along each axis; leave out the node if one is too long."""
    known = {"strides": None, "dilations": None, "pads": None, "auto_pad": "NOTSET"}
    given = known | window.attributes
    pads = given["pads"] or [0] * 2 * len(window.kernel)
    dilations = given["dilations"] or [1] * len(window.kernel)
    if given["auto_pad"] in ("NOTSET", "VALID"):
        for d, (length, size) in enumerate(zip(window.spatial, window.kernel, strict=True)):
            reach = (size - 1) * dilations[d] + 1
            assume(reach <= length + pads[d] + pads[d + len(window.kernel)])
    _, counts = resolve_window(window.spatial, given, window.kernel, ceil_mode=ceil_mode)
    return tuple(int(n) for n in counts)


def conv(draw: Draw) -> NodeCase:
    dtype, window, group = choose(draw, FLOATS), sliding(draw), choose(draw, (1, 1, 2, 3))
    counts_of(window)
    channels, features = (group * integer(draw, 1, 3) for _ in range(2))
    x = tensor(draw, dtype, (integer(draw, 0, 2), channels, *window.spatial), SUMS)
    w = tensor(draw, dtype, (features, channels // group, *window.kernel), SUMS)
    b = tensor(draw, dtype, (features,), SUMS) if flag(draw) else None
    return _summing(draw, [x, w, b], window, {"group": group}, channels // group)


def conv_weights_gradient(draw: Draw) -> NodeCase:
    dtype, window, group = choose(draw, FLOATS), sliding(draw), choose(draw, (1, 1, 2, 3))
    counts, batch = counts_of(window), integer(draw, 0, 3)
    channels, features = (group * integer(draw, 1, 3) for _ in range(2))
    x = tensor(draw, dtype, (batch, channels, *window.spatial), SUMS)
    dy = tensor(draw, dtype, (batch, features, *counts), SUMS)
    attributes = {**window.attributes, "kernel_shape": window.kernel, "group": group}
    terms = size_of(x) * size_of(dy) * batch * math.prod(counts)
    return NodeCase([x, dy], attributes, ulps=8, terms=terms)


def _summing(
    draw: Draw,
    inputs: Sequence[AnyArray | None],
    window: Sliding,
    more: dict[str, Any],
    depth: int,
) -> NodeCase:
    attributes = {**window.attributes, **more}
    if flag(draw):
        attributes["kernel_shape"] = window.kernel
    terms = size_of(inputs[0]) * size_of(inputs[1]) * window.taps * depth + size_of(*inputs[2:])
    return NodeCase(inputs, attributes, ulps=8, terms=terms)


def conv_transpose(draw: Draw) -> NodeCase:
    dtype, window, group = choose(draw, FLOATS), sliding(draw), choose(draw, (1, 1, 2, 3))
    rank = len(window.kernel)
    channels, features = (group * integer(draw, 1, 2) for _ in range(2))
    attributes = window.attributes
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    steps = list(map(max, strides, dilations))
    more: dict[str, Any] = {"group": group}
    if flag(draw):
        more["output_padding"] = [integer(draw, 0, step - 1) for step in steps]
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(window.spatial, strides, window.kernel, dilations, strict=True)
    ]
    if attributes.get("auto_pad") == "NOTSET":
        pads = attributes.get("pads", [0] * 2 * rank)
        assume(all(n > pads[d] + pads[d + rank] for d, n in enumerate(full)))
    if integer(draw, 0, 3) == 0:
        more["output_shape"] = [integer(draw, max(n - 2, 1), n) for n in full]
    x = tensor(draw, dtype, (integer(draw, 0, 2), channels, *window.spatial), SUMS)
    w = tensor(draw, dtype, (channels, features // group, *window.kernel), SUMS)
    b = tensor(draw, dtype, (features,), SUMS) if flag(draw) else None
    return _summing(draw, [x, w, b], window, more, channels // group)


def deform_conv(draw: Draw) -> NodeCase:
    dtype, window = choose(draw, FLOATS), sliding(draw, 2, auto_pad=False)
    group, parts = choose(draw, (1, 2)), choose(draw, (1, 2))
    counts, batch = counts_of(window), integer(draw, 0, 2)
    channels = math.lcm(group, parts) * integer(draw, 1, 2)
    features = group * integer(draw, 1, 2)
    x = tensor(draw, dtype, (batch, channels, *window.spatial), SUMS)
    w = tensor(draw, dtype, (features, channels // group, *window.kernel), SUMS)
    offset = tensor(draw, dtype, (batch, parts * window.taps * 2, *counts), SUMS)
    b = tensor(draw, dtype, (features,), SUMS) if flag(draw) else None
    mask = tensor(draw, dtype, (batch, parts * window.taps, *counts), SUMS) if flag(draw) else None
    more = {"group": group, "offset_group": parts}
    case = _summing(draw, [x, w, b], window, more, channels // group)
    terms = 8 * float(case.terms) * (1 + size_of(mask)) * (1 + size_of(offset))
    return NodeCase([x, w, offset, b, mask], case.attributes, ulps=8, terms=terms)


def col2im(draw: Draw) -> NodeCase:
    window = sliding(draw, auto_pad=False)
    counts = counts_of(window)
    of = (integer(draw, 0, 2), integer(draw, 0, 2) * window.taps, math.prod(counts))
    x = tensor(draw, choose(draw, ANY), of)
    terms = size_of(x) * window.taps
    inputs = [x, i64(window.spatial), i64(window.kernel)]
    return NodeCase(inputs, window.attributes, constant={1, 2}, ulps=4, terms=terms)


def _image(draw: Draw, dtype: str, window: Sliding, palettes: Sequence[Palette]) -> AnyArray:
    batch, channels = integer(draw, 0, 2), integer(draw, 0, 2)
    return tensor(draw, dtype, (batch, channels, *window.spatial), palettes)


def _pooling(draw: Draw) -> tuple[Sliding, dict[str, Any]]:
    window, ceil_mode = sliding(draw), flag(draw)
    counts_of(window, ceil_mode)
    return window, {**window.attributes, "kernel_shape": window.kernel, "ceil_mode": ceil_mode}


def max_pool(draw: Draw) -> NodeCase:
    window, attributes = _pooling(draw)
    x = _image(draw, choose(draw, NUMBERS), window, (*FINITE, masked))
    attributes["storage_order"] = integer(draw, 0, 1)
    return NodeCase([x], attributes, n_outputs=integer(draw, 1, 2))


def max_pool_gradient(draw: Draw) -> NodeCase:
    """Each window's index is that of one of its cells; there is one in each."""
    window, attributes = _pooling(draw)
    counts = counts_of(window, attributes["ceil_mode"])
    dtype, outer = choose(draw, FLOATS), (integer(draw, 0, 2), integer(draw, 1, 2))
    shape = (*outer, *window.spatial)
    x = rng_of(draw).permutation(math.prod(shape)).reshape(shape).astype("float64")
    pooled, indices = run_node("MaxPool", [x], attributes, 2)
    assume(np.isfinite(pooled).all())
    dy = tensor(draw, dtype, (*outer, *counts), SUMS)
    inputs = [dy, indices, i64(shape)]
    return NodeCase(inputs, attributes, constant={2}, ulps=4, terms=size_of(dy) * window.taps)


def average_pool(draw: Draw) -> NodeCase:
    window, attributes = _pooling(draw)
    x = _image(draw, choose(draw, FLOATS), window, FINITE)
    attributes["count_include_pad"] = flag(draw)
    return NodeCase([x], attributes, ulps=8, terms=size_of(x))


def lp_pool(draw: Draw) -> NodeCase:
    window, attributes = _pooling(draw)
    x = _image(draw, choose(draw, FLOATS), window, SUMS)
    return NodeCase([x], {**attributes, "p": integer(draw, 1, 3)}, ulps=16)


def plane_pool(
    ulps: float, palettes: Sequence[Palette] = SUMS, **attributes: Sequence[Any]
) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        x = _image(draw, choose(draw, FLOATS), sliding(draw), palettes)
        given = {name: choose(draw, of) for name, of in attributes.items()}
        return NodeCase([x], given, ulps=ulps, terms=size_of(x) if not attributes else 0.0)

    return strategy


def max_unpool(draw: Draw) -> NodeCase:
    """No two cells have the same index: which one would win is not said."""
    rank = choose(draw, (1, 2, 3))
    counts = [integer(draw, 1, 3) for _ in range(rank)]
    kernel = [integer(draw, 1, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if flag(draw):
        attributes["strides"] = [integer(draw, 1, 3) for _ in range(rank)]
    strides = attributes.get("strides", [1] * rank)
    made = [(n - 1) * s + k for n, s, k in zip(counts, strides, kernel, strict=True)]
    outer = (integer(draw, 1, 2), integer(draw, 1, 2))
    x = tensor(draw, choose(draw, FLOATS), (*outer, *counts))
    order = rng_of(draw).permutation(math.prod((*outer, *made)))[: x.size]
    larger = i64([*outer, *(n + integer(draw, 0, 2) for n in made)]) if flag(draw) else None
    indices = np.asarray(order).reshape(x.shape)
    return NodeCase([x, indices, larger], attributes, constant={2})


STRATEGIES: dict[str, Strategy] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "ConvWeightsGradient": conv_weights_gradient,
    "DeformConv": deform_conv,
    "Col2Im": col2im,
    "MaxPool": max_pool,
    "MaxPoolGradient": max_pool_gradient,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalAveragePool": plane_pool(8, WITH_SPECIAL),
    "GlobalMaxPool": plane_pool(0, ALL),
    "GlobalLpPool": plane_pool(16, p=(1, 2, 3)),
    "MaxUnpool": max_unpool,
}
