r"""Text that a terminal shows, and never obeys.

Names come from files that anybody may have written. In what people are shown, characters that print
nothing stand as Python writes them, ``\x1b``: they could clear a screen, or turn text around.
"""

from __future__ import annotations

from collections.abc import Iterable

_LAYOUT = "\n\t"


def printable(text: str) -> str:
    r"""Return text whose lines and tabs are meant, without other characters that print nothing.

    Examples
    --------
    >>> print(printable("node a\x1b[2J"))
    node a\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(
        one if one in _LAYOUT or one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def listing(lines: Iterable[str]) -> str:
    """Return lines as one text; none becomes two by what a name in it holds."""
    return "\n".join(printable(line.replace("\n", "\\n")) for line in lines)
