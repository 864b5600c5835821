"""Quantizing and dequantizing nodes around products.

Scales and zero points map reals to bytes; constants are stored as integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ...graph.core.ir import Graph, Node
from ...graph.passes.rewriting import Rewriter
from ...graph.values.names import Names
from ...graph.values.tensor import Array
from .products import QuantizedProduct
from .ranges import Range

WEIGHT_LIMIT = 127
"""Weights have no zero point, so int8's lowest number is not used."""

BIAS_LIMIT = 1 << 30
"""Below half of int32's range, since sums of products are added to it."""


class Integers(NamedTuple):
    """A constant as integers: real = (value - zero point) · scale."""

    value: Array
    scale: Array
    zero: Array
    axis: int = 0
    """The axis with a scale for each index, if there are several."""


def choose_parameters(between: Range, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return the scale and zero point with which integers of `dtype` cover `between`, and 0."""
    limits = np.iinfo(np.dtype(dtype))
    low, high = min(between.low, 0.0), max(between.high, 0.0)
    scale = np.float32((high - low) / (limits.max - limits.min))
    if scale < np.finfo(np.float32).tiny:
        scale = np.float32(1)
    zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
    return np.asarray(scale), zero.astype(dtype)


def quantize_weights(weights: Array, axis: int | None, least: Array | float = 0.0) -> Integers:
    """Return `weights` as int8 without zero points; each slice along `axis`, if any, has a scale.

    No scale is below `least`: the scale of a bias follows from it, and must represent the bias.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(others if axis is not None else None, initial=0)
    scale = np.maximum(largest / np.float32(WEIGHT_LIMIT), least).astype(np.float32)
    scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
    along = [1] * weights.ndim
    if axis is not None:
        along[axis] = -1
    value = np.clip(np.rint(weights / scale.reshape(along)), -WEIGHT_LIMIT, WEIGHT_LIMIT)
    return Integers(value.astype(np.int8), scale, np.zeros(scale.shape, np.int8), axis or 0)


def find_least_scale(bias: Array, input_scale: Array, axis: int | None) -> Array:
    needed = np.abs(bias.astype(np.float64)) / (float(input_scale) * BIAS_LIMIT)
    return np.asarray(needed if axis is not None else needed.max(initial=0))


def quantize_bias(bias: Array, input_scale: Array, weight_scale: Array) -> Integers:
    scale = (input_scale * weight_scale).astype(np.float32)
    wide = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    value = np.clip(wide, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Integers(value, scale, np.zeros(scale.shape, np.int32))


def insert_quantization(
    graph: Graph, products: Iterable[QuantizedProduct], ranges: Mapping[str, Range], dtype: str
) -> Graph:
    """Return `graph` with the inputs of `products` rounded to `dtype`, within their `ranges`.

    An input of several products is quantized once. Weights are int8; biases are int32, with the
    scale of sums. Results of products are not rounded here, but at the next product that reads
    them.
    """
    return _Insertion(graph, ranges, dtype).run(products)


class _Insertion:
    """The state of the pass: which tensors are quantized already."""

    def __init__(self, graph: Graph, ranges: Mapping[str, Range], dtype: str) -> None:
        self._rewriter = Rewriter(graph)
        self._names = Names(node.name for node in graph.nodes)
        self._ranges = ranges
        self._dtype = dtype
        self._rounded: dict[str, str] = {}
        self._scales: dict[str, Array] = {}

    def run(self, products: Iterable[QuantizedProduct]) -> Graph:
        for product in products:
            self._quantize(product)
        return self._rewriter.result()

    def _quantize(self, product: QuantizedProduct) -> None:
        node, ahead = product.node, list[Node]()
        inputs = list(node.inputs)
        for index in product.activations:
            ahead += self._activation(node.inputs[index])
            inputs[index] = self._rounded[node.inputs[index]]
        constants = self._constants(product)
        for index, integers in constants.items():
            made = self._dequantized(node.inputs[index], integers)
            ahead.append(made)
            inputs[index] = made.outputs[0]
        self._rewriter.replace([node], [*ahead, replace(node, inputs=tuple(inputs))])

    def _activation(self, tensor: str) -> list[Node]:
        if tensor in self._rounded:
            return []
        rewriter = self._rewriter
        scale, zero = choose_parameters(self._ranges[tensor], self._dtype)
        names = (
            rewriter.constant(scale, f"{tensor}/scale"),
            rewriter.constant(zero, f"{tensor}/zero"),
        )
        integers = rewriter.make(
            "QuantizeLinear", (tensor, *names), name=self._names.take(f"{tensor}/quantized")
        )
        reals = rewriter.make(
            "DequantizeLinear",
            (integers.outputs[0], *names),
            name=self._names.take(f"{tensor}/rounded"),
        )
        self._rounded[tensor], self._scales[tensor] = reals.outputs[0], scale
        return [integers, reals]

    def _constants(self, product: QuantizedProduct) -> dict[int, Integers]:
        if product.weights is None:
            return {}
        given = self._rewriter.constants
        weights = given[product.node.inputs[product.weights]]
        if product.bias is None:
            return {product.weights: quantize_weights(weights, product.axis)}
        bias = given[product.node.inputs[product.bias]]
        scale = self._scales[product.node.inputs[product.activations[0]]]
        made = quantize_weights(weights, product.axis, find_least_scale(bias, scale, product.axis))
        return {product.weights: made, product.bias: quantize_bias(bias, scale, made.scale)}

    def _dequantized(self, name: str, made: Integers) -> Node:
        rewriter = self._rewriter
        names = [
            rewriter.constant(value, f"{name}/{what}")
            for what, value in zip(("integers", "scale", "zero"), made, strict=False)
        ]
        return rewriter.make(
            "DequantizeLinear", names, name=self._names.take(f"{name}/dequantized"), axis=made.axis
        )
