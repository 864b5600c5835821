"""Layers: weights that fit the shape of the input, and the nodes that compute with them.

Each is a function of a builder's tensor; its variables are named after the layer. Weights are
random numbers from a seed, or from a generator that continues from layer to layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..building.named_tensor import Tensor
from ..values.errors import ShapeError
from ..values.tensor import Array
from .initializers import Seed, features, glorot_uniform, he_normal, ones, zeros


def dense(x: Tensor, units: int, name: str, seed: Seed) -> Tensor:
    """Return `x` · w + b along the last axis, which then has the length `units`.

    Parameters
    ----------
    x : Tensor
        Floats of shape (..., n).
    name : str
        The layer's; its variables are ``name/w``, (n, units), and ``name/b``, (units,).
    seed : int or numpy.random.Generator
        The source of its weights, by `he_normal`.

    Raises
    ------
    ShapeError
        If the length of the last axis is not known.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("two layers")
    >>> x = b.input("x", "float32", ("batch", 64))
    >>> hidden = pl.learning.dense(x, 32, "hidden", seed=0).relu()
    >>> pl.learning.dense(hidden, 10, "scores", seed=1).shape
    ('batch', 10)
    """
    shape = (features(x.builder, x), units)
    return _apply_affine(x, he_normal(shape, seed, dtype=x.dtype), name)


def conv(
    x: Tensor, channels: int, kernel: int | Sequence[int], name: str, seed: Seed, stride: int = 1
) -> Tensor:
    """Return a convolution of `x`, padded so that each axis gets 1 / `stride` of its length.

    Parameters
    ----------
    x : Tensor
        Floats of shape (batch, channels, *image).
    channels : int
        The number of output channels.
    kernel : int or sequence of int
        Its length along each axis of the image, or along all.
    name : str
        The layer's; its variables are ``name/w``, (channels, in, *kernel), and ``name/b``.
    seed : int or numpy.random.Generator
        The source of its weights, by `he_normal`.

    Raises
    ------
    ShapeError
        If the number of input channels is not known.
    """
    b, axes = x.builder, x.ndim - 2
    lengths = (kernel,) * axes if isinstance(kernel, int) else tuple(kernel)
    shape = (channels, features(b, x, axis=1), *lengths)
    w = b.variable(f"{name}/w", he_normal(shape, seed, dtype=x.dtype))
    bias = b.variable(f"{name}/b", zeros((channels,), x.dtype))
    return x.conv(w, bias, auto_pad="SAME_UPPER", strides=[stride] * axes, name=name)


def norm(x: Tensor, name: str, epsilon: float = 1e-5) -> Tensor:
    """Return `x` with mean 0 and variance 1 along its last axis, scaled and shifted.

    `epsilon` is added to the variance. The variables are ``name/scale``, initially ones, and
    ``name/b``, zeros, both as long as that axis. Source: Ba, Kiros and Hinton (2016).

    Raises
    ------
    ShapeError
        If the length of the last axis is not known.
    """
    b, shape = x.builder, (features(x.builder, x),)
    scale = b.variable(f"{name}/scale", ones(shape, x.dtype))
    bias = b.variable(f"{name}/b", zeros(shape, x.dtype))
    return x.layer_normalization(scale, bias, epsilon=epsilon, name=name)


def attention(x: Tensor, heads: int, name: str, seed: Seed, causal: bool = False) -> Tensor:
    """Return the attention of each position of `x` to all, or to those up to itself if `causal`.

    Parameters
    ----------
    x : Tensor
        Floats of shape (batch, positions, n); the result has the same shape.
    heads : int
        The number of parts into which n is divided.
    name : str
        The layer's; its variables are ``name/qkv/w``, (n, 3 n), ``name/qkv/b``, ``name/out/w``,
        (n, n), and ``name/out/b``.
    seed : int or numpy.random.Generator
        The source of its weights, by `glorot_uniform`.
    causal : bool, default False
        Attend only to positions up to itself. Source: Vaswani et al. (2017).

    Raises
    ------
    ShapeError
        If n is not known, or not a multiple of `heads`.
    """
    n = features(x.builder, x)
    if n % heads:
        raise ShapeError(
            f"{x!r} is {x.spec}, which makes no {heads} heads of one length",
            at=f"{name} in {x.builder.name}",
            fix=f"choose a number of heads that divides {n}",
        )
    weights = glorot_uniform((n, 3 * n), seed, (n, n), x.dtype)
    q, k, v = _apply_affine(x, weights, f"{name}/qkv").split(3, axis=-1)
    options = {"q_num_heads": heads, "kv_num_heads": heads, "scale": (n // heads) ** -0.5}
    gathered = q.attention(k, v, is_causal=causal, name=name, **options)
    return _apply_affine(gathered, glorot_uniform((n, n), seed, dtype=x.dtype), f"{name}/out")


def _apply_affine(x: Tensor, weights: Array, name: str) -> Tensor:
    w = x.builder.variable(f"{name}/w", weights)
    bias = x.builder.variable(f"{name}/b", zeros(weights.shape[1:], x.dtype))
    return x @ w + bias
