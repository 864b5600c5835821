"""Initial values of variables: their spread, their seed, and what has no fans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from learning_oracles import on_cpu
from plait import learning
from plait.graph.values.tensor import Array

SHAPE = (300, 500)


@pytest.mark.parametrize(
    ("made", "number"),
    [
        (learning.zeros((2, 3)), 0),
        (learning.ones((2, 3)), 1),
        (learning.filled((2, 3), 0.25), 0.25),
    ],
)
def test_constants_are_computed_by_a_graph(made: pl.Graph, number: float) -> None:
    (name,) = made.outputs
    value = on_cpu(made, {})[name]
    assert value.dtype == np.float32
    assert value.tolist() == [[number] * 3] * 2


def test_a_graph_of_zeros_holds_no_zeros() -> None:
    made = learning.zeros((1 << 20,), "float64")
    assert sum(constant.nbytes for constant in made.constants.values()) == 8


@pytest.mark.parametrize(
    ("make", "variance"),
    [
        (learning.glorot_uniform, 2 / 800),
        (learning.glorot_normal, 2 / 800),
        (learning.he_uniform, 2 / 300),
        (learning.he_normal, 2 / 300),
    ],
)
def test_the_variance_follows_from_the_fans(make: Callable[..., Array], variance: float) -> None:
    value = make(SHAPE, 0)
    assert value.dtype == np.float32
    assert value.shape == SHAPE
    assert abs(value.mean()) < 5 * np.sqrt(variance / value.size)
    np.testing.assert_allclose(value.var(), variance, rtol=0.02)
    is_uniform = np.abs(value).max() <= np.sqrt(3 * variance) * (1 + 1e-6)
    assert is_uniform == ("uniform" in make.__name__)
    other = make(SHAPE, 0, fan=(8, 8))
    np.testing.assert_allclose(other, value * np.sqrt(2 / 16 / variance) * _he(make), rtol=1e-5)


def _he(make: Callable[..., Array]) -> float:
    return np.sqrt(2) if make.__name__.startswith("he") else 1.0


def test_one_seed_gives_the_same_numbers_and_a_generator_others_each_time() -> None:
    assert (learning.normal((9,), 2.0, 7) == learning.normal((9,), 2.0, 7)).all()
    random = np.random.default_rng(7)
    first = learning.normal((9,), 2.0, random)
    assert (first == learning.normal((9,), 2.0, 7)).all()
    assert (first != learning.normal((9,), 2.0, random)).all()


@pytest.mark.parametrize(
    ("shape", "fans"), [((3, 5), (3, 5)), ((16, 8, 3, 3), (72, 144)), ((4, 1, 5), (5, 20))]
)
def test_fans_of_matrices_and_convolutions(shape: Any, fans: Any) -> None:
    assert learning.fans(shape) == fans


@pytest.mark.parametrize("shape", [(), (3,), (3, 0)])
def test_a_vector_has_no_fans(shape: Any) -> None:
    with pytest.raises(pl.ShapeError, match="no fans"):
        learning.he_normal(shape, 0)
    assert learning.he_normal(shape, 0, fan=(2, 2)).shape == shape


@pytest.mark.parametrize("shape", [("n", 3), (-1,), (2.5,)])
def test_lengths_are_numbers(shape: Any) -> None:
    for make in (learning.zeros, lambda shape: learning.normal(shape, 1.0, 0)):
        with pytest.raises(pl.ShapeError, match="cannot have the shape"):
            make(shape)


def test_a_negative_spread_is_refused() -> None:
    with pytest.raises(pl.GraphError, match="deviation of random numbers is -1"):
        learning.normal((2,), -1, 0)
    with pytest.raises(pl.GraphError, match="limit of random numbers is nan"):
        learning.uniform((2,), float("nan"), 0)


def test_how_many_rows_weights_need_follows_from_the_shapes_of_inputs() -> None:
    """Row F11."""
    b = pl.GraphBuilder("lenet")
    images = b.input("images", "float32", ("batch", 3, 28, 28))
    kernels = np.ones((20, learning.features(b, images, axis=1), 5, 5), "float32")
    pooled = b.op("MaxPool", b.op("Conv", images, kernels), kernel_shape=[2, 2], strides=[2, 2])
    b.output("pooled", pooled)
    assert learning.features(b, b.op("Flatten", "pooled")) == 20 * 12 * 12
    assert learning.features(b, "pooled", axis=1) == 20


@pytest.mark.parametrize(("shape", "axis"), [(("n", "m"), -1), (("n", 3), 0), ((), -1)])
def test_a_length_that_is_not_known_is_no_number_of_rows(
    shape: tuple[int | str, ...], axis: int
) -> None:
    b = pl.GraphBuilder("open")
    b.input("x", "float32", shape)
    with pytest.raises(pl.ShapeError, match=f"'x'.* along axis {axis} is not known"):
        learning.features(b, "x", axis)


def test_an_axis_that_there_is_not_has_no_length() -> None:
    b = pl.GraphBuilder("flat")
    b.input("x", "float32", (2, 3))
    with pytest.raises(pl.ShapeError, match="axis 2 is outside a tensor of rank 2"):
        learning.features(b, "x", 2)
