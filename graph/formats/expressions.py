"""Formulas in files, with their own parser: they cannot run code.

Numbers, strings in quotes, true, false, null, arrays, ``+ - * / %``, comparisons, ``&& || !`` and
parentheses, as in C; ``**`` for powers, as in Perl; and paths such as ``self.params[pads][0]``,
which the caller looks up.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..values.errors import ParseError

Path: TypeAlias = tuple[str | int, ...]
"""``self.params[pads][0]`` is ("self", "params", "pads", 0)."""

Lookup: TypeAlias = Callable[[Path], Any]
"""Returns the value of a path."""

Formula: TypeAlias = Callable[[Lookup], Any]
"""A parsed formula: returns its value, given a lookup.

Raises
------
ParseError
    If operands have the wrong type; and any error of the lookup.
"""

LONGEST = 500
"""Limit of characters, and so of nested operators."""

DEEPEST = 30
"""Limit of nested parentheses, signs, powers and arrays."""

EXACT_BITS = 256
"""Limit of bits of integer powers; larger powers are floats."""

_TOKEN = re.compile(
    r'(?P<string>"[^"\\]*")|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])'
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[<>=!]=|\*\*|\S)",
    re.ASCII,
)
_WORDS = {"true": True, "false": False, "null": None}
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_EQUAL = {"==": operator.eq, "!=": operator.ne}
_ORDERED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _raise_power(base: float, exponent: float) -> float:
    """Return `base` to the power `exponent`, without time and memory for huge numbers."""
    if not isinstance(base, int) or not isinstance(exponent, int) or exponent < 0:
        return math.pow(base, exponent)
    exact = base.bit_length() * exponent <= EXACT_BITS
    return int(base**exponent) if exact else math.pow(base, exponent)


_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    # Lengths stay integers if there is no remainder; 7 / 2 is 3.5, not 3 as in C.
    "/": lambda a, b: a // b if a % b == 0 and isinstance(a // b, int) else a / b,
    "%": operator.mod,
    "**": _raise_power,
}


def read_formula(text: str, at: str) -> Formula:
    """Parse the formula `text`; errors name the place `at`.

    Raises
    ------
    ParseError
        If the text is not a valid formula.

    Examples
    --------
    >>> formula = read_formula('n / 2 >= 3 && !(kind == "off")', "here")
    >>> formula(lambda path: {"n": 6, "kind": "on"}[path[0]])
    True
    """
    return _Reader(text, at).formula()


def read_path(text: str, at: str) -> Path:
    return _Reader(text, at).only_path()


class _Reader:
    """Reads by precedence climbing: Pratt, "Top Down Operator Precedence", 1973."""

    def __init__(self, text: str, at: str) -> None:
        self._text, self._at, self._depth = text, at, 0
        if len(text) > LONGEST:
            raise self._error(f"a formula of {len(text)} characters")
        # Reversed: `pop` takes the next one.
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
        """Read operators that have at least the precedence `level`."""
        if level == len(_LEVELS):
            return self._single()
        made = self._level(level + 1)
        # A loop, not a recursion: operators are left-associative, a - b - c is (a - b) - c.
        while self._next() in _LEVELS[level]:
            sign = self._take()[1]
            made = _combine(sign, made, self._level(level + 1), self._error)
        return made

    def _single(self) -> Formula:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error("it nests too deeply")
        kind, text = self._take()
        made = self._of_sign(text) if kind == "sign" else self._of_word(kind, text)
        if self._next() == "**":  # precedes the sign before it, and is right-associative
            self._take()
            made = _combine("**", made, self._single(), self._error)
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
            # As 0 minus the operand: one rule for operands of subtraction.
            return _combine("-", lambda _: 0, self._single(), self._error)
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
            # An attribute, or the index of an element.
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


def _combine(
    sign: str, left: Formula, right: Formula, error_of: Callable[[str], ParseError]
) -> Formula:
    # These evaluate the right side only if necessary: the left one may test whether it exists.
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
