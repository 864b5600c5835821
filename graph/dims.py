"""Arithmetic on dimensions: exact on numbers, textual on symbols.

A symbolic result is an expression such as ``(h+1)//2``. Equal text means equal length; different
text means nothing. Numbers replace symbols when a graph is specialised, and every shape is then
inferred again, so the text is for people and for early errors only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import ShapeError
from .tensor import Dim, Shape

UNKNOWN: Dim = "?"
"""What a shape rule returns for a length that only the inputs' values tell.

`infer_node` puts a name of its own in its place, so that no two unknown lengths read the same.
"""


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0:
        return b
    if b == 0:
        return a
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
    return a if b == 1 else f"{a}//{b}"


def ceildiv(a: Dim, b: int) -> Dim:
    """Return ⌈a / b⌉."""
    if isinstance(a, int):
        return -(-a // b)
    return a if b == 1 else f"ceil({a}/{b})"


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
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_meet(dims, shapes) for dims in zip(*padded, strict=True))


def _meet(dims: Sequence[Dim], shapes: Sequence[Shape]) -> Dim:
    numbers = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    symbols = sorted({dim for dim in dims if isinstance(dim, str)})
    if len(numbers) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(
            f"shapes {listed} do not broadcast together",
            fix="make the lengths equal, or 1 where one is to be repeated",
        )
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
