"""Linear algebra: matrix products, Einsum, determinants.

Cofactors, the gradient of the determinant, is an operator of plait's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import (
    ARRAY_KERNEL,
    FOLLOWS,
    FULLY_CONNECTED,
    IN_SUMS,
    PRIMITIVE,
    PRODUCT,
    WRITTEN_OUT_ON_GPUS,
)
from ..values.dims import broadcast
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    FLOATS,
    NUMBERS,
    check_broadcastable,
    check_dtype,
    check_rank,
    find_common_dtype,
    list_present,
    may_equal,
)


def _estimate_product(call: Call, outputs: Specs) -> int:
    shape = call.spec(0).static_shape
    inner = shape[0] if call.attributes.get("transA") else shape[-1]
    return 2 * outputs[0].size * inner


def _check_inner(a: TensorSpec, b: TensorSpec, left: Dim, right: Dim) -> None:
    if not may_equal(left, right):
        raise ShapeError(
            f"{a} times {b}: the inner lengths {left} and {right} differ",
            fix="transpose one of them, or correct its shape",
        )


@define(
    "MatMul", inputs="a b", cost=_estimate_product, traits=PRODUCT, float16=FOLLOWS, lacks=PRIMITIVE
)
def infer_matmul(call: Call) -> Sequence[TensorSpec]:
    """Infer the product of `call` by numpy's rules: vectors are rows on the left, else columns."""
    a, b = call.spec(0), call.spec(1)
    return (TensorSpec(find_common_dtype((a, b), NUMBERS), infer_product_shape(a, b)),)


