"""The strategies of all families, by operator."""

from __future__ import annotations

from . import (
    attending,
    contraction,
    elementwise,
    fusing,
    indexing,
    layout,
    normalization,
    quantization,
    randomness,
    recurrent,
    reduction,
    sampling,
    signal,
    stateful,
    windows,
)
from .drawing import Strategy

_FAMILIES = (
    attending,
    contraction,
    elementwise,
    fusing,
    indexing,
    layout,
    normalization,
    quantization,
    randomness,
    recurrent,
    reduction,
    sampling,
    signal,
    stateful,
    windows,
)

STRATEGIES: dict[str, Strategy] = {
    op: strategy for family in _FAMILIES for op, strategy in family.STRATEGIES.items()
}
