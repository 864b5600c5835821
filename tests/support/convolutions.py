"""Convolutions for tests: cases to draw, and what they come to by the definition, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Case:
    """Inputs and attributes of one node."""

    x: Floats
    w: Floats
    b: Floats | None
    attributes: Mapping[str, Any]

    @property
    def inputs(self) -> list[Floats]:
        """The inputs that are given."""
        return [self.x, self.w] if self.b is None else [self.x, self.w, self.b]

    def cast(self, dtype: str) -> Case:
        """Return the case in another dtype."""
        b = None if self.b is None else self.b.astype(dtype)
        return Case(self.x.astype(dtype), self.w.astype(dtype), b, self.attributes)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    transposed: bool = False,
    ranks: st.SearchStrategy[int] = st.integers(1, 3),  # noqa: B008 - a strategy is a value
    strides: st.SearchStrategy[int] = st.integers(1, 3),  # noqa: B008
    kernels: st.SearchStrategy[int] = st.integers(1, 4),  # noqa: B008
    dilations: st.SearchStrategy[int] = st.integers(1, 2),  # noqa: B008
    pads: st.SearchStrategy[int] = st.integers(0, 3),  # noqa: B008
    depthwise: bool = False,
    group: st.SearchStrategy[int] = st.integers(1, 3),  # noqa: B008
) -> Case:
    """Draw a Conv or ConvTranspose with explicit pads whose output has cells."""
    rank = draw(ranks)
    kernel = draw(per_axis(rank, kernels))
    apart = draw(per_axis(rank, dilations))
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, apart, strict=True)]
    cells, begins, ends = [], [], []
    for extent in extents:
        begin, end = draw(pads), draw(pads)
        if transposed:
            begin, end = min(begin, extent - 1), 0 if begin else min(end, extent - 1)
        least = 1 if transposed else max(1, extent - begin - end)
        begins.append(begin)
        ends.append(end)
        cells.append(draw(st.integers(least, least + 5)))
    groups = draw(st.integers(1, 5)) if depthwise else draw(group)
    per_group, features = (
        (1, 1) if depthwise else (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    )
    attributes: dict[str, Any] = {
        "strides": draw(per_axis(rank, strides)),
        "dilations": apart,
        "pads": (*begins, *ends),
        "group": groups,
    }
    x = (draw(st.integers(1, 3)), groups * per_group, *cells)
    w = (groups * features, per_group, *kernel)
    if transposed:
        w = (groups * per_group, features, *kernel)
        attributes["output_padding"] = draw(per_axis(rank, st.integers(0, 2)))
    seed = draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    bias = random.standard_normal(groups * features) if draw(st.booleans()) else None
    return Case(random.standard_normal(x), random.standard_normal(w), bias, attributes)


def per_axis(rank: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw one value per axis."""
    return st.tuples(*[values] * rank)


def convolved(case: Case) -> Floats:
    """Return Conv by its definition: for each output cell, the sum over the taps it sees."""
    x, w = case.x.astype(np.float64), case.w.astype(np.float64)
    group, strides, dilations, pads = (
        case.attributes[name] for name in ("group", "strides", "dilations", "pads")
    )
    rank = x.ndim - 2
    outputs = [
        (x.shape[2 + d] + pads[d] + pads[rank + d] - ((w.shape[2 + d] - 1) * dilations[d] + 1))
        // strides[d]
        + 1
        for d in range(rank)
    ]
    xs = x.reshape(len(x), group, -1, *x.shape[2:])
    ws = w.reshape(group, -1, *w.shape[1:])
    y = np.zeros((len(x), group, ws.shape[1], *outputs))
    for cell in np.ndindex(*outputs):
        for tap in np.ndindex(*w.shape[2:]):
            at = [cell[d] * strides[d] + tap[d] * dilations[d] - pads[d] for d in range(rank)]
            if all(0 <= at[d] < x.shape[2 + d] for d in range(rank)):
                seen, weights = xs[(..., *at)], ws[(..., *tap)]
                y[(..., *cell)] += np.einsum("ngc,gmc->ngm", seen, weights)
    return biased(y.reshape(len(x), -1, *outputs), case.b)


def conv_transposed(case: Case) -> Floats:
    """Return ConvTranspose by its definition: each input cell adds to the cells its taps reach."""
    x, w = case.x.astype(np.float64), case.w.astype(np.float64)
    group, strides, dilations, pads, extra = (
        case.attributes[name]
        for name in ("group", "strides", "dilations", "pads", "output_padding")
    )
    rank = x.ndim - 2
    outputs = [
        strides[d] * (x.shape[2 + d] - 1)
        + extra[d]
        + ((w.shape[2 + d] - 1) * dilations[d] + 1)
        - pads[d]
        - pads[rank + d]
        for d in range(rank)
    ]
    xs = x.reshape(len(x), group, -1, *x.shape[2:])
    ws = w.reshape(group, -1, *w.shape[1:])
    y = np.zeros((len(x), group, w.shape[1], *outputs))
    for cell in np.ndindex(*x.shape[2:]):
        for tap in np.ndindex(*w.shape[2:]):
            at = [cell[d] * strides[d] + tap[d] * dilations[d] - pads[d] for d in range(rank)]
            if all(0 <= at[d] < outputs[d] for d in range(rank)):
                y[(..., *at)] += np.einsum("ngc,gcm->ngm", xs[(..., *cell)], ws[(..., *tap)])
    return biased(y.reshape(len(x), -1, *outputs), case.b)


def biased(y: Floats, b: Floats | None) -> Floats:
    """Return y with a number added per channel."""
    return y if b is None else y + b.astype(np.float64).reshape(-1, *[1] * (y.ndim - 2))
