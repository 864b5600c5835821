"""Tables of the page as columns: 5,000 rows stay small, and texts that repeat stand there once."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text; names of parts have a space in place of their separator."""
        return self._numbers.setdefault(text.replace("\0", " "), len(self._numbers))

    def numbers(self, texts: Iterable[str]) -> list[int]:
        """Return the numbers of several texts."""
        return [self.number(text) for text in texts]

    @property
    def listed(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._numbers)


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Return a number with as many significant digits; None for what JSON has no word for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def microseconds(seconds: float) -> float:
    """Return seconds as µs with ns."""
    return round(seconds * 1e6, 3)
