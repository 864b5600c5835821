r"""Text that is safe on a terminal.

Names come from files of any origin. Unprintable characters are shown as in Python, ``\x1b``: they
could clear a screen, or reverse text.
"""

from __future__ import annotations

from collections.abc import Iterable

_LAYOUT = "\n\t"


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
        one if one in _LAYOUT or one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def join_lines(lines: Iterable[str]) -> str:
    """Join `lines` after escaping newlines within them."""
    return "\n".join(escape_unprintable(line.replace("\n", "\\n")) for line in lines)
