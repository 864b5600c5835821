"""Checks for authors of operators: each failure says who, what, wanted and got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.checks import Amount, Checks
from plait.graph.core.operator import Call, Operator, elements, register_operator
from plait.graph.values.tensor import Dim

pytestmark = pytest.mark.usefixtures("forget_operators")


@pytest.fixture(autouse=True)
def _an_operator(forget_operators: None) -> None:
    register_operator(Operator("checks.Op", "x w b? rest*", "y", {}, lambda call: (), elements))


def spec(*shape: Dim, dtype: str = "float32") -> pl.TensorSpec:
    return pl.TensorSpec(dtype, shape)


def checks(*inputs: pl.TensorSpec | None, **attributes: Any) -> Checks:
    """Return the checks of a call in which the second input is a constant."""
    values = tuple(np.zeros(1) if index == 1 else None for index in range(len(inputs)))
    return Checks(Call(inputs, values, attributes, n_outputs=1), "checks.Op")


X, W = spec(2, 3), spec(2, 3, dtype="int8")

HOLD: dict[str, Callable[[Checks], object]] = {
    "number of inputs": lambda c: c.inputs.equals(2).at_least(2).at_most(3).above(1).below(3),
    "number of outputs": lambda c: c.outputs.equals(1).differs(2),
    "number of attributes": lambda c: c.attributes.equals(5),
    "given": lambda c: c.input("x").given(),
    "absent": lambda c: c.input("b").absent(),
    "dtype": lambda c: c.input("x").dtype("float64", "float32"),
    "rank": lambda c: c.input("x").rank(1, 2),
    "size": lambda c: c.input("x").size.equals(6),
    "shape of": lambda c: c.input("x").shape_of(c.input("w")),
    "constant": lambda c: c.input("w").constant(),
    "computed": lambda c: c.input("x").computed(),
    "attribute given": lambda c: c.attribute("a").given(),
    "attribute": lambda c: c.attribute("a").at_least(1.5).below(2),
    "elements": lambda c: c.attribute("many").above(0).at_most(3).differs(5),
    "length": lambda c: c.attribute("many").length.equals(3),
    "kind": lambda c: c.attribute("many").kind("array of numbers"),
    "as an integer": lambda c: c.attribute("a").int32.equals(1),
    "as a float": lambda c: c.attribute("huge").float32.below(1e39),
    "as integers": lambda c: c.attribute("many").int32.at_most(3),
    "absent attributes pass": lambda c: c.attribute("nothing").above(3),
    "absent inputs pass": lambda c: c.input("b").dtype("int8").rank(3).shape_of(c.input("x")),
    "that": lambda c: c.that(True, "x", "y", "z"),
}

FAIL: dict[str, tuple[Callable[[Checks], object], str, str, str]] = {
    "inputs": (lambda c: c.inputs.at_least(3), "number of inputs", "≥ 3", "2"),
    "outputs": (lambda c: c.outputs.above(1), "number of outputs", "> 1", "1"),
    "attributes": (lambda c: c.attributes.below(5), "number of attributes", "< 5", "5"),
    "given": (lambda c: c.input("b").given(), "input 'b'", "given", "nothing"),
    "absent": (lambda c: c.input("w").absent(), "input 'w'", "left out", "int8[2, 3]"),
    "dtype": (
        lambda c: c.input("w").dtype("float32", "float64"),
        "dtype of input 'w'",
        "float32 or float64",
        "int8",
    ),
    "rank": (lambda c: c.input("x").rank(1, 3), "rank of input 'x'", "1 or 3", "2"),
    "size": (lambda c: c.input("x").size.below(6), "size of input 'x'", "< 6", "6"),
    "dtype of": (
        lambda c: c.input("x").dtype_of(c.input("w")),
        "dtype of input 'x'",
        "that of input 'w', int8",
        "float32",
    ),
    "constant": (
        lambda c: c.input("x").constant(),
        "input 'x'",
        "a constant",
        "what is computed or fed",
    ),
    "computed": (lambda c: c.input("w").computed(), "input 'w'", "computed or fed", "a constant"),
    "attribute given": (
        lambda c: c.attribute("nothing").given(),
        "attribute 'nothing'",
        "given",
        "nothing",
    ),
    "equals": (lambda c: c.attribute("a").equals(2), "attribute 'a'", "2", "1.5"),
    "differs": (lambda c: c.attribute("a").differs(1.5), "attribute 'a'", "≠ 1.5", "1.5"),
    "at most": (lambda c: c.attribute("a").at_most(1), "attribute 'a'", "≤ 1", "1.5"),
    "element": (
        lambda c: c.attribute("many").below(3),
        "attribute 'many', element 2,",
        "< 3",
        "3",
    ),
    "length": (
        lambda c: c.attribute("many").length.at_most(2),
        "length of attribute 'many'",
        "≤ 2",
        "3",
    ),
    "no length": (lambda c: c.attribute("a").length, "attribute 'a'", "a sequence", "1.5"),
    "kind": (
        lambda c: c.attribute("mode").kind("number"),
        "attribute 'mode'",
        "of kind 'number'",
        "'string'",
    ),
    "as an integer": (
        lambda c: c.attribute("huge").int32.below(7),
        "attribute 'huge', as a 32-bit integer,",
        "< 7",
        "2147483647",
    ),
    "that": (lambda c: c.that(False, "sum", "even", 3), "sum", "even", "3"),
}
ATTRIBUTES: dict[str, Any] = {
    "a": 1.5,
    "many": (1, 2, 3),
    "mode": "same",
    "huge": 1e40,
    "nothing": None,
}


@pytest.mark.parametrize("name", HOLD)
def test_what_holds_passes(name: str) -> None:
    HOLD[name](checks(X, W, **ATTRIBUTES))


@pytest.mark.parametrize("name", FAIL)
def test_what_does_not_hold_names_operator_argument_wanted_and_got(name: str) -> None:
    check, argument, wanted, got = FAIL[name]
    with pytest.raises(pl.OperatorError) as info:
        check(checks(X, W, **ATTRIBUTES))
    assert info.value.what == f"{argument} of checks.Op must be {wanted}, got {got}"
    assert info.value.fix == f"make it {wanted}"


def test_shapes_that_differ_are_both_told() -> None:
    found = checks(spec(2, 3), spec(2, 4))
    with pytest.raises(pl.OperatorError, match=r"that of input 'w', float32\[2, 4\], got .*\[2, 3"):
        found.input("x").shape_of(found.input("w"))


@pytest.mark.parametrize("shape", [(2, "n"), ("m", 3)])
def test_lengths_that_are_not_known_yet_pass(shape: tuple[Dim, ...]) -> None:
    found = checks(spec(2, 3), spec(*shape))
    found.input("x").shape_of(found.input("w"))
    found.input("w").size.equals(1)


def test_a_rank_that_is_not_known_yet_passes() -> None:
    found = checks(pl.TensorSpec("float32", None), spec(2))
    found.input("x").rank(3).shape_of(found.input("w"))


def test_ranks_that_differ_are_shapes_that_differ() -> None:
    found = checks(spec("n"), spec("n", 1))
    with pytest.raises(pl.OperatorError, match="shape of input 'x'"):
        found.input("x").shape_of(found.input("w"))


def test_variadic_inputs_are_told_by_number() -> None:
    found = checks(X, X, None, spec(1), spec(1, 1))
    found.input("rest").rank(1)
    with pytest.raises(pl.OperatorError, match="rank of input 'rest'"):
        found.input("rest", 1).rank(1)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "equals": lambda a, b: a == b,
    "differs": lambda a, b: a != b,
    "above": lambda a, b: a > b,
    "at_least": lambda a, b: a >= b,
    "below": lambda a, b: a < b,
    "at_most": lambda a, b: a <= b,
}


@given(st.sampled_from(sorted(COMPARISONS)), st.integers(-2, 2), st.integers(-2, 2))
def test_comparisons_are_what_they_are_called(name: str, a: int, b: int) -> None:
    check = Checks(Call((), (), {}), "Relu")
    compare = getattr(Amount(check, "amount", a), name)
    if COMPARISONS[name](a, b):
        compare(b)
    else:
        with pytest.raises(pl.OperatorError):
            compare(b)
