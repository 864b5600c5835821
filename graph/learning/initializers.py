"""Initial values of variables: constants as graphs, random numbers as arrays, float32 by default.

Random numbers come from a `seed` or from a numpy generator, which continues from variable to
variable. The same seed gives the same numbers with the same version of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from ..building.builder import GraphBuilder
from ..core.ir import Graph
from ..values.dims import normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Array
from .parameters import check_not_below

Lengths = Sequence[int]
Seed = int | np.random.Generator


def filled(shape: Lengths, value: float, dtype: DTypeLike = "float32") -> Graph:
    """Return a graph that computes a tensor of `shape` and `dtype` filled with `value`."""
    b = GraphBuilder("filled")
    lengths = b.constant(np.array(_check_shape(shape), "int64"))
    b.output("value", b.op("ConstantOfShape", lengths, value=float(value), dtype=dtype))
    return b.build()


def zeros(shape: Lengths, dtype: DTypeLike = "float32") -> Graph:
    return filled(shape, 0, dtype)


def ones(shape: Lengths, dtype: DTypeLike = "float32") -> Graph:
    return filled(shape, 1, dtype)


def uniform(shape: Lengths, limit: float, seed: Seed, dtype: DTypeLike = "float32") -> Array:
    """Return random numbers from -`limit` to `limit`, of `shape` and `dtype`, drawn from `seed`."""
    check_not_below("the limit of random numbers", limit)
    random = np.random.default_rng(seed)
    return random.uniform(-limit, limit, _check_shape(shape)).astype(dtype)


def normal(shape: Lengths, deviation: float, seed: Seed, dtype: DTypeLike = "float32") -> Array:
    """Return normal random numbers of standard `deviation`, `shape` and `dtype`, from `seed`."""
    check_not_below("the deviation of random numbers", deviation)
    random = np.random.default_rng(seed)
    return random.normal(0.0, deviation, _check_shape(shape)).astype(dtype)


def glorot_uniform(
    shape: Lengths, seed: Seed, fan: tuple[int, int] | None = None, dtype: DTypeLike = "float32"
) -> Array:
    """Return uniform random numbers of `shape` and `dtype`, of variance 2 / (fan in + fan out).

    For activations that are nearly linear around 0, and for Softmax. They are drawn from `seed`;
    `fan` replaces `fans(shape)`. Source: Glorot and Bengio (2010), equation 16.
    """
    return uniform(shape, math.sqrt(6 / sum(fan or fans(shape))), seed, dtype)


def glorot_normal(
    shape: Lengths, seed: Seed, fan: tuple[int, int] | None = None, dtype: DTypeLike = "float32"
) -> Array:
    """Return normal random numbers of `shape` and `dtype`, of variance 2 / (fan in + fan out).

    They are drawn from `seed`; `fan` replaces `fans(shape)`. Source: Glorot and Bengio (2010),
    equation 12.
    """
    return normal(shape, math.sqrt(2 / sum(fan or fans(shape))), seed, dtype)


def he_uniform(
    shape: Lengths, seed: Seed, fan: tuple[int, int] | None = None, dtype: DTypeLike = "float32"
) -> Array:
    """Return uniform random numbers of `shape` and `dtype`, of variance 2 / fan in.

    `seed` and `fan` are those of `he_normal`.
    """
    return uniform(shape, math.sqrt(6 / (fan or fans(shape))[0]), seed, dtype)


def he_normal(
    shape: Lengths, seed: Seed, fan: tuple[int, int] | None = None, dtype: DTypeLike = "float32"
) -> Array:
    """Return normal random numbers of `shape` and `dtype`, of variance 2 / fan in.

    For weights before Relu, which halves the variance. They are drawn from `seed`; `fan` replaces
    `fans(shape)`. Source: He, Zhang, Ren and Sun (2015), equation 10.
    """
    return normal(shape, math.sqrt(2 / (fan or fans(shape))[0]), seed, dtype)


def fans(shape: Lengths) -> tuple[int, int]:
    """Return the numbers of inputs per output and of outputs per input of weights of `shape`.

    A matrix is (in, out), as for MatMul; more dimensions are the weights of a convolution:
    (out, in per group, *kernel).

    Raises
    ------
    ShapeError
        If there are fewer than two dimensions, or an empty one.
    """
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(
            f"weights of shape {tuple(shape)} have no fans",
            fix="give `fan=(in, out)`, or a shape of two dimensions or more that is not empty",
        )
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    kernel = math.prod(shape[2:])
    return int(shape[1]) * kernel, int(shape[0]) * kernel


def features(builder: GraphBuilder, tensor: str, axis: int = -1) -> int:
    """Return the length of `tensor` of `builder` along `axis`, by default the last.

    Lengths follow from those of the inputs, through Flatten, convolutions and pools; the batch may
    be a symbol.

    Raises
    ------
    ShapeError
        If the length is not known, or the axis does not exist.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("digits")
    >>> images = b.input("images", "float32", ("batch", 1, 8, 8))
    >>> pooled = b.op("MaxPool", images, kernel_shape=[2, 2], strides=[2, 2])
    >>> pl.learning.features(b, b.op("Flatten", pooled))
    16
    """
    spec = builder.spec(tensor)
    length = spec.shape[normalize_axis(axis, len(spec.shape))] if spec.shape else None
    if not isinstance(length, int):
        raise ShapeError(
            f"how long {tensor!r}, {spec}, is along axis {axis} is not known",
            at=builder.name,
            fix="declare inputs with numbers for all lengths that weights depend on",
        )
    return length


def _check_shape(shape: Lengths) -> tuple[int, ...]:
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
        raise ShapeError(
            f"a variable cannot have the shape {tuple(shape)}", fix="use fixed lengths only"
        )
    return tuple(map(int, shape))
