"""Arithmetic on dimensions: exact on numbers, textual on symbols.

A symbolic result is an expression such as ``(h+1)//2``. Equal text means equal length; different
text means nothing. Numbers replace symbols when a graph is specialised, and every shape is then
inferred again, until inference and texts have agreed at some lengths.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import index
from typing import Any

from .errors import ShapeError
from .tensor import Dim, Shape, TensorSpec

UNKNOWN: Dim = "?"
"""A length that depends on values, as a shape rule returns it.

`infer_node` replaces it by a unique name, so that no two unknown lengths look equal.
"""


_ARITHMETIC = re.compile(r"[-+*(,]|//\d")  # names of tensors, in lengths, have slashes, too


def is_computed(dim: Dim) -> bool:
    return isinstance(dim, str) and _ARITHMETIC.search(dim) is not None


_SUM = re.compile(r"\((.+)([+-])(\d+)\)", re.DOTALL | re.ASCII)
_QUOTIENT = re.compile(r"(.+)//(\d+)", re.DOTALL | re.ASCII)
_MULTIPLE = re.compile(r"(.+)\*(\d+)", re.DOTALL | re.ASCII)
_MAXIMUM = re.compile(r"max\((.+)\)", re.DOTALL)


def add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int) or isinstance(b, int):
        symbol, number = (b, a) if isinstance(a, int) else (a, b)
        return _add_number(str(symbol), int(number))
    (a, more), (b, yet_more) = _split_sum(a), _split_sum(b)
    both = mul(2, a) if a == b else f"({a}+{b})"
    return add(both, more + yet_more)


def _add_number(symbol: str, number: int) -> Dim:
    rest, more = _split_sum(symbol)
    number += more
    if number == 0:
        return rest
    found = _QUOTIENT.fullmatch(rest)
    if found is not None and _is_whole(found[1]):  # n//2 + 1 is (n + 2)//2
        return floordiv(add(found[1], number * int(found[2])), int(found[2]))
    # Sums include their parentheses, so that longer expressions have the right precedence.
    return f"({rest}-{-number})" if number < 0 else f"({rest}+{number})"


def _split_sum(symbol: str) -> tuple[str, int]:
    found = _SUM.fullmatch(symbol)
    if found is None or not _is_whole(found[1]):
        return symbol, 0
    return found[1], int(found[2] + found[3])


def _is_whole(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


def mul(a: Dim, b: Dim) -> Dim:
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
    # 3·(h//2) is not 3·h//2, and the text must show that; nor does a sum end with -1 in h·-1.
    closed = "//" in b if isinstance(b, str) else b < 0
    return f"{a}*({b})" if closed else f"{a}*{b}"


def floordiv(a: Dim, b: int) -> Dim:
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
    # Evaluated from the left, as in Python: a is a name, a product, or a sum in parentheses.
    return f"{a}//{b}"


def find_largest(symbols: Iterable[str]) -> str:
    """Return the largest of `symbols`; equal sets give equal text in any order and nesting."""
    found = {operand for symbol in symbols for operand in _split_maximum(symbol)}
    rounded = {operand: _match_rounding(operand) for operand in found}
    kept = [
        operand
        for operand, own in rounded.items()
        if not any(_is_below(own, other) for other in rounded.values())
    ]
    return kept[0] if len(kept) == 1 else f"max({','.join(sorted(kept))})"


def _split_maximum(symbol: str) -> list[str]:
    found = _MAXIMUM.fullmatch(symbol)
    operands, part = list[str](), None
    for piece in found[1].split(",") if found is not None else ():
        part = piece if part is None else f"{part},{piece}"
        if _is_whole(part):  # otherwise the comma is inside an operand
            operands.append(part)
            part = None
    return operands if part is None and operands else [symbol]


def _match_rounding(symbol: str) -> tuple[str, int, int] | None:
    """Return n, b and k if `symbol` is k·⌈n / b⌉, else None."""
    multiple = _MULTIPLE.fullmatch(symbol)
    text, times = (symbol, 1) if multiple is None else (multiple[1], int(multiple[2]))
    quotient = _QUOTIENT.fullmatch(text)
    if quotient is None or not _is_whole(quotient[1]):
        return None
    rest, more = _split_sum(quotient[1])
    by = int(quotient[2])
    return (rest, by, times) if more == by - 1 else None


def _is_below(one: tuple[str, int, int] | None, other: tuple[str, int, int] | None) -> bool:
    """Return whether k·⌈n / b⌉ of `one` is never larger: `other` rounds to a multiple of its b."""
    if one is None or other is None or one[0] != other[0] or one == other:
        return False
    return one[2] * other[1] == other[2] * one[1] and other[1] % one[1] == 0


def subtract(a: Dim, b: Dim) -> Dim:
    return add(a, -b) if isinstance(b, int) else f"({a}-{b})"


def take_larger(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return find_largest((str(a), str(b)))


def slice_range(length: int, start: int, end: int, step: int) -> range:
    """Return the indices from `start` to `end` by `step`, clamped to `length` by ONNX's rules.

    Python differs for a backward slice that starts before the beginning: ONNX clamps the
    start to 0, so that one element is taken.
    """
    start, end = (bound + length if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), length), min(max(end, 0), length), step)
    return range(min(max(start, 0), length - 1), min(max(end, -1), length - 1), step)


def ceildiv(a: Dim, b: int) -> Dim:
    if isinstance(a, int):
        return -(-a // b)
    return a if b == 1 else f"ceil({a}/{b})"


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate_dim(dim: Dim, lengths: Mapping[str, int]) -> int | None:
    """Return the length `dim` at `lengths` of symbols; None if it depends on anything else."""
    found = _parse(str(dim), tuple(lengths))
    try:
        return None if found is None else _evaluate(found, tuple(lengths.values()))
    except (ArithmeticError, LookupError, RecursionError, ValueError):
        return None


@lru_cache(1024)
def _parse(text: str, symbols: tuple[str, ...]) -> ast.expr | None:
    """Return `text` as an expression in which ``[n]`` is number `n` of `symbols`, or None."""
    any_of = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pattern, found = rf"(?<!\w)(?:{any_of})(?!\w)" if symbols else r"\Z.", None
    # Files name lengths as they like, also by texts that only look like arithmetic.
    with suppress(MemoryError, RecursionError, SyntaxError, ValueError):
        if "[" not in text:
            text = re.sub(pattern, lambda match: f"[{symbols.index(match[0])}]", text)
            found = ast.parse(text, mode="eval").body
    return found


def _evaluate(node: ast.expr, lengths: Sequence[int]) -> int:
    match node:
        case ast.List([ast.Constant(int(number))]):
            return lengths[number]
        case ast.Constant(value) if type(value) is int:
            return value
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, lengths)
        case ast.BinOp(a, operation, b):
            return _OPERATIONS[type(operation)](_evaluate(a, lengths), _evaluate(b, lengths))
        case ast.Call(ast.Name("max"), [_, *_] as args, []):
            return max(_evaluate(one, lengths) for one in args)
        case ast.Call(ast.Name("slice"), [_, _, _, _] as args, []):
            return len(slice_range(*(_evaluate(one, lengths) for one in args)))
        case ast.Call(ast.Name("ceil"), [ast.BinOp(a, ast.Div(), b)], []):
            return -(-_evaluate(a, lengths) // _evaluate(b, lengths))
    raise LookupError(ast.dump(node))


def find_length_axis(shape: Sequence[Dim], symbol: str) -> int | None:
    """Return the first axis of `shape`, except that of rows, with a length that `symbol` gives."""
    for axis, dim in enumerate(shape):
        if axis and isinstance(dim, str) and evaluate_dim(dim, {symbol: 1}) is not None:
            return axis
    return None


def _make_method(make: Callable[[Dim, Dim], Dim]) -> Callable[[Symbol, Any], Any]:
    def method(self: Symbol, other: Any) -> Any:
        if not isinstance(other, str):
            try:
                other = index(other)
            except TypeError:
                return NotImplemented
        return _to_symbol(make(self, other))

    return method


def _divide(a: Dim, b: Dim) -> Dim:
    return floordiv(a, b) if isinstance(b, int) else f"({a}//({b}))"


def _take_rest(a: Dim, b: Dim) -> Dim:
    return f"({a}%({b}))"


class Symbol(str):
    """A length that is not a number yet, as rules of Python functions get it.

    Arithmetic returns another symbol; operations that need the number, such as comparisons, raise.

    Examples
    --------
    >>> n = Symbol("n")
    >>> n + 1, 2 * n // 2, -(-n // 2)
    ('(n+1)', '2*n//2', '-(-(n)//2)')
    """

    __slots__ = ()

    __add__ = _make_method(add)
    __radd__ = _make_method(lambda a, b: add(b, a))
    __sub__ = _make_method(subtract)
    __rsub__ = _make_method(lambda a, b: subtract(b, a))
    __mul__ = _make_method(mul)
    __rmul__ = _make_method(lambda a, b: mul(b, a))
    __floordiv__ = _make_method(_divide)
    __rfloordiv__ = _make_method(lambda a, b: _divide(b, a))
    __mod__ = _make_method(_take_rest)
    __rmod__ = _make_method(lambda a, b: _take_rest(b, a))

    def __neg__(self) -> Symbol:
        return Symbol(f"-({self})")

    def _compare(self, other: object) -> bool:
        raise TypeError(f"{str(self)!r} is not a number yet, to be compared with {other!r}")

    __lt__ = __le__ = __gt__ = __ge__ = _compare


def to_computable(spec: TensorSpec) -> TensorSpec:
    """Return `spec` with symbols that support arithmetic."""
    made = TensorSpec(spec.dtype, spec.shape)
    if spec.shape is not None:
        # Specs convert symbols to plain strings: is_static checks the types.
        object.__setattr__(made, "shape", tuple(map(_to_symbol, spec.shape)))
    return made


def _to_symbol(dim: Dim) -> Symbol | int:
    return dim if isinstance(dim, int) else Symbol(dim)


def multiply_all(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which all `shapes` broadcast, by numpy's rule.

    A number other than 1 is preferred to a symbol, which must turn out to be that number or 1.
    Raises ShapeError if two numbers differ and neither is 1.
    """
    rank = max(map(len, shapes), default=0)
    # Axes are aligned at the end.
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_dims(dims, shapes) for dims in zip(*padded, strict=True))


