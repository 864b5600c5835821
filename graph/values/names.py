"""Unique names."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """The names in use.

    The `separator` stands between a stem and the number that makes it unique.
    """

    def __init__(self, taken: Iterable[str] = (), separator: str = ".") -> None:
        self._taken = set(taken)
        self._separator = separator
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._taken

    def take(self, stem: str) -> str:
        """Return `stem` if it is free, otherwise with the first free number from 2."""
        name, number = stem, self._numbers.get(stem, 1)
        while name in self._taken:
            number += 1
            name = f"{stem}{self._separator}{number}"
        self._numbers[stem] = number
        self._taken.add(name)
        return name
