"""Arithmetic on dimensions: exact on numbers, textual on symbols.

A symbolic result is an expression such as ``(h+1)//2``. Equal text means equal length; different
text means nothing. Numbers replace symbols when a graph is specialised, and every shape is then
inferred again, so the text is for people and for early errors only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

from .errors import ShapeError
from .tensor import Dim, Shape, TensorSpec

UNKNOWN: Dim = "?"
"""What a shape rule returns for a length that only the inputs' values tell.

`infer_node` puts a name of its own in its place, so that no two unknown lengths read the same.
"""


_ARITHMETIC = re.compile(r"[-+*/(,]")


def is_computed(dim: Dim) -> bool:
    """True for the text of a length that is computed from other lengths."""
    return isinstance(dim, str) and _ARITHMETIC.search(dim) is not None


_SUM = re.compile(r"\((.+)([+-])(\d+)\)", re.DOTALL | re.ASCII)
_QUOTIENT = re.compile(r"(.+)//(\d+)", re.DOTALL | re.ASCII)
_MULTIPLE = re.compile(r"(.+)\*(\d+)", re.DOTALL | re.ASCII)
_MAXIMUM = re.compile(r"max\((.+)\)", re.DOTALL)


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int) or isinstance(b, int):
        symbol, number = (b, a) if isinstance(a, int) else (a, b)
        return _sum(str(symbol), int(number))
    (a, more), (b, yet_more) = _split_sum(a), _split_sum(b)
    both = mul(2, a) if a == b else f"({a}+{b})"
    return add(both, more + yet_more)


def _sum(symbol: str, number: int) -> Dim:
    rest, more = _split_sum(symbol)
    number += more
    if number == 0:
        return rest
    found = _QUOTIENT.fullmatch(rest)
    if found is not None and _is_whole(found[1]):  # n//2 + 1 is (n + 2)//2
        return floordiv(add(found[1], number * int(found[2])), int(found[2]))
    # Sums bring their parentheses along, so that longer expressions read as they are computed.
    return f"({rest}-{-number})" if number < 0 else f"({rest}+{number})"


def _split_sum(symbol: str) -> tuple[str, int]:
    """Split a sum into a symbol and the number at its end."""
    found = _SUM.fullmatch(symbol)
    if found is None or not _is_whole(found[1]):
        return symbol, 0
    return found[1], int(found[2] + found[3])


def _is_whole(text: str) -> bool:
    """True if all parentheses in a text are its own."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


