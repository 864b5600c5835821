r"""Names: unique ones, suggestions for misspelt ones, and text that is safe on a terminal.

Names come from files of any origin. Unprintable characters are shown as in Python, ``\x1b``: they
could clear a screen, or reverse text.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_COMPARED = 20_000
"""Limit of names that are compared for suggestions, which takes a second."""


def suggest_names(name: object, known: Iterable[str], otherwise: str) -> str:
    """Suggest the `known` names closest to the wrong `name`, or return `otherwise`."""
    from difflib import get_close_matches

    listed = list(known)
    close = get_close_matches(str(name), listed) if len(listed) <= MOST_COMPARED else []
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


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


def escape_unprintable(text: str) -> str:
    r"""Escape unprintable characters of `text` except newlines and tabs.

    Examples
    --------
    >>> print(escape_unprintable("node a\x1b[2J"))
    node a\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(
        one if one in "\n\t" or one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def join_lines(lines: Iterable[str]) -> str:
    """Join `lines` after escaping newlines within them."""
    return "\n".join(escape_unprintable(line.replace("\n", "\\n")) for line in lines)
