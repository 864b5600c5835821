"""Lengths of random inputs where a model leaves them open, proposed from names and positions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..graph.values.dtypes import kind_of
from ..graph.values.tensor import TensorSpec

NAMED = (
    (r"batch|^n$|^b$|^bs$|num_(images|samples)$|unk", 1),
    (r"channel|^c$", 3),
    (r"height|width|^h$|^w$|image_size|img_size", 320),
    (r"samples|audio|wave", 16_000),
    (r"past", 0),
    (r"seq|token|time|^t$|^s$|^l$|frames|steps", 64),
)
"""Patterns of a symbol, and a usual length of such an axis."""

PIXELS = 320
"""The height and width of images: a multiple of 32, by which most networks divide them."""


def propose_lengths(specs: Iterable[TensorSpec], known: Mapping[str, int]) -> dict[str, int]:
    """Return a length for each symbol in the `specs` of inputs that has no length in `known`.

    A name such as ``"height"`` decides. Otherwise the length is 1, or that of an image if the axis
    is the height or width of a batch of images.
    """
    found: dict[str, int] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and dim not in known:
                found[dim] = max(found.get(dim, 0), _propose(dim, axis, spec))
    return found


def _propose(symbol: str, axis: int, spec: TensorSpec) -> int:
    for pattern, length in NAMED:
        if re.search(pattern, symbol.lower()):
            return length
    return PIXELS if axis in _find_pixel_axes(spec) else 1


def _find_pixel_axes(spec: TensorSpec) -> tuple[int, ...]:
    """Return the axes of height and width if `spec` is a batch of images, otherwise no axes."""
    shape = spec.shape or ()
    if len(shape) != 4 or kind_of(spec.dtype) not in "fu":
        return ()
    if shape[1] in (1, 3, 4):
        return 2, 3
    return (1, 2) if shape[3] in (1, 3, 4) else ()