def mul(a: Dim, b: Dim) -> Dim:
    """Return a · b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    if a == 1:
        return b
    if b == 1:
        return a
    if isinstance(a, int) or isinstance(b, int):
        symbol, number = (b, a) if isinstance(a, int) else (a, b)
        assert isinstance(number, int)
        operands = _split_maximum(str(symbol))
        if len(operands) > 1 and number > 0:  # the largest stays the largest
            return find_largest(str(mul(one, number)) for one in operands)
        found = _MULTIPLE.fullmatch(str(symbol))
        if found is not None and _is_whole(found[1]):
            return mul(found[1], int(found[2]) * int(number))
    # 3·(h//2) is not 3·h//2, and the text must not say so; nor does a sum end with -1 in h·-1.
    closed = "//" in b if isinstance(b, str) else b < 0
    return f"{a}*({b})" if closed else f"{a}*{b}"


def floordiv(a: Dim, b: int) -> Dim:
    """Return ⌊a / b⌋."""
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    if b < 1:
        return f"{a}//{b}"
    found = _MULTIPLE.fullmatch(a)
    if found is not None and _is_whole(found[1]) and int(found[2]) % b == 0:
        return mul(found[1], int(found[2]) // b)
    # Floors of floors: ((n//2) + 1)//2 is (n + 2)//4.
    rest, number = _split_sum(a)
    found = _QUOTIENT.fullmatch(rest)
    if found is not None and _is_whole(found[1]):
        inner = int(found[2])
        return floordiv(add(found[1], number * inner), inner * b)
    # Read from the left, as Python does: a is a name, a product, or a sum in parentheses.
    return f"{a}//{b}"


def find_largest(symbols: Iterable[str]) -> str:
    """Return the largest of lengths: equal sets have the same text, in any order and nesting."""
    found = {operand for symbol in symbols for operand in _split_maximum(symbol)}
    rounded = {operand: _match_rounding(operand) for operand in found}
    kept = [
        operand
        for operand, own in rounded.items()
        if not any(_is_below(own, other) for other in rounded.values())
    ]
    return kept[0] if len(kept) == 1 else f"max({','.join(sorted(kept))})"


def _split_maximum(symbol: str) -> list[str]:
    """Return the lengths that a symbol is the largest of; itself for any other text."""
    found = _MAXIMUM.fullmatch(symbol)
    operands, part = list[str](), None
    for piece in found[1].split(",") if found is not None else ():
        part = piece if part is None else f"{part},{piece}"
        if _is_whole(part):  # else the comma is inside of an operand
            operands.append(part)
            part = None
    return operands if part is None and operands else [symbol]


def _match_rounding(symbol: str) -> tuple[str, int, int] | None:
    """Return n, b and k where a symbol is k·⌈n / b⌉; None for other symbols."""
    multiple = _MULTIPLE.fullmatch(symbol)
    text, times = (symbol, 1) if multiple is None else (multiple[1], int(multiple[2]))
    quotient = _QUOTIENT.fullmatch(text)
    if quotient is None or not _is_whole(quotient[1]):
        return None
    rest, more = _split_sum(quotient[1])
    by = int(quotient[2])
    return (rest, by, times) if more == by - 1 else None


def _is_below(one: tuple[str, int, int] | None, other: tuple[str, int, int] | None) -> bool:
    """True if k·⌈n / b⌉ is nowhere above: the other is rounded to a multiple of its b."""
    if one is None or other is None or one[0] != other[0] or one == other:
        return False
    return one[2] * other[1] == other[2] * one[1] and other[1] % one[1] == 0


def ceildiv(a: Dim, b: int) -> Dim:
    """Return ⌈a / b⌉."""
    if isinstance(a, int):
        return -(-a // b)
    return a if b == 1 else f"ceil({a}/{b})"


def _computing(make: Callable[[Dim, Dim], Dim]) -> Callable[[Symbol, Any], Any]:
    """Return a method of symbols that makes a length of two, unless one is none."""

    def method(self: Symbol, other: Any) -> Any:
        if not isinstance(other, str):
            try:
                other = index(other)
            except TypeError:
                return NotImplemented
        return _symbol(make(self, other))

    return method


def _divided(a: Dim, b: Dim) -> Dim:
    return floordiv(a, b) if isinstance(b, int) else f"({a}//({b}))"


def _less(a: Dim, b: Dim) -> Dim:
    return add(a, -b) if isinstance(b, int) else f"({a}-{b})"


def _rest(a: Dim, b: Dim) -> Dim:
    return f"({a}%({b}))"


class Symbol(str):
    """A length that is not a number yet, as the rules of Python functions get it.

    Arithmetic makes another one; what needs the number, such as a comparison, is a TypeError.

    Examples
    --------
    >>> n = Symbol("n")
    >>> n + 1, 2 * n // 2, -(-n // 2)
    ('(n+1)', '2*n//2', '-(-(n)//2)')
    """

    __slots__ = ()

    __add__ = _computing(add)
    __radd__ = _computing(lambda a, b: add(b, a))
    __sub__ = _computing(_less)
    __rsub__ = _computing(lambda a, b: _less(b, a))
    __mul__ = _computing(mul)
    __rmul__ = _computing(lambda a, b: mul(b, a))
    __floordiv__ = _computing(_divided)
    __rfloordiv__ = _computing(lambda a, b: _divided(b, a))
    __mod__ = _computing(_rest)
    __rmod__ = _computing(lambda a, b: _rest(b, a))

    def __neg__(self) -> Symbol:
        return Symbol(f"-({self})")

    def _compare(self, other: object) -> bool:
        raise TypeError(f"{str(self)!r} is not a number yet, to be compared with {other!r}")

    __lt__ = __le__ = __gt__ = __ge__ = _compare


def computable(spec: TensorSpec) -> TensorSpec:
    """Return a spec whose symbols can be computed with."""
    made = TensorSpec(spec.dtype, spec.shape)
    if spec.shape is not None:
        # Specs have plain strings, whatever they are made of: is_static looks at the types.
        object.__setattr__(made, "shape", tuple(map(_symbol, spec.shape)))
    return made


def _symbol(dim: Dim) -> Symbol | int:
    return dim if isinstance(dim, int) else Symbol(dim)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of dimensions, 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which all shapes broadcast, by numpy's rule.

    A number other than 1 wins over a symbol: the symbol must then turn out to be that number or 1.

    Raises
    ------
    ShapeError
        If two numbers differ and neither is 1.
    """
    rank = max(map(len, shapes), default=0)
    # Axes are aligned from behind.
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_meet(dims, shapes) for dims in zip(*padded, strict=True))


def _meet(dims: Sequence[Dim], shapes: Sequence[Shape]) -> Dim:
    numbers = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    symbols = {dim for dim in dims if isinstance(dim, str)}
    if len(numbers) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(
            f"shapes {listed} do not broadcast together",
            fix="make the lengths equal, or 1 where one is to be repeated",
        )
    # A symbol beside a number above 1 is that number, or 1: both give the number.
    if numbers:
        return numbers.pop()
    if not symbols:
        return 1
    return find_largest(symbols)


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return axis counted from the front.

    Raises
    ------
    ShapeError
        If axis is outside [-rank, rank).
    """
    if not -rank <= axis < rank:
        raise ShapeError(
            f"{what} {axis} is outside a tensor of rank {rank}",
            fix=f"use a value in [{-rank}, {rank - 1}]",
        )
    return axis % rank


def normalize_axes(axes: Iterable[int], rank: int, what: str = "axes") -> tuple[int, ...]:
    """Return axes counted from the front, in the order given.

    Raises
    ------
    ShapeError
        If one is outside [-rank, rank) or two are the same.
    """
    listed = tuple(normalize_axis(int(axis), rank, what) for axis in axes)
    if len(set(listed)) != len(listed):
        raise ShapeError(f"{what} {list(listed)} name a dimension twice", fix="name each once")
    return listed


def may_agree(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """True unless shapes are known to differ; lengths that are not numbers may be anything."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(
        x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b, strict=True)
    )
