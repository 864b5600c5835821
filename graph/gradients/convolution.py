"""Gradients of convolution: a transposed convolution, and sums of products with the input.

Source: Dumoulin and Visin, *A guide to convolution arithmetic for deep learning* (2016), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensor import Dim
from ..windows import resolve_transposed_window, resolve_window
from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .registry import gradient

NO_PADS = {"auto_pad": "NOTSET", "pads": None}


def steps(at: Adjoint, rank: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return strides and dilations of a node's windows over so many axes."""
    return at["strides"] or (1,) * rank, at["dilations"] or (1,) * rank


def kernel_of(at: Adjoint, weights: Term) -> tuple[int, ...]:
    """Return the lengths of the windows of a convolution."""
    given: Sequence[Dim] = at["kernel_shape"] or (weights.spec.shape or ())[2:]
    sizes = tuple(size for size in given if isinstance(size, int))
    if not sizes or len(sizes) != len(given):
        raise at.refused_error("the lengths of its windows are not known", "set its kernel_shape")
    return sizes


def spread(
    at: Adjoint, dy: Term, weights: Term, kernel: Sequence[int], group: int, *, ceil: bool = False
) -> Term:
    """Return the gradient of what windows were laid over: dy, weighted, where each window lay."""
    x, formula, rank = at.input(0), at.formula, len(kernel)
    strides, dilations = steps(at, rank)
    shared = {"strides": strides, "dilations": dilations, "group": group}
    spatial = (x.spec.shape or ("?",) * (rank + 2))[2:]
    window, counts = resolve_window(spatial, at.node.attributes, kernel, ceil_mode=ceil)
    lengths = [dim for dim in spatial if isinstance(dim, int)]
    outputs = [dim for dim in counts if isinstance(dim, int)]
    if window is not None and len(lengths) == len(outputs) == rank:
        surplus = [
            reach - begin - length
            for reach, begin, length in zip(
                window.span(outputs), window.pads_begin, lengths, strict=True
            )
        ]
        pads = [*window.pads_begin, *(max(more, 0) for more in surplus)]
        extra = [max(-more, 0) for more in surplus]
        return dy.op("ConvTranspose", weights, pads=pads, output_padding=extra, **shared)
    extra = [stride - 1 for stride in strides]  # as many cells as windows may have left over
    whole = dy.op("ConvTranspose", weights, output_padding=extra, **shared)
    starts, length = _begins(at, kernel), formula.shape_of(x, 2)
    axes = formula.constant(range(2, rank + 2))
    return whole.op("Slice", starts, starts.op("Add", length), axes)


def _begins(at: Adjoint, kernel: Sequence[int]) -> Term:
    """Return the cells of padding before each axis, which SAME_* makes depend on its length."""
    formula, rank, auto_pad = at.formula, len(kernel), at["auto_pad"]
    if not auto_pad.startswith("SAME"):
        pads = at["pads"] if auto_pad == "NOTSET" else None
        return formula.constant((pads or (0,) * rank)[:rank])
    strides, dilations = steps(at, rank)
    stride = formula.constant(strides)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    length = formula.shape_of(at.input(0), 2)
    windows = (length + formula.constant([s - 1 for s in strides])) / stride
    total = (windows - 1) * stride + formula.constant(reach) - length
    total = total.op("Max", formula.constant(0))
    half = total / formula.constant(2)
    return half if auto_pad == "SAME_UPPER" else total - half


@gradient("Conv")
def conv(at: Adjoint) -> Gradients:
    """Each input cell gets what it gave to windows; each weight what it was multiplied with."""
    x, w, dy = at.input(0), at.input(1), at.dy
    if at.wants(0):
        yield 0, spread(at, dy, w, kernel_of(at, w), at["group"])
    if at.wants(1):
        window = {name: at[name] for name in ("auto_pad", "dilations", "pads", "strides", "group")}
        yield 1, _of_weights(x, dy, kernel_of(at, w), window)
    if at.wants(2):
        yield 2, _over_channels(dy)


def _of_weights(x: Term, dy: Term, kernel: Sequence[int], window: dict[str, Any]) -> Term:
    return x.op("ConvWeightsGradient", dy, kernel_shape=kernel, **window)


def _over_channels(dy: Term) -> Term:
    return dy.sum([0, *range(2, dy.rank)], keepdims=False)


@gradient("ConvTranspose")
def conv_transpose(at: Adjoint) -> Gradients:
    """As Conv with the roles of x and y exchanged."""
    x, w, dy = at.input(0), at.input(1), at.dy
    if at.wants(0) or at.wants(1):
        window = _explicit(at, x, kernel_of(at, w))
    if at.wants(0):
        yield 0, _cut(dy.op("Conv", w, **window), x)
    if at.wants(1):
        yield 1, _of_weights(dy, x, kernel_of(at, w), window)
    if at.wants(2):
        yield 2, _over_channels(dy)


def _explicit(at: Adjoint, x: Term, kernel: Sequence[int]) -> dict[str, Any]:
    """Return a transposed convolution's attributes as those of a convolution over its output."""
    spatial = (x.spec.shape or ("?",) * (len(kernel) + 2))[2:]
    window, _ = resolve_transposed_window(spatial, at.node.attributes, kernel)
    if window is None:
        raise at.refused_error(
            f"its padding depends on the lengths {list(spatial)}",
            "give its padding as pads, or its input a shape of numbers",
        )
    pads = (*window.pads_begin, *window.pads_end)
    strides, dilations = steps(at, len(kernel))
    return {"pads": pads, "strides": strides, "dilations": dilations, "group": at["group"]}


def _cut(made: Term, x: Term) -> Term:
    """Return the leading part that is of x's shape: padding of the output has windows too."""
    if made.spec.shape is not None and made.spec.shape == x.spec.shape:
        return made
    formula, axes = x.formula, list(range(2, x.rank))
    first = formula.constant([0] * len(axes))
    return made.op("Slice", first, formula.shape_of(x, 2), formula.constant(axes))


@gradient("ConvWeightsGradient")
def conv_weights_gradient(at: Adjoint) -> Gradients:
    """It is linear in x and in dy: both gradients are convolutions with the weights' gradient."""
    kernel, weights = at["kernel_shape"], at.dy
    if at.wants(0):
        yield 0, spread(at, at.input(1), weights, kernel, at["group"])
    if at.wants(1):
        window = {name: at[name] for name in ("auto_pad", "dilations", "pads", "strides", "group")}
        yield 1, _cut(at.input(0).op("Conv", weights, **window), at.input(1))
