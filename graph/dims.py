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


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0:
        return b
    if b == 0:
        return a
    # Sums bring their parentheses along, so that what is made of them can be read as it is
    # computed.
    return f"({a}-{-b})" if isinstance(b, int) and b < 0 else f"({a}+{b})"


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
    # 3·(h//2) is not 3·h//2, and the text must not say so.
    return f"{a}*({b})" if isinstance(b, str) and "//" in b else f"{a}*{b}"


def floordiv(a: Dim, b: int) -> Dim:
    """Return ⌊a / b⌋."""
    if isinstance(a, int):
        return a // b
    # Read from the left, as Python does: a is a name, a product, or a sum in parentheses.
    return a if b == 1 else f"{a}//{b}"


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
    # Sorted: the same lengths in another order are to have the same text.
    symbols = sorted({dim for dim in dims if isinstance(dim, str)})
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
    return symbols[0] if len(symbols) == 1 else f"max({','.join(symbols)})"


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
