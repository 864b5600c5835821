"""Tables of the page as columns with each text stored once, to keep 5,000 rows small."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Texts:
    """Numbers of distinct texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of `text`; the separator in names of parts becomes a space."""
        return self._numbers.setdefault(text.replace("\0", " "), len(self._numbers))

    def numbers(self, texts: Iterable[str]) -> list[int]:
        return [self.number(text) for text in texts]

    @property
    def listed(self) -> list[str]:
        return list(self._numbers)


def round_digits(value: float | None, digits: int = 4) -> float | None:
    """Round `value` to `digits` digits; None for infinities and NaN, which JSON lacks."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def to_microseconds(seconds: float) -> float:
    """Convert `seconds` to µs, rounded to ns."""
    return round(seconds * 1e6, 3)
