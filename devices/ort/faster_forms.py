"""Nodes in forms that ONNX Runtime computes faster than with its own kernels.

Some of its kernels process single elements, while those for products and maxima are vectorized.
On one core, with 1.32.0, in nanoseconds per element: PRelu 5.3, or 0.4 as a product and a maximum;
Mish 24, or 2.2 with one exponential; Softmax of channels 11 to 20, or 2 to 5 with sums. Conv
multiplies the few windows of each item of a batch by themselves, at a fraction of the speed.
AveragePool since opset 19 takes 8 times as long as before, outside of blocked layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.operators.windows import resolve_window
from ...graph.passes.quantized import Quantization, read_quantization
from ...graph.passes.rewriting import Rewriter
from ...graph.values.dims import normalize_axis
from ...graph.values.tensor import Array

Form: TypeAlias = Callable[[Rewriter, Node], list[Node] | None]
"""Takes a rewriter and a node, and returns equivalent nodes, or None to keep it."""

MOST_CHANNELS = 64
"""For more channels, the Softmax kernel, which transposes them to the last axis, is no slower."""

LEAST_ITEMS, LEAST_WEIGHTS, MOST_WINDOWS, MOST_PIECES = 4, 1 << 12, 8, 8
"""For fewer items and weights, more windows of each, or more parts of these, the Conv kernel is as
fast. Else it takes up to four times as long (128 channels, 3 taps, 50 items: 640 µs or 156)."""

MISH_IS_LINEAR = 20.0
"""From here on Mish is its argument, to the last bit of float32, and exp² does not overflow."""


BEFORE_DILATIONS = 18
"""The last opset in which AveragePool has no dilations, and a vectorized kernel."""

_ALIKE = """
Abs Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Elu Erf Exp Flatten Gather
Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity LRN LeakyRelu LogSoftmax MatMul
Max MaxPool Mean Min Mul Neg PRelu Pow ReduceMean ReduceSum Relu Reshape Selu Sigmoid Slice Softmax
Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze
"""
_UNCHANGED = frozenset(_ALIKE.split())
"""Operators that mean the same since that opset, but for further dtypes."""

_DTYPES = frozenset(("float32", "float64", "int32", "int64", "bool"))


def is_faster_before(graph: Graph) -> bool:
    """Return whether `graph` is the same in opset `BEFORE_DILATIONS`, and pools faster there."""
    pools = [node.attributes for node in graph.nodes if node.op == "AveragePool"]
    return (
        bool(pools)
        and all(node.op in _UNCHANGED for node in graph.nodes)
        and not any(one["ceil_mode"] or one["dilations"] for one in pools)
        and all(spec.dtype.name in _DTYPES for spec in graph.tensors.values())
    )


def with_faster_forms(graph: Graph) -> Graph:
    if not any(node.op in _FORMS for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.find(*_FORMS):
        if rewriter.tensors[node.inputs[0]].dtype == np.float32:
            form = _FORMS[node.op](rewriter, node)
            if form is not None:
                rewriter.replace([node], form)
    return rewriter.result()


def _form_prelu(rewriter: Rewriter, node: Node) -> list[Node] | None:
    """Return nodes by `rewriter`, equal to the PRelu `node` but for the sign of zero, or None."""
    x, slope = node.inputs
    slopes = rewriter.constants.get(slope)
    if slopes is None or not np.isfinite(slopes).all():
        return None
    if _is_below_one(slopes):
        # slope·x is the larger one where x < 0, and the smaller one where x > 0.
        scaled = rewriter.make("Mul", (x, slope), name=f"{node.name}/scaled")
        largest = rewriter.make("Max", (x, *scaled.outputs), node.outputs, name=node.name)
        return [scaled, largest]
    zero = rewriter.constant(np.float32(0), f"{node.name}/zero")
    positive = rewriter.make("Max", (x, zero), name=f"{node.name}/positive")
    negative = rewriter.make("Min", (x, zero), name=f"{node.name}/negative")
    scaled = rewriter.make("Mul", (*negative.outputs, slope), name=f"{node.name}/scaled")
    both = (*positive.outputs, *scaled.outputs)  # one of them is zero
    return [positive, negative, scaled, rewriter.make("Add", both, node.outputs, name=node.name)]


def _is_below_one(slopes: Array) -> bool:
    """Return whether `slopes` are at most 1 and none is 0: 0 times infinity would be NaN."""
    return bool(((slopes <= 1) & (slopes != 0)).all())


def _form_mish(rewriter: Rewriter, node: Node) -> list[Node]:
    """Form Mish of `node` by `rewriter` as x·n / (n + 2), where n is eˣ·(eˣ + 2)."""

    def make(op: str, *inputs: str, part: str) -> str:
        made = rewriter.make(op, inputs, name=f"{node.name}/{part}")
        nodes.append(made)
        return made.outputs[0]

    nodes: list[Node] = []
    (x,) = node.inputs
    two = rewriter.constant(np.float32(2), f"{node.name}/two")
    bound = rewriter.constant(np.float32(MISH_IS_LINEAR), f"{node.name}/bound")
    e = make("Exp", make("Min", x, bound, part="bounded"), part="exp")
    n = make("Mul", e, make("Add", e, two, part="exp_and_2"), part="numerator")
    share = make("Div", n, make("Add", n, two, part="denominator"), part="share")
    return [*nodes, rewriter.make("Mul", (x, share), node.outputs, name=node.name)]


def _form_softmax(rewriter: Rewriter, node: Node) -> list[Node] | None:
    """Form `node` by `rewriter` as exp(x - max) / sum; None if its axis is one of the last two."""
    shape = rewriter.tensors[node.inputs[0]].static_shape
    axis = normalize_axis(node.attributes["axis"], len(shape))
    if axis > len(shape) - 3 or shape[axis] > MOST_CHANNELS:
        return None
    axes = rewriter.constant(np.array([axis]), f"{node.name}/axes")
    (x,), name = node.inputs, node.name
    most = rewriter.make("ReduceMax", (x, axes), name=f"{name}/max")
    below = rewriter.make("Sub", (x, *most.outputs), name=f"{name}/below")
    exp = rewriter.make("Exp", below.outputs, name=f"{name}/exp")
    total = rewriter.make("ReduceSum", (*exp.outputs, axes), name=f"{name}/sum")
    share = rewriter.make("Div", (*exp.outputs, *total.outputs), node.outputs, name=name)
    return [most, below, exp, total, share]


def _form_convolution(rewriter: Rewriter, node: Node) -> list[Node] | None:
    """Form `node` by `rewriter` as one product of windows of all items, channels last.

    Return None unless the kernel has many cells.
    """
    x, w, *bias = node.inputs
    shape, weights = rewriter.tensors[x].static_shape, rewriter.constants.get(w)
    if len(shape) != 3 or weights is None or node.attributes["group"] != 1:
        return None
    batch, channels, length = shape
    window, (count,) = resolve_window(shape[2:], node.attributes, weights.shape[2:])
    assert window is not None
    assert isinstance(count, int), "shapes are known"
    if batch < LEAST_ITEMS or count > MOST_WINDOWS or weights.size < LEAST_WEIGHTS:
        return None
    (stride,), (dilation,), (begin,) = window.strides, window.dilations, window.pads_begin
    # Taps in front and at the end that only see padding are left out.
    places = {
        tap: tap * dilation - begin
        for tap in range(weights.shape[2])
        if any(0 <= tap * dilation - begin + n * stride < length for n in range(count))
    }
    if not places or not np.isfinite(weights).all():
        return None
    tap, taps, place = min(places), max(places) - min(places) + 1, min(places.values())
    # Windows that move by blocks of cells consist of these.
    width = stride if dilation == 1 and taps % stride == 0 else 1
    if taps // width > MOST_PIECES:
        return None
    nodes: list[Node] = []

    def make(op: str, *inputs: str | list[int], part: str, **attributes: Any) -> str:
        names = [
            one if isinstance(one, str) else rewriter.constant(np.array(one), f"{node.name}/number")
            for one in inputs
        ]
        nodes.append(rewriter.make(op, names, name=f"{node.name}/{part}", **attributes))
        return nodes[-1].outputs[0]

    if 1 in (channels, length):
        cells = make("Reshape", x, [0, length, channels], part="last")
    else:
        cells = make("Transpose", x, part="last", perm=(0, 2, 1))
    end = place + (count - 1) * stride + (taps - 1) * dilation + 1
    before, after = max(0, -place), max(0, end - length)
    if before or after:
        cells = make("Pad", cells, [0, before, 0, 0, after, 0], part="padded")
    cells = make("Slice", cells, [place + before], [end + before], [1], part="seen")
    if width > 1:
        cells = make("Reshape", cells, [0, -1, width * channels], part="blocks")
    step = stride // width
    pieces = [
        make("Slice", cells, [at], [at + (count - 1) * step + 1], [1], [step], part="piece")
        for at in range(0, taps // width * dilation, dilation)
    ]
    windows = make("Concat", *pieces, part="windows", axis=2)
    # ONNX Runtime folds these. A constant made here would be another one for each length of batch.
    matrix = make("Transpose", w, part="by_tap", perm=(2, 1, 0))
    matrix = make("Slice", matrix, [tap], [tap + taps], [0], part="taps")
    matrix = make("Reshape", matrix, [taps * channels, len(weights)], part="matrix")
    sums = make("MatMul", windows, matrix, part="product")
    if any(bias):
        sums = make("Add", sums, *bias, part="sum")
    last = rewriter.make("Transpose", (sums,), node.outputs, name=node.name, perm=(0, 2, 1))
    return [*nodes, last]


_FORMS: Mapping[str, Form] = {
    "Conv": _form_convolution,
    "Mish": _form_mish,
    "PRelu": _form_prelu,
    "Softmax": _form_softmax,
}


FINER = 8
"""Ratio of the steps of results to those of sums, for biases that were floats originally: these are
off by half a step, which moves rounded results by at most a 16th of a step."""

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def with_integer_biases(graph: Graph) -> Graph:
    """Return `graph` with biases of products of quantized tensors as int32.

    ONNX Runtime fuses DequantizeLinear, Conv and QuantizeLinear to QLinearConv if the bias is
    dequantized int32. Passes fold such constants to floats, with which it would convolve floats.
    """
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
