"""Formulas in files, read by a parser of their own: nothing in them can run code.

Numbers, strings in quotes, true, false, null, arrays, ``+ - * / %``, comparisons, ``&& || !`` and
parentheses, as in C; ``**`` for powers, as in Perl; and paths such as ``self.params[pads][0]``,
which whoever asks looks up.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .errors import ParseError

Path: TypeAlias = tuple[str | int, ...]
"""``self.params[pads][0]`` is ("self", "params", "pads", 0)."""

Lookup: TypeAlias = Callable[[Path], Any]
"""Returns what a path stands for."""

Formula: TypeAlias = Callable[[Lookup], Any]
"""A formula that was read: its value, once paths have one.

Raises
------
ParseError
    If operands are none of the operator's; and whatever the lookup raises.
"""

LONGEST = 500
"""Characters; so many operators in a row nest, too."""

DEEPEST = 30
"""Parentheses, signs, powers and arrays within each other."""

EXACT_BITS = 256
"""Up to so many, powers of integers are integers; larger ones are numbers with a fraction."""

_TOKEN = re.compile(
    r'(?P<string>"[^"\\]*")|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])'
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[<>=!]=|\*\*|\S)",
    re.ASCII,
)
_WORDS = {"true": True, "false": False, "null": None}
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_EQUAL = {"==": operator.eq, "!=": operator.ne}
_ORDERED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _power(base: float, exponent: float) -> float:
    """Return a power without the work and memory of numbers that nothing could hold."""
    if not isinstance(base, int) or not isinstance(exponent, int) or exponent < 0:
        return math.pow(base, exponent)
    exact = base.bit_length() * exponent <= EXACT_BITS
    return int(base**exponent) if exact else math.pow(base, exponent)


_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    # Lengths stay integers where nothing is left over; 7 / 2 is 3.5, not 3 as in C.
    "/": lambda a, b: a // b if a % b == 0 and isinstance(a // b, int) else a / b,
    "%": operator.mod,
    "**": _power,
}


def read_formula(text: str, at: str) -> Formula:
    """Return the formula in a text.

    Raises
    ------
    ParseError
        If it is none.

    Examples
    --------
    >>> formula = read_formula('n / 2 >= 3 && !(kind == "off")', "here")
    >>> formula(lambda path: {"n": 6, "kind": "on"}[path[0]])
    True
    """
    return _Reader(text, at).formula()


def read_path(text: str, at: str) -> Path:
    """Return the path that a text is.

    Raises
    ------
    ParseError
        If it is none.
    """
    return _Reader(text, at).only_path()


class _Reader:
    """Reads by precedence climbing: Pratt, "Top Down Operator Precedence", 1973."""

    def __init__(self, text: str, at: str) -> None:
        self._text, self._at, self._depth = text, at, 0
        if len(text) > LONGEST:
            raise self._error(f"a formula of {len(text)} characters")
        # From the last to the first: `pop` takes the next one.
        self._tokens = [(found.lastgroup, found[0]) for found in _TOKEN.finditer(text)][::-1]

    def formula(self) -> Formula:
        made = self._level(0)
        if self._tokens:
            raise self._error(f"{self._tokens[-1][1]!r} is out of place")
        return made

    def only_path(self) -> Path:
        kind, text = self._take()
        path = self._path(text)
        if kind != "name" or self._tokens:
            raise self._error("this names nothing")
        return path

    def _level(self, level: int) -> Formula:
        """Read what binds at least so closely."""
        if level == len(_LEVELS):
            return self._single()
        made = self._level(level + 1)
        # A loop, not a recursion: signs of one level bind from the left, a - b - c is (a - b) - c.
        while self._next() in _LEVELS[level]:
            sign = self._take()[1]
            made = _joined(sign, made, self._level(level + 1), self._error)
        return made

    def _single(self) -> Formula:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error("it nests too deeply")
        kind, text = self._take()
        made = self._of_sign(text) if kind == "sign" else self._of_word(kind, text)
        if self._next() == "**":  # binds closer than the sign before it, and to the right
            self._take()
            made = _joined("**", made, self._single(), self._error)
        self._depth -= 1
        return made

    def _of_sign(self, text: str) -> Formula:
        if text == "(":
            made = self._level(0)
            self._expect(")")
            return made
        if text == "[":
            parts = [] if self._next() == "]" else [self._level(0)]
            while self._next() == ",":
                self._take()
                parts.append(self._level(0))
            self._expect("]")
            return lambda lookup: tuple(part(lookup) for part in parts)
        if text == "-":
            # As 0 less what follows: there is one rule for what can be subtracted.
            return _joined("-", lambda _: 0, self._single(), self._error)
        if text == "!":
            negated = self._single()
            return lambda lookup: not negated(lookup)
        raise self._error(f"{text!r} is out of place")

    def _of_word(self, kind: str | None, text: str) -> Formula:
        if kind == "name" and text not in _WORDS:
            path = self._path(text)
            return lambda lookup: lookup(path)
        if kind == "name":
            value: Any = _WORDS[text]
        elif kind == "string":
            value = text[1:-1]
        else:
            value = int(text) if text.isdecimal() else float(text)
        return lambda _: value

    def _path(self, first: str) -> Path:
        path: list[str | int] = [first]
        while self._next() in (".", "["):
            bracket = self._take()[1] == "["
            kind, text = self._take()
            # An attribute, or the number of an element, of something that was named before.
            if kind not in ("name", "number") or (kind == "number" and not text.isdecimal()):
                raise self._error(f"{text!r} names nothing")
            path.append(text if kind == "name" else int(text))
            if bracket:
                self._expect("]")
        return tuple(path)

    def _next(self) -> str:
        kind, text = self._tokens[-1] if self._tokens else ("end", "")
        return text if kind == "sign" else ""

    def _take(self) -> tuple[str | None, str]:
        if not self._tokens:
            raise self._error("it breaks off")
        return self._tokens.pop()

    def _expect(self, sign: str) -> None:
        kind, text = self._take()
        if (kind, text) != ("sign", sign):
            raise self._error(f"{text!r} stands where {sign!r} should")

    def _error(self, what: str) -> ParseError:
        shown = self._text if len(self._text) <= 80 else f"{self._text[:77]}..."
        return ParseError(f"in {shown!r}: {what}", at=self._at, fix="correct the formula")


def _joined(
    sign: str, left: Formula, right: Formula, error_of: Callable[[str], ParseError]
) -> Formula:
    """Return what two formulas make with a sign between them."""
    # These two look at their right side only if they must: the left one may say whether that is
    # there.
    if sign == "&&":
        return lambda lookup: bool(left(lookup)) and bool(right(lookup))
    if sign == "||":
        return lambda lookup: bool(left(lookup)) or bool(right(lookup))

    def joined(lookup: Lookup) -> Any:
        a, b = left(lookup), right(lookup)
        if sign in _EQUAL:
            return _EQUAL[sign](a, b)
        if not (_are_numbers((a, b)) or (sign in _ORDERED and _are_texts((a, b)))):
            raise error_of(f"{a!r} {sign} {b!r} makes no sense")
        if sign in _ORDERED:
            return _ORDERED[sign](a, b)
        try:
            return _SUMS[sign](a, b)
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            raise error_of(f"{a!r} {sign} {b!r} has no value") from error

    return joined


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(one, str) for one in values)
