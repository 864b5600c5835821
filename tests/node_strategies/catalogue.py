"""The strategies of all families, by operator."""

from __future__ import annotations

from . import (
    contraction,
    elementwise,
    indexing,
    layout,
    normalization,
    quantization,
    recurrent,
    reduction,
    sampling,
    signal,
    windows,
)
from .drawing import Strategy

_FAMILIES = (
    contraction,
    elementwise,
    indexing,
    layout,
    normalization,
    quantization,
    recurrent,
    reduction,
    sampling,
    signal,
    windows,
)

STRATEGIES: dict[str, Strategy] = {
    op: strategy for family in _FAMILIES for op, strategy in family.STRATEGIES.items()
}
