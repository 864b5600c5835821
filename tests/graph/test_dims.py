from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plait.graph.values import dims
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, Shape

Lengths: TypeAlias = dict[str, int]
Meant: TypeAlias = Callable[[Lengths], int]
"""What a dimension stands for, computed without looking at its text."""

SYMBOLS = ("h", "w", "batch")
LENGTHS = st.fixed_dictionaries({symbol: st.integers(0, 50) for symbol in SYMBOLS})


def _number(value: int) -> tuple[Dim, Meant]:
    return value, lambda lengths: value


def _symbol(name: str) -> tuple[Dim, Meant]:
    return name, lambda lengths: lengths[name]


def _take_larger(a: Dim, b: Dim) -> Dim:
    assume(isinstance(a, str) and isinstance(b, str))
    return dims.find_largest([str(a), str(b)])


def _grow(inner: st.SearchStrategy[tuple[Dim, Meant]]) -> st.SearchStrategy[tuple[Dim, Meant]]:
    def binary(
        make: Callable[[Dim, Dim], Dim], compute: Callable[[int, int], int]
    ) -> st.SearchStrategy[tuple[Dim, Meant]]:
        return st.builds(
            lambda a, b: (make(a[0], b[0]), lambda env: compute(a[1](env), b[1](env))),
            inner,
            inner,
        )

    def divided(
        make: Callable[[Dim, int], Dim], compute: Callable[[int, int], int]
    ) -> st.SearchStrategy[tuple[Dim, Meant]]:
        return st.builds(
            lambda a, by: (make(a[0], by), lambda env: compute(a[1](env), by)),
            inner,
            st.integers(1, 5),
        )

    return (
        binary(dims.add, lambda a, b: a + b)
        | binary(dims.mul, lambda a, b: a * b)
        | binary(_take_larger, max)
        | divided(dims.floordiv, lambda a, by: a // by)
        | divided(dims.ceildiv, lambda a, by: -(-a // by))
    )


EXPRESSIONS = st.recursive(
    st.builds(_number, st.integers(-4, 9)) | st.builds(_symbol, st.sampled_from(SYMBOLS)),
    _grow,
    max_leaves=6,
)


def value_of(dim: Dim, lengths: Lengths) -> int:
    if isinstance(dim, int):
        return dim
    return int(eval(dim, {"ceil": math.ceil, "max": max}, dict(lengths)))


@given(EXPRESSIONS, LENGTHS)
def test_a_dimension_s_text_means_what_was_computed(
    expression: tuple[Dim, Meant], lengths: Lengths
) -> None:
    dim, meant = expression
    assert value_of(dim, lengths) == meant(lengths)


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _computed(
    inner: st.SearchStrategy[tuple[Any, Meant]],
) -> st.SearchStrategy[tuple[Any, Meant]]:
    def combined(name: str, a: tuple[Any, Meant], b: tuple[Any, Meant]) -> tuple[Any, Meant]:
        compute = OPERATORS[name]
        assume(name not in ("//", "%") or b[0] != 0)
        return compute(a[0], b[0]), lambda lengths: int(compute(a[1](lengths), b[1](lengths)))

    def negated(a: tuple[Any, Meant]) -> tuple[Any, Meant]:
        return -a[0], lambda lengths: -a[1](lengths)

    return st.builds(combined, st.sampled_from(sorted(OPERATORS)), inner, inner) | st.builds(
        negated, inner
    )


COMPUTED = st.recursive(
    st.builds(_number, st.integers(-4, 9))
    | st.sampled_from(SYMBOLS).map(lambda name: (dims.Symbol(name), _symbol(name)[1])),
    _computed,
    max_leaves=6,
)


@given(COMPUTED, LENGTHS)
def test_a_rule_s_arithmetic_on_symbols_means_what_it_would_on_numbers(
    computed: tuple[Any, Meant], lengths: Lengths
) -> None:
    dim, meant = computed
    try:
        wanted = meant(lengths)
    except ZeroDivisionError:
        return
    assert value_of(dim, lengths) == wanted


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [3, "m", dims.Symbol("m")])
def test_symbols_are_not_compared_as_text(compare: Any, other: object) -> None:
    with pytest.raises(TypeError, match="not a number yet"):
        compare(dims.Symbol("n"), other)
    with pytest.raises(TypeError, match="not a number yet"):
        compare(other, dims.Symbol("n"))


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
def test_arithmetic_on_numbers_gives_numbers(a: int, b: int, by: int) -> None:
    assert dims.add(a, b) == a + b
    assert dims.mul(a, b) == a * b
    assert dims.floordiv(a, by) == math.floor(a / by)
    assert dims.ceildiv(a, by) == math.ceil(a / by)


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (dims.add("h", 1), "(h+1)"),
        (dims.add("h", -1), "(h-1)"),
        (dims.add(0, "h"), "h"),
        (dims.add("h", 0), "h"),
        (dims.mul("h", 1), "h"),
        (dims.mul(1, "h"), "h"),
        (dims.mul("h", 0), 0),
        (dims.mul(2, "h"), "2*h"),
        (dims.floordiv("h", 1), "h"),
        (dims.ceildiv("h", 1), "h"),
        (dims.floordiv(dims.add("h", 1), 2), "(h+1)//2"),
        (dims.ceildiv("h", 2), "ceil(h/2)"),
    ],
)
def test_a_symbolic_dimension_reads_as_short_as_it_can(dim: Dim, text: Dim) -> None:
    assert dim == text


def test_thrice_a_half_is_not_the_half_of_thrice() -> None:
    half = dims.floordiv("h", 2)
    assert dims.mul(3, half) != dims.floordiv(dims.mul(3, "h"), 2)