def infer_product_shape(a: TensorSpec, b: TensorSpec) -> Shape | None:
    """Return the shape of `a` times `b` by numpy's rules, or None if a rank is unknown."""
    if 0 in (a.rank, b.rank):
        raise ShapeError(f"{a} times {b}: a scalar is not a matrix", fix="use Mul")
    if a.shape is None or b.shape is None:
        return None
    _check_inner(a, b, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast((a.shape[:-2], b.shape[:-2]))
    # Empty for a vector, which loses its axis.
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return (*batch, *rows, *columns)


@define(
    "Gemm",
    inputs="a b c?",
    attributes={
        "alpha": Attribute(Kind.FLOAT, 1.0),
        "beta": Attribute(Kind.FLOAT, 1.0),
        "transA": Attribute(Kind.BOOL, False),
        "transB": Attribute(Kind.BOOL, False),
    },
    cost=_estimate_product,
    traits=PRODUCT | FULLY_CONNECTED,
    float16=FOLLOWS,
)
def infer_gemm(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: alpha·A·B + beta·C on matrices; C broadcasts to the product."""
    dtype = find_common_dtype(list_present(call), NUMBERS)
    a, b = call.spec(0), call.spec(1)
    for spec in (a, b):
        if spec.rank not in (None, 2):
            raise ShapeError(f"{spec} is not a matrix", fix="use MatMul, or Flatten it")
    if a.shape is None or b.shape is None:
        return (TensorSpec(dtype, None),)
    rows, left = a.shape[::-1] if call.attributes["transA"] else a.shape
    right, columns = b.shape[::-1] if call.attributes["transB"] else b.shape
    _check_inner(a, b, left, right)
    if call.has(2):
        check_broadcastable(call.spec(2), (rows, columns), "C")
    return (TensorSpec(dtype, (rows, columns)),)


ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation with every axis of every input named by a number."""

    inputs: tuple[tuple[int, ...], ...]
    """One number for each axis of each input."""
    output: tuple[int, ...]
    """One number for each axis of the output."""


def parse_equation(text: str, ranks: Sequence[int]) -> Equation:
    """Return the equation in `text` for inputs of these `ranks`, or raise ShapeError."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(
            f"equation {text!r} has {len(terms)} terms for {len(ranks)} inputs",
            fix="write one term per input, with commas between",
        )
    counts = Counter(c for term in terms for c in _read_letters(term, text))
    letters = sorted(counts)
    width = _count_dots(terms, ranks, text)
    if not arrow:
        dots = ELLIPSIS if ELLIPSIS in left else ""
        # By numpy's rule: letters that occur once, in alphabetical order, after the axes of the
        # dots.
        right = dots + "".join(c for c in letters if counts[c] == 1)
    wanted = _read_letters(right, text)
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(letters):
        raise ShapeError(
            f"the output of {text!r} names an axis twice, or one that no input has",
            fix="name axes of the inputs, each once",
        )
    inputs = tuple(_number_axes(term, letters, width) for term in terms)
    for term, named, rank in zip(terms, inputs, ranks, strict=True):
        if len(named) != rank:
            raise ShapeError(
                f"term {term!r} of {text!r} does not name {rank} axes",
                fix="write a letter per axis, or '...' for those in the middle",
            )
    return Equation(inputs, _number_axes(right, letters, width))


def _count_dots(terms: Sequence[str], ranks: Sequence[int], text: str) -> int:
    """Return the number of axes that dots in `terms` stand for, given the `ranks` of the inputs."""
    widths = {
        rank - len(_read_letters(term, text))
        for term, rank in zip(terms, ranks, strict=True)
        if ELLIPSIS in term
    }
    if len(widths) > 1 or min(widths, default=0) < 0:
        raise ShapeError(
            f"the dots in {text!r} stand for different numbers of axes",
            fix="name more axes by letters, or reshape the inputs",
        )
    return max(widths, default=0)


def _number_axes(term: str, letters: Sequence[str], width: int) -> tuple[int, ...]:
    before, dots, after = term.partition(ELLIPSIS)
    middle = range(len(letters), len(letters) + width) if dots else ()
    return (*map(letters.index, before), *middle, *map(letters.index, after))


def _read_letters(term: str, text: str) -> str:
    letters = term.replace(ELLIPSIS, "", 1)
    if not (letters.isalpha() and letters.isascii()) and letters:
        raise ShapeError(
            f"{text!r} is not an equation",
            fix="write letters, commas, one '...' per term and '->': 'bij,bjk->bik'",
        )
    return letters


def _find_lengths(call: Call, equation: Equation) -> dict[int, Dim]:
    lengths: dict[int, Dim] = {}
    for index, axes in enumerate(equation.inputs):
        for axis, length in zip(axes, call.spec(index).shape or (), strict=True):
            # A length of 1 is repeated, as everywhere: the letter has the longest length that it
            # meets.
            (lengths[axis],) = broadcast(((lengths.get(axis, 1),), (length,)))
    return lengths


def _estimate_einsum(call: Call, outputs: Specs) -> int:
    # As if all at once: the order of contraction is chosen by devices.
    ranks = [len(call.spec(index).static_shape) for index in range(len(call.inputs))]
    lengths = _find_lengths(call, parse_equation(call.attributes["equation"], ranks))
    return 2 * math.prod(length for length in lengths.values() if isinstance(length, int))


@define(
    "Einsum",
    inputs="x+",
    attributes={"equation": Attribute(Kind.STRING)},
    cost=_estimate_einsum,
    traits=PRODUCT,
    float16=IN_SUMS,
    lacks=WRITTEN_OUT_ON_GPUS,
)
def infer_einsum(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: one axis for each letter of the output's term."""
    specs = list_present(call)
    dtype = find_common_dtype(specs, NUMBERS)
    ranks = [spec.rank for spec in specs if spec.rank is not None]
    if len(ranks) < len(specs):
        return (TensorSpec(dtype, None),)
    equation = parse_equation(call.attributes["equation"], ranks)
    lengths = _find_lengths(call, equation)
    return (TensorSpec(dtype, [lengths[axis] for axis in equation.output]),)


def _estimate_elimination(call: Call, outputs: Specs) -> int:
    # n³/3 products and as many sums, for Gaussian elimination.
    return 2 * call.spec(0).size * call.spec(0).static_shape[-1] // 3


@define(
    "Det", inputs="x", cost=_estimate_elimination, float16=IN_SUMS, lacks=PRIMITIVE | ARRAY_KERNEL
)
def infer_determinant(call: Call) -> Sequence[TensorSpec]:
    x = _check_square(call)
    return (TensorSpec(x.dtype, None if x.shape is None else x.shape[:-2]),)


def _check_square(call: Call) -> TensorSpec:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_rank(x, 2, "[..., n, n]")
    if x.shape is not None and not may_equal(x.shape[-2], x.shape[-1]):
        raise ShapeError(f"{x} is not a stack of square matrices", fix="slice or pad it")
    return x


def _estimate_decomposition(call: Call, outputs: Specs) -> int:
    # About 21 n³ operations, for singular values and vectors.
    return 21 * call.spec(0).size * call.spec(0).static_shape[-1]


@define(
    "Cofactors",
    inputs="x",
    cost=_estimate_decomposition,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_cofactors(call: Call) -> Sequence[TensorSpec]:
    return (_check_square(call),)
