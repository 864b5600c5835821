"""Activations written out in arithmetic become one node that gives the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.fuse_activation import fuse_activation
from plait.graph.values.tensor import Array

Formula = Callable[[pl.GraphBuilder, str], str]


def _number(value: float) -> np.float32:
    return np.float32(value)


def _six(b: pl.GraphBuilder, x: str) -> str:
    made: str = b.op("Clip", b.op("Add", _number(3), x), _number(0), _number(6))
    return made


def _erf(b: pl.GraphBuilder, x: str) -> str:
    made: str = b.op("Add", b.op("Erf", b.op("Div", x, _number(math.sqrt(2)))), _number(1))
    return made


def _erf_of_product(b: pl.GraphBuilder, x: str) -> str:
    made: str = b.op("Add", _number(1), b.op("Erf", b.op("Mul", x, _number(math.sqrt(0.5)))))
    return made


def _by_tanh(inner: Formula) -> Formula:
    """Return the formula x / 2 · (1 + tanh of what another formula makes of x)."""

    def formula(b: pl.GraphBuilder, x: str) -> str:
        factor = b.op("Add", b.op("Tanh", inner(b, x)), _number(1))
        made: str = b.op("Mul", b.op("Mul", x, _number(0.5)), factor)
        return made

    return formula


def _with_cube(cube: Formula) -> Formula:
    """Return the formula of Gelu by tanh, its cubic term by another formula."""
    root = _number(math.sqrt(2 / math.pi))
    return _by_tanh(lambda b, x: b.op("Mul", b.op("Add", x, cube(b, x)), root))


def _drawn_out(square: Formula) -> Formula:
    """Return the formula of Gelu by tanh, x drawn out of the sum."""
    root = _number(math.sqrt(2 / math.pi))
    return _by_tanh(
        lambda b, x: b.op("Mul", b.op("Mul", x, root), b.op("Add", _number(1), square(b, x)))
    )


CUBIC = _number(0.044715)
FORMULAS: Mapping[str, tuple[str, Formula]] = {
    "product, then sixth": (
        "HardSwish", lambda b, x: b.op("Div", b.op("Mul", x, _six(b, x)), _number(6))),
    "product, then times a sixth": (
        "HardSwish", lambda b, x: b.op("Mul", _number(1 / 6), b.op("Mul", _six(b, x), x))),
    "sixth, then product": (
        "HardSwish", lambda b, x: b.op("Mul", x, b.op("Div", _six(b, x), _number(6)))),
    "times a sixth, then product": (
        "HardSwish", lambda b, x: b.op("Mul", b.op("Mul", _six(b, x), _number(1 / 6)), x)),
    "hard sigmoid": (
        "HardSwish",
        lambda b, x: b.op("Mul", b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), x)),
    "sigmoid": ("Swish", lambda b, x: b.op("Mul", x, b.op("Sigmoid", x))),
    "half at last": (
        "Gelu", lambda b, x: b.op("Mul", b.op("Mul", x, _erf(b, x)), _number(0.5))),
    "half first": (
        "Gelu", lambda b, x: b.op("Mul", b.op("Mul", x, _number(0.5)), _erf(b, x))),
    "half of the factor": (
        "Gelu", lambda b, x: b.op("Mul", x, b.op("Mul", _number(0.5), _erf_of_product(b, x)))),
    "cube as a power": (
        "Gelu", _with_cube(lambda b, x: b.op("Mul", b.op("Pow", x, _number(3)), CUBIC))),
    "cube as products": (
        "Gelu",
        _with_cube(lambda b, x: b.op("Mul", CUBIC, b.op("Mul", x, b.op("Mul", x, x))))),
    "cube, its factor first": (
        "Gelu",
        _with_cube(lambda b, x: b.op("Mul", b.op("Mul", b.op("Mul", x, CUBIC), x), x))),
    "cube, its factor in the middle": (
        "Gelu", _with_cube(lambda b, x: b.op("Mul", x, b.op("Mul", b.op("Mul", x, x), CUBIC)))),
    "cube of a factor and a square": (
        "Gelu", _with_cube(lambda b, x: b.op("Mul", b.op("Mul", x, CUBIC), b.op("Mul", x, x)))),
    "drawn out": (
        "Gelu", _drawn_out(lambda b, x: b.op("Mul", b.op("Mul", CUBIC, x), x))),
}  # fmt: skip

UNLIKE: Mapping[str, Formula] = {
    "cube of another": _with_cube(
        lambda b, x: b.op("Mul", CUBIC, b.op("Mul", x, b.op("Mul", x, b.op("Neg", x))))
    ),
    "fourth power": _with_cube(
        lambda b, x: b.op("Mul", CUBIC, b.op("Mul", b.op("Mul", x, x), b.op("Mul", x, x)))
    ),
    "another bound": lambda b, x: b.op(
        "Div",
        b.op("Mul", x, b.op("Clip", b.op("Add", x, _number(3)), _number(0), _number(5))),
        _number(6),
    ),
    "another slope": lambda b, x: b.op("Mul", b.op("HardSigmoid", x, alpha=0.2, beta=0.5), x),
    "sigmoid of another": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Neg", x))),
    "another divisor": lambda b, x: b.op("Div", b.op("Mul", x, _six(b, x)), _number(7)),
}


def built(formula: Formula, dtype: str = "float32") -> Graph:
    b = pl.GraphBuilder("formula")
    b.output("y", b.op("Neg", formula(b, b.op("Abs", b.input("x", dtype, (5, 40))))))
    return b.build()


def run(graph: Graph) -> Array:
    x = np.linspace(-8, 8, 200, dtype=np.float32).reshape(5, 40)
    result: Array = pl.run(graph, {"x": x}, devices=["cpu"])["y"]
    return result


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_becomes_one_node(name: str) -> None:
    op, formula = FORMULAS[name]
    graph = built(formula)
    fused = check(fuse_activation(graph))
    assert [node.op for node in fused.nodes] == ["Abs", op, "Neg"]
    np.testing.assert_allclose(run(fused), run(graph), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNLIKE)
def test_other_formulas_stay(name: str) -> None:
    graph = built(UNLIKE[name])
    assert fuse_activation(graph) is graph


def test_a_step_that_is_read_elsewhere_stays() -> None:
    b = pl.GraphBuilder("shared")
    x = b.input("x", "float32", (3,))
    gate = b.op("Sigmoid", x)
    b.output("y", b.op("Add", b.op("Mul", x, gate), b.op("Neg", gate)))
    graph = b.build()
    assert fuse_activation(graph) is graph


def test_a_step_that_is_fetched_stays() -> None:
    b = pl.GraphBuilder("fetched")
    x = b.input("x", "float32", (3,))
    gate = b.op("Sigmoid", x)
    b.output("gate", gate)
    b.output("y", b.op("Mul", x, gate))
    graph = b.build()
    assert fuse_activation(graph) is graph


def test_an_activation_may_be_an_output() -> None:
    b = pl.GraphBuilder("output")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Mul", x, b.op("Sigmoid", x)))
    fused = fuse_activation(b.build())
    assert [node.op for node in fused.nodes] == ["Swish"]
    assert fused.outputs == ("y",)


def test_two_activations_in_a_row_become_two_nodes() -> None:
    b = pl.GraphBuilder("row")
    x = b.input("x", "float32", (3,))
    for _ in range(2):
        x = b.op("Mul", b.op("Sigmoid", x), x)
    b.output("y", x)
    assert [node.op for node in fuse_activation(b.build()).nodes] == ["Swish", "Swish"]
