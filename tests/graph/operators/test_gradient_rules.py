"""Shape rules of the operators that gradients are made of."""

from __future__ import annotations

from typing import Any

import plait as pl
import pytest


def weights_gradient(x: Any, dy: Any, **attributes: Any) -> pl.TensorSpec:
    b = pl.GraphBuilder("g")
    names = [b.input("x", "float32", x), b.input("dy", "float32", dy)]
    return b.spec(b.op("ConvWeightsGradient", *names, **attributes))


def pool_gradient(dy: Any, shape: Any, indices: str = "int64", **attributes: Any) -> pl.TensorSpec:
    b = pl.GraphBuilder("g")
    names = [b.input("dy", "float32", dy), b.input("indices", indices, dy)]
    names.append(b.constant(shape) if isinstance(shape, list) else b.input("s", "int64", (shape,)))
    return b.spec(b.op("MaxPoolGradient", *names, **attributes))


def test_a_gradient_of_weights_has_their_shape() -> None:
    made = weights_gradient(("n", 6, "h", "w"), ("n", 4, "a", "b"), kernel_shape=[3, 2], group=2)
    assert made == pl.TensorSpec("float32", (4, 3, 3, 2))


@pytest.mark.parametrize(
    ("x", "dy", "attributes", "message"),
    [
        ((2, 3, 5), (2, 4, 3, 3), {"kernel_shape": [3, 3]}, "does not have 2 spatial dimensions"),
        ((2, 3, 5), (1, 4, 3), {"kernel_shape": [3]}, "are not of one batch"),
        ((2, 3, 5), (2, 4, 3), {"kernel_shape": [3], "group": 2}, "do not divide into 2 groups"),
        ((2, 3, 5), (2, 4, 3), {"kernel_shape": [9]}, "does not fit"),
    ],
)
def test_a_gradient_of_weights_needs_what_conv_was_given(
    x: Any, dy: Any, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(pl.ShapeError, match=message):
        weights_gradient(x, dy, **attributes)


def test_a_gradient_of_maxima_has_the_shape_given() -> None:
    made = pool_gradient((2, 3, 4), [2, 3, 8], kernel_shape=[2], strides=[2])
    assert made == pl.TensorSpec("float32", (2, 3, 8))
    assert pool_gradient((2, 3, 4), "r", kernel_shape=[2]).rank == 3


@pytest.mark.parametrize(
    ("dy", "shape", "indices", "message"),
    [
        ((2, 3, 4), [2, 3, 8], "int32", "indices must be int64"),
        ((2, 3, 4), [2, 3, 8, 8], "int64", "not the shape of what was pooled"),
        ((2, 3, 4), [2, 3, 9], "int64", "has windows of shape"),
    ],
)
def test_a_gradient_of_maxima_needs_what_max_pool_returned(
    dy: Any, shape: Any, indices: str, message: str
) -> None:
    with pytest.raises(pl.ShapeError, match=message):
        pool_gradient(dy, shape, indices, kernel_shape=[2])
