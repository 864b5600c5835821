"""Which operators compute in float16 where that is allowed, and why the others do not.

What starts it are products: there half the bytes and faster units pay. What follows them keeps to
float16 while it only moves numbers, or adds and multiplies a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..ir import ASSIGN, Graph, Node
from ..tensor import Array

ALL = range(1000)

PRODUCTS: Mapping[str, range] = dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ALL)
"""The operators that start it, and which of their inputs become float16."""

FOLLOWERS: Mapping[str, range] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Sum", "Max", "Min", "Clip", "Neg", "Abs"), ALL),
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "Sigmoid"), ALL),
    **dict.fromkeys(("Swish", "Gelu", "Tanh", "Elu", "Selu", "Celu", "ThresholdedRelu"), ALL),
    **dict.fromkeys(("Concat", "Where", "Pad"), ALL),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"), ALL),
    **dict.fromkeys(("Split", "Slice", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"), ALL),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool"), ALL),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Resize", "BatchNormalization"),
                    range(1)),
    "After": range(1),
}  # fmt: skip
"""What computes in float16 where what it reads is float16 already.

Of the last ones only the first input: the scales that Resize computes coordinates from, and the
statistics of BatchNormalization, stay float32; so does what an After waits for.
"""

_SUMS = "sums of many numbers lose digits, or overflow"
_POWERS = "exponentials overflow at 11, and magnify what was rounded before"
_QUOTIENTS = "small divisors overflow it, and 10⁻⁸ is 0 in it"

REASONS: Mapping[str, str] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "ReduceLogSumExp", "Softplus", "Mish"), _POWERS),
    **dict.fromkeys(("Exp", "Log", "Pow", "Sinh", "Cosh"), _POWERS),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2"), _SUMS),
    **dict.fromkeys(("ReduceSumSquare", "ReduceLogSum", "CumSum", "CumProd", "Mean"), _SUMS),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "LpPool", "Einsum"), _SUMS),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "GroupNormalization"), _SUMS),
    **dict.fromkeys(("InstanceNormalization", "MeanVarianceNormalization", "LRN"), _SUMS),
    **dict.fromkeys(("LpNormalization",), _SUMS),
    **dict.fromkeys(("Div", "Reciprocal", "Sqrt"), _QUOTIENTS),
    **dict.fromkeys(("Attention", "LSTM", "GRU", "RNN"), _SUMS),
    **dict.fromkeys(("GridSample", "AffineGrid", "RoiAlign", "DeformConv"),
                    "coordinates need more than 11 bits"),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
                    "scales need more than 11 bits"),
}  # fmt: skip
"""Why operators compute in float32 although float16 is allowed."""

UPDATED = "small steps are lost beside weights, and the squares of small gradients are 0"
"""Why what becomes a variable's next value is float32."""

_LEAST, _MOST = (float(number) for number in (np.finfo(np.float16).tiny, np.finfo(np.float16).max))


def halved_inputs(node: Node) -> range:
    """Return which inputs of a node become float16 with it; none where it may not."""
    if node.attributes.get("training_mode"):
        return range(0)
    return PRODUCTS.get(node.op) or FOLLOWERS.get(node.op) or range(0)


def updates(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that lead from products, or sums, to what is assigned.

    So weights stay float32, as Micikevicius et al., *Mixed Precision Training* (2018), have it.
    """
    wanted, found = set[str](), set[str]()
    for node in reversed(graph.nodes):
        leads = node.op == ASSIGN or not wanted.isdisjoint(node.outputs)
        if leads and node.op not in PRODUCTS and REASONS.get(node.op) != _SUMS:
            found.add(node.name)
            wanted.update(filter(None, node.inputs))
    return frozenset(found)


def fits(constant: Array) -> bool:
    """True for a constant that is not 0, nor infinite, in float16 unless it is so already.

    Small numbers beside larger ones may vanish.
    """
    sizes = np.abs(constant[np.isfinite(constant)])
    most = float(sizes.max(initial=0.0))
    return most <= _MOST and (most >= _LEAST or most == 0)
