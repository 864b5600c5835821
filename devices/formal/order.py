"""The order of numbers, of which some may be NaN."""

from __future__ import annotations

from typing import Any


def rank(x: Any) -> tuple[bool, Any]:
    """Return a key by which numbers compare; NaN is above all others."""
    return (True, 0) if x != x else (False, x)
