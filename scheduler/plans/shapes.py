"""Shapes of inputs, and bounds of the symbols in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Shapes: TypeAlias = Mapping[str, Sequence[int]]
"""The shapes of inputs, by name."""

Bounds: TypeAlias = Mapping[str, tuple[int, int]]
"""The smallest and the largest length of each symbol."""

NO_BOUNDS: Bounds = {}
