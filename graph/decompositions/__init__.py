"""Operators decomposed into simpler ones, for devices that lack them: see `rules`."""

from __future__ import annotations

from .rules import (
    Decomposition,
    DecompositionBuilder,
    Result,
    decompose,
    decomposition,
    decompositions,
)

__all__ = [
    "Decomposition",
    "DecompositionBuilder",
    "Result",
    "decompose",
    "decomposition",
    "decompositions",
]
