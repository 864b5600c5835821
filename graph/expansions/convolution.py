"""Convolutions that a device lacks in some form, in others that it may have."""

from __future__ import annotations

import numpy as np

from ..windows import resolve_window
from .pooling import rows
from .rules import Draft, expands

MOST_GROUPS = 64
"""Of a convolution that is written out group by group."""


@expands("Conv", wide=False)
def without_bias(draft: Draft, x: str, w: str, bias: str = "") -> str | None:
    """Conv without a bias, then Add."""
    rank = draft.spec(x).rank
    if not bias or rank is None:
        return None
    product = draft("Conv", x, w, **draft.attributes)
    return draft("Add", product, draft("Reshape", bias, (-1, *(1,) * (rank - 2))))


@expands("Conv", wide=False)
def padded_first(draft: Draft, x: str, w: str, bias: str = "") -> str | None:
    """Pad, then Conv without padding."""
    shape, kernel = draft.shape(x), draft.shape(w)
    if shape is None or kernel is None:
        return None
    window, _ = resolve_window(shape[2:], draft.attributes, kernel[2:])
    if window is None or not any((*window.pads_begin, *window.pads_end)):
        return None
    pads = (0, 0, *window.pads_begin, 0, 0, *window.pads_end)
    attributes = {**draft.attributes, "auto_pad": "NOTSET", "pads": None}
    return draft("Conv", draft("Pad", x, pads), w, bias, **attributes)


@expands("Conv", wide=False)
def dense(draft: Draft, x: str, w: str, bias: str = "") -> str | None:
    """Dilated weights -> weights with zeros between them, where they are constant."""
    dilations, weights = draft.attributes["dilations"], draft.value(w)
    if weights is None or not dilations or max(dilations) == 1:
        return None
    lengths = [(n - 1) * d + 1 for n, d in zip(weights.shape[2:], dilations, strict=True)]
    wide = np.zeros((*weights.shape[:2], *lengths), weights.dtype)
    wide[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = weights
    attributes = {**draft.attributes, "dilations": None, "kernel_shape": None}
    return draft("Conv", x, wide, bias, **attributes)


@expands("Conv", wide=False)
def with_rows(draft: Draft, x: str, w: str, bias: str = "") -> str | None:
    """A line is an image of one row."""
    if draft.spec(x).rank != 3:
        return None
    image, weights = (draft("Unsqueeze", one, (2,)) for one in (x, w))
    product = draft("Conv", image, weights, bias, **rows(draft.attributes))
    return draft("Squeeze", product, (2,))


@expands("Conv", "ConvTranspose", wide=False)
def by_groups(draft: Draft, x: str, w: str, bias: str = "") -> str | None:
    """Split, a Conv for each group, Concat."""
    groups, shape, kernel = draft.attributes["group"], draft.shape(x), draft.shape(w)
    if not 1 < groups <= MOST_GROUPS or shape is None or kernel is None:
        return None
    parts = [
        draft.several(groups, "Split", one, (length // groups,) * groups, axis=axis)
        for one, axis, length in ((x, 1, shape[1]), (w, 0, kernel[0]))
    ]
    if bias:
        features = draft.spec(bias).static_shape[0] // groups
        parts.append(draft.several(groups, "Split", bias, (features,) * groups, axis=0))
    attributes = {**draft.attributes, "group": 1}
    products = [draft(draft.node.op, *each, **attributes) for each in zip(*parts, strict=True)]
    return draft("Concat", *products, axis=1)