@given(st.lists(st.integers(0, 9)))
def test_the_product_of_numbers_is_theirs(lengths: list[int]) -> None:
    assert dims.multiply_all(lengths) == math.prod(lengths)


def test_the_product_of_symbols_names_them_all() -> None:
    assert dims.multiply_all(("batch", 1, 3, "h")) == "batch*3*h"


SHAPES = st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4).map(tuple), max_size=4)


@given(SHAPES)
def test_numbers_broadcast_as_in_numpy(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError):
            dims.broadcast(shapes)
    else:
        assert dims.broadcast(shapes) == expected


@given(SHAPES.filter(bool), st.data())
def test_a_symbol_broadcasts_to_what_its_length_would(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """Lengths that plan-time symbols turn out to be: any that broadcast, and no zeros."""
    assume(all(0 not in shape for shape in shapes))
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        assume(False)
    hidden: Lengths = {}
    symbolic: list[Shape] = []
    for row, shape in enumerate(shapes):
        dims_here: list[Dim] = list(shape)
        for column in range(len(shape)):
            if data.draw(st.booleans()):
                name = f"s{row}_{column}"
                hidden[name], dims_here[column] = shape[column], name
        symbolic.append(tuple(dims_here))
    found = dims.broadcast(symbolic)
    assert tuple(value_of(dim, hidden) for dim in found) == expected


def test_a_number_wins_over_a_symbol() -> None:
    assert dims.broadcast([("batch", 3), (4, 1)]) == (4, 3)


def test_the_same_symbol_stays_itself() -> None:
    assert dims.broadcast([("batch", 3), ("batch", 1)]) == ("batch", 3)


def test_nothing_broadcasts_to_a_scalar() -> None:
    assert dims.broadcast([]) == ()


def test_shapes_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(ShapeError) as caught:
        dims.broadcast([(2, 3), ("n", 4)])
    assert str(caught.value) == (
        "shapes [2, 3] and ['n', 4] do not broadcast together\n"
        "  fix: make the lengths equal, or 1 where one is to be repeated"
    )


@given(st.integers(1, 6), st.integers(-9, 9))
def test_an_axis_counts_from_either_end(rank: int, axis: int) -> None:
    if axis in range(-rank, rank):
        assert dims.normalize_axis(axis, rank) == range(rank)[axis]
    else:
        with pytest.raises(ShapeError):
            dims.normalize_axis(axis, rank)


def test_an_axis_outside_the_tensor_is_named() -> None:
    with pytest.raises(ShapeError) as caught:
        dims.normalize_axis(3, 2, "split axis")
    assert str(caught.value) == (
        "split axis 3 is outside a tensor of rank 2\n  fix: use a value in [-2, 1]"
    )


def test_axes_keep_their_order() -> None:
    assert dims.normalize_axes((-1, 0), 3) == (2, 0)


def test_one_dimension_is_not_named_twice() -> None:
    with pytest.raises(ShapeError) as caught:
        dims.normalize_axes((1, -1), 2)
    assert str(caught.value) == "axes [1, 1] name a dimension twice\n  fix: name each once"


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (dims.add(dims.add("n", 1), -1), "n"),
        (dims.add("n", "n"), "2*n"),
        (dims.add(dims.add("n", 3), dims.add("m", 4)), "((n+m)+7)"),
        (dims.floordiv(dims.add(dims.floordiv(dims.add("n", 1), 2), 1), 2), "(n+3)//4"),
        (dims.floordiv(dims.mul("n", 6), 3), "n*2"),
        (dims.mul(dims.mul("n", 2), 4), "n*8"),
        (dims.mul(2, dims.floordiv("n", 2)), "2*(n//2)"),
        (dims.find_largest(["max(b,a)", "c", "a"]), "max(a,b,c)"),
        (dims.find_largest(["f(a,b)", "max(c,g(d,e))"]), "max(c,f(a,b),g(d,e))"),
        (dims.mul(dims.find_largest(["a", "b"]), 2), "max(a*2,b*2)"),
        (dims.find_largest(["(n+3)//4", "(n+7)//8*2", "(n+31)//32*8"]), "(n+31)//32*8"),
        (dims.find_largest(["n//4", "(n+7)//8*2"]), "max((n+7)//8*2,n//4)"),
        (dims.add("a)+(b", 1), "(a)+(b+1)"),
        (dims.add(dims.add("a)+(b", 1), 1), "((a)+(b+1)+1)"),
    ],
)
def test_texts_are_short_and_alike_for_what_is_the_same(dim: Dim, text: str) -> None:
    assert dim == text


@pytest.mark.parametrize("dim", [
    "t(", "t//0", "ceil(t/0)", "(t,1)", "t(2)", "max()", "t**9", "t<<9", "t.real", "t+u", "True",
    "(" * 999 + "t", "+".join("t" * 9999), "9" * 5000 + "*t", "exit()", "[t]", "max(*t)", "",
])  # fmt: skip
def test_names_that_look_like_arithmetic_are_no_lengths(dim: str) -> None:
    assert dims.evaluate_dim(dim, {"t": 5}) is None


@given(st.data(), st.integers(0, 50))
def test_lengths_in_texts_are_those_of_numbers(data: st.DataObject, length: int) -> None:
    text, number = dims.add("t-1", 0), length
    for _ in range(data.draw(st.integers(0, 6))):
        operation = data.draw(st.sampled_from([dims.add, dims.mul, dims.floordiv, dims.ceildiv]))
        by = data.draw(st.integers(1, 5))
        text, number = operation(text, by), operation(number, by)  # type: ignore[assignment]
    assert dims.evaluate_dim(text, {"t": 7, "t-1": length}) == number
