"""Shapes of inputs, and bounds of the symbols in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Shapes: TypeAlias = Mapping[str, Sequence[int]]
"""For inputs the lengths of their dimensions."""

Bounds: TypeAlias = Mapping[str, tuple[int, int]]
"""For symbols the smallest and the largest length."""

NO_BOUNDS: Bounds = {}
