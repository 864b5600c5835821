"""Quantizing and dequantizing nodes around products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...graph.ir import Graph, Node
from ...graph.names import Names
from ...graph.passes.rewriting import Rewriter
from ...graph.tensor import Array
from .products import QuantizedProduct
from .ranges import Range
from .scheme import Integers, least_scale, parameters, quantized_bias, quantized_weights


def insert_quantization(
    graph: Graph, products: Iterable[QuantizedProduct], ranges: Mapping[str, Range], dtype: str
) -> Graph:
    """Product -> QuantizeLinear, DequantizeLinear, then the product; constants as integers.

    What is read by several products is quantized once. Weights are int8, biases int32 of the scale
    that sums have. What products yield is not rounded by this, but where the next one reads it.
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
        """Return the nodes that round a tensor, the first time."""
        if tensor in self._rounded:
            return []
        rewriter = self._rewriter
        scale, zero = parameters(self._ranges[tensor], self._dtype)
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
        """Return the constants of a node as integers, by where it reads them."""
        if product.weights is None:
            return {}
        given = self._rewriter.constants
        weights = given[product.node.inputs[product.weights]]
        if product.bias is None:
            return {product.weights: quantized_weights(weights, product.axis)}
        bias = given[product.node.inputs[product.bias]]
        scale = self._scales[product.node.inputs[product.activations[0]]]
        made = quantized_weights(weights, product.axis, least_scale(bias, scale, product.axis))
        return {product.weights: made, product.bias: quantized_bias(bias, scale, made.scale)}

    def _dequantized(self, name: str, made: Integers) -> Node:
        rewriter = self._rewriter
        names = [
            rewriter.constant(value, f"{name}/{what}")
            for what, value in zip(("integers", "scale", "zero"), made, strict=False)
        ]
        return rewriter.make(
            "DequantizeLinear", names, name=self._names.take(f"{name}/dequantized"), axis=made.axis
        )
