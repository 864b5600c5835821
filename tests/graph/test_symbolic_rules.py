"""Shape rules of Python functions, at lengths that are symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.functions.python import operator
from plait.graph.values.dims import UNKNOWN
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Array, Dim, TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")


def one_input(shape: tuple[Dim, ...]) -> GraphBuilder:
    b = GraphBuilder("g")
    b.input("x", "float32", shape)
    return b


def spec_of_output(b: GraphBuilder, tensor: str) -> TensorSpec:
    b.output("y", tensor)
    return b.build().tensors["y"]


@pytest.mark.parametrize(
    ("length", "symbolic"),
    [
        (lambda n: n * 2, "n*2"),
        (lambda n: n + 1, "(n+1)"),
        (lambda n: (n - 3) // 2 + 1, "(n-1)//2"),
        (lambda n: -(-n // 4) * 4, "-(-(n)//4)*4"),
        (lambda n: n - n % 4, "(n-(n%(4)))"),
        (lambda n: n, "n"),
    ],
)
def test_a_callable_declaration_computes_with_lengths_that_are_not_known(
    length: Any, symbolic: str
) -> None:
    @operator(lambda x: TensorSpec("float32", (length(x.shape[0]),)), name="test.f")
    def f(x: Array) -> Array:
        return np.ones(length(len(x)), np.float32)

    b = one_input(("n",))
    spec = spec_of_output(b, b.call(f, "x"))
    assert spec == TensorSpec("float32", (symbolic,))
    assert not spec.is_static
    assert {type(dim) for dim in spec.shape or ()} == {str}
    b = one_input((9,))
    assert spec_of_output(b, b.call(f, "x")).static_shape == (length(9),)


@pytest.mark.parametrize("rule", [lambda x: x, lambda x: [x]])
def test_a_declaration_that_returns_its_input_has_symbols_that_are_plain_text(rule: Any) -> None:
    @operator(rule, name="test.f")
    def f(x: Array) -> Array:
        return x

    b = one_input(("n", 3))
    spec = spec_of_output(b, b.call(f, "x"))
    assert not spec.is_static
    assert type((spec.shape or ())[0]) is str


def test_a_class_computes_with_lengths_that_are_not_known() -> None:
    @operator(name="test.f")
    class Halves:
        def prepare(self, call: Any, check: Any) -> Any:
            (x,) = call.inputs
            assert not x.is_static
            return TensorSpec(x.dtype, (x.shape[0] // 2,))

        def run(self, x: Array) -> Array:
            return x[: len(x) // 2]

    b = one_input(("n",))
    assert spec_of_output(b, b.call(Halves, "x")) == TensorSpec("float32", ("n//2",))


@pytest.mark.parametrize("length", [lambda n: max(n, 4), lambda n: int(n / 2), lambda n: [0] * n])
def test_a_declaration_that_needs_numbers_is_told_what_to_return(length: Any) -> None:
    @operator(lambda x: TensorSpec("float32", (length(x.shape[0]),)), name="test.f")
    def f(x: Array) -> Array:
        return x

    with pytest.raises(ShapeError, match=r"test\.f cannot be understood") as caught:
        one_input(("n",)).call(f, "x")
    assert "plait.operators.UNKNOWN" in (caught.value.fix or "")


def test_what_a_declaration_leaves_unknown_is_inferred_from_numbers() -> None:
    def told(x: Any) -> TensorSpec:
        n = x.shape[0]
        return TensorSpec(x.dtype, (max(n, 4) if isinstance(n, int) else UNKNOWN,))

    @operator(told, name="test.f")
    def f(x: Array) -> Array:
        return np.resize(x, max(len(x), 4))

    b = one_input(("n",))
    b.output("y", b.call(f, "x"))
    found = pl.run(b.build(), {"x": np.ones(2, np.float32)})
    assert found["y"].shape == (4,)
