"""Operators written out in simpler ones, for devices that lack them: see `rules`."""

from __future__ import annotations

from .rules import (
    Decomposition,
    DecompositionBuilder,
    Result,
    decomposed,
    decomposition,
    decompositions,
)

__all__ = [
    "Decomposition",
    "DecompositionBuilder",
    "Result",
    "decomposed",
    "decomposition",
    "decompositions",
]