def _broadcast_dims(dims: Sequence[Dim], shapes: Sequence[Shape]) -> Dim:
    numbers = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    symbols = {dim for dim in dims if isinstance(dim, str)}
    if len(numbers) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(
            f"shapes {listed} do not broadcast together",
            fix="make the lengths equal, or 1 where one is to be repeated",
        )
    # A symbol next to a number above 1 is that number or 1: the result is the number.
    if numbers:
        return numbers.pop()
    if not symbols:
        return 1
    return find_largest(symbols)


def normalize_axis(axis: int, rank: int, label: str = "axis") -> int:
    """Return `axis`, called `label` in errors, of [-`rank`, `rank`), counted from the front."""
    if not -rank <= axis < rank:
        raise ShapeError(
            f"{label} {axis} is outside a tensor of rank {rank}",
            fix=f"use a value in [{-rank}, {rank - 1}]",
        )
    return axis % rank


def normalize_axes(axes: Iterable[int], rank: int, label: str = "axes") -> tuple[int, ...]:
    """Return `axes`, called `label` in errors, counted from the front; no two are the same."""
    listed = tuple(normalize_axis(int(axis), rank, label) for axis in axes)
    if len(set(listed)) != len(listed):
        raise ShapeError(f"{label} {list(listed)} name a dimension twice", fix="name each once")
    return listed


def may_agree(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Return whether shapes `a` and `b` may be equal; symbols and None may stand for anything."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(
        x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b, strict=True)
    )
