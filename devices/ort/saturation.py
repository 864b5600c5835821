"""Products of bytes, in a form that ONNX Runtime does not saturate at 16 bits.

On x86 without VNNI its kernels for unsigned by signed bytes add two products in 16 bits, which
overflows for 255·127 twice: the result is about half of the correct one. Two unsigned operands are
exact, and adding 128 to signed bytes and their zero point changes nothing else, but is slower.
Weights without overflow stay as they are, such as those of 7 bits that its tools make for these
processors. Its own option, `session.x64quantprecision`, ignores computed operands, and prevents
loading of some models (1.32.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph, Node
from ...graph.core.traits import PRODUCT
from ...graph.formats.onnx.writer import to_onnx
from ...graph.passes.rewriting import Rewriter
from ...graph.values.tensor import Array
from .runtime import find_newest_opset, load, make_options

_SHIFT = 128


class _Operands(NamedTuple):
    """The inputs of an operator that multiplies bytes, in the kernel's order."""

    unsigned: int
    signed: int
    zero: int
    """For the signed one."""


_OPERANDS: Mapping[str, _Operands] = {
    "ConvInteger": _Operands(1, 0, 2),  # the kernel takes the weights first
    "MatMulInteger": _Operands(0, 1, 3),
    "QLinearConv": _Operands(0, 3, 5),
    "QLinearMatMul": _Operands(0, 3, 5),
}
_DECODED = 0, 2
"""The inputs of DequantizeLinear with bytes, and with their zero point."""


@cache
def is_saturating() -> bool:
    """Return whether sums of products saturate on this processor, by running one."""
    b = GraphBuilder("probe")
    left, right = b.input("left", "uint8", (1, 4)), b.input("right", "int8", (4, 16))
    b.output("y", b.op("MatMulInteger", left, right))
    session = load(to_onnx(b.build(), opset=find_newest_opset()), make_options())
    fed = {"left": np.full((1, 4), 255, np.uint8), "right": np.full((4, 16), 127, np.int8)}
    return bool((session.run(None, fed)[0] != 4 * 255 * 127).any())


def avoid_saturation(graph: Graph) -> Graph:
    """Return an equivalent of the static `graph` that does not saturate."""
    if not any(spec.dtype == np.int8 for spec in graph.tensors.values()) or not is_saturating():
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.find(*_OPERANDS):
        operands = _OPERANDS[node.op]
        if _get_dtype(rewriter, node, operands.unsigned) == np.uint8:
            _shift(rewriter, node, operands.signed, operands.zero)
    for node in rewriter.find("com.microsoft.DynamicQuantizeLSTM"):  # its kernel makes bytes of x
        _shift(rewriter, _shift(rewriter, node, 1, 9), 2, 11)
    for node in rewriter.find_with(PRODUCT):
        decoded = [rewriter.producer(name) for name in node.inputs[:2]]
        made = [one for one in decoded if one is not None and one.op == "DequantizeLinear"]
        if any(_get_dtype(rewriter, one, 0) == np.uint8 for one in made):
            for one in made:  # ONNX Runtime fuses the product with its decoded inputs
                _shift(rewriter, one, *_DECODED)
    return rewriter.result()


def _get_dtype(rewriter: Rewriter, node: Node, index: int) -> np.dtype | None:
    spec = rewriter.call(node).inputs[index]
    return None if spec is None else spec.dtype


def _shift(rewriter: Rewriter, node: Node, signed: int, zero: int) -> Node:
    """Make `node` read input `signed`, and input `zero`, as unsigned bytes; return it.

    `rewriter` replaces the node.
    """
    weights = rewriter.constants.get(node.inputs[signed])
    is_signed = _get_dtype(rewriter, node, signed) == np.int8
    if not is_signed or (weights is not None and _fits_twice(weights)):
        return node
    inputs = [*node.inputs, *[""] * (zero + 1 - len(node.inputs))]
    made: list[Node] = []
    if not inputs[zero]:
        shape = rewriter.tensors[inputs[1]].static_shape if node.op == "DequantizeLinear" else ()
        inputs[zero] = rewriter.constant(np.full(shape, _SHIFT, np.uint8), f"{node.name}/zero")
    else:
        inputs[zero] = _to_unsigned(rewriter, inputs[zero], f"{node.name}/zero", made)
    inputs[signed] = _to_unsigned(rewriter, inputs[signed], f"{node.name}/shifted", made)
    shifted = replace(node, inputs=tuple(inputs))
    rewriter.replace([node], [*made, shifted])
    return shifted


def _fits_twice(weights: Array) -> bool:
    """Return whether two of `weights`, each times a byte, always have a sum of at most 16 bits."""
    if weights.size < 2:
        return True
    # The worst pair that a kernel adds is the two extreme ones, times 255.
    flat = weights.ravel().astype(np.int32)
    low, high = np.partition(flat, 1)[:2], np.partition(flat, flat.size - 2)[-2:]
    limits = np.iinfo(np.int16)
    return bool(
        limits.min <= 255 * np.minimum(low, 0).sum()
        and 255 * np.maximum(high, 0).sum() <= limits.max
    )


def _to_unsigned(rewriter: Rewriter, name: str, stem: str, made: list[Node]) -> str:
    """Return the name of tensor `name` as unsigned bytes.

    `rewriter` makes the nodes that compute it, which are called after `stem` and go to `made`.
    """
    value = rewriter.constants.get(name)
    if value is not None:
        return rewriter.constant((value.astype(np.int16) + _SHIFT).astype(np.uint8), stem)
    shift = rewriter.constant(np.int32(_SHIFT), f"{stem}/shift")
    wide = rewriter.make("Cast", (name,), name=f"{stem}/wide", to="int32")
    above = rewriter.make("Add", (*wide.outputs, shift), name=f"{stem}/above")
    narrow = rewriter.make("Cast", above.outputs, name=stem, to="uint8")
    made += wide, above, narrow
    return narrow.outputs[0]
