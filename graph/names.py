"""Unique names, handed out in constant time, and the known ones that a wrong one is close to."""

from __future__ import annotations

from collections.abc import Iterable

MOST_COMPARED = 20_000
"""Names that are gone through for those that are like another: so many take a second."""


def did_you_mean(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return how to mend a wrong name: by the known ones closest to it, else as told."""
    from difflib import get_close_matches

    listed = list(known)
    close = get_close_matches(str(name), listed) if len(listed) <= MOST_COMPARED else []
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


class Names:
    """The names that are taken.

    Parameters
    ----------
    taken : iterable of str
    separator : str
        Between a stem and the number that makes it unique.
    """

    def __init__(self, taken: Iterable[str] = (), separator: str = ".") -> None:
        self._taken = set(taken)
        self._separator = separator
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        """True for a name that is taken."""
        return name in self._taken

    def take(self, stem: str) -> str:
        """Return the stem if it is free, else with the first number from 2 that makes it so."""
        name, number = stem, self._numbers.get(stem, 1)
        while name in self._taken:
            number += 1
            name = f"{stem}{self._separator}{number}"
        self._numbers[stem] = number
        self._taken.add(name)
        return name
