"""Split Gemm into a product and a sum."""

from __future__ import annotations

import numpy as np

from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass("Gemm")
def split_gemm(rewriter: Rewriter) -> None:
    """Split Gemm into MatMul and Add, if weights are constant and x is not transposed.

    The weights are transposed and scaled ahead, and a constant bias too; a computed bias must have
    the scale 1.
    """
    for node in rewriter.find("Gemm"):
        weights, attributes = rewriter.constants.get(node.inputs[1]), node.attributes
        bias = node.inputs[2] if len(node.inputs) > 2 and attributes["beta"] != 0 else ""
        value = rewriter.constants.get(bias)
        scaled = bool(bias) and value is None and attributes["beta"] != 1
        if weights is None or attributes["transA"] or scaled or weights.dtype.kind != "f":
            continue
        turned = weights.T if attributes["transB"] else weights
        factor = (np.asarray(attributes["alpha"], weights.dtype) * turned).astype(weights.dtype)
        operands = (node.inputs[0], rewriter.constant(factor, f"{node.name}/weights"))
        if not bias:
            rewriter.replace(
                [node], [rewriter.make("MatMul", operands, node.outputs, name=node.name)]
            )
            continue
        if value is not None:
            added = (np.asarray(attributes["beta"], value.dtype) * value).astype(value.dtype)
            bias = rewriter.constant(added, f"{node.name}/bias")
        product = rewriter.make("MatMul", operands, name=f"{node.name}/product")
        total = rewriter.make("Add", (product.outputs[0], bias), node.outputs, name=node.name)
        if rewriter.may_merge([node, product], total):
            rewriter.replace([node], [product, total])
