"""Biases of products of quantized tensors, as the integers that ONNX Runtime's kernels add.

It fuses DequantizeLinear, Conv and QuantizeLinear to QLinearConv if the bias is dequantized int32.
Passes fold such constants to floats, with which it would convolve floats.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.passes.quantized import Quantization, read_quantization
from ...graph.passes.rewriting import Rewriter
from ...graph.values.tensor import Array

FINER = 8
"""Ratio of the steps of results to those of sums, for biases that were floats originally: these are
off by half a step, which moves rounded results by at most a 16th of a step."""

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def with_integer_biases(graph: Graph) -> Graph:
    if not any(node.op == "QuantizeLinear" for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.find("Conv", "Gemm"):
        scales = _find_scales(rewriter, node)
        bias = None if scales is None else _to_integers(rewriter.constants[node.inputs[2]], *scales)
        if scales is not None and bias is not None:
            names = (
                rewriter.constant(bias, f"{node.name}/bias"),
                rewriter.constant(scales[0], f"{node.name}/bias_scale"),
            )
            made = rewriter.make("DequantizeLinear", names, name=f"{node.name}/bias_floats", axis=0)
            inputs = (*node.inputs[:2], *made.outputs)
            rewriter.replace([node], [made, replace(node, inputs=inputs)])
    return rewriter.result()


def _find_scales(rewriter: Rewriter, node: Node) -> tuple[Array, Array] | None:
    if len(node.inputs) < 3 or node.inputs[2] not in rewriter.constants:
        return None
    if node.op == "Gemm" and (node.attributes["alpha"], node.attributes["beta"]) != (1, 1):
        return None
    factors = (rewriter.producer(name) for name in node.inputs[:2])
    left, right = (_read_bytes(rewriter, one, "DequantizeLinear") for one in factors)
    made = _read_bytes(rewriter, rewriter.only_consumer(node), "QuantizeLinear")
    if left is None or right is None or made is None:
        return None
    if (
        left.scale.size > 1
        or made.scale.size > 1
        or right.axis not in (None, _get_feature_axis(node))
    ):
        return None
    return left.scale.reshape(()) * right.scale, made.scale.reshape(())


def _get_feature_axis(node: Node) -> int:
    return 0 if node.op == "Conv" or node.attributes["transB"] else 1


def _read_bytes(rewriter: Rewriter, node: Node | None, op: str) -> Quantization | None:
    if node is None or node.op != op:
        return None
    found = read_quantization(rewriter, node)
    return found if found is not None and found.zero.dtype in _BYTES else None


def _to_integers(bias: Array, sums: Array, result: Array) -> Array | None:
    if bias.ndim != 1 or bias.dtype != np.float32 or sums.size not in (1, bias.size):
        return None
    exact = bias.astype(np.float64) / sums
    steps = np.rint(exact)
    was_integer = np.allclose(steps, exact, rtol=1e-6, atol=1e-6)
    if not (np.abs(steps) < 2**31).all() or not (was_integer or (sums * FINER <= result).all()):
        return None
    made: Array = steps.astype(np.int32)
    return made
