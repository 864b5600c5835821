"""LightNet's operators that compute: convolutions, pools, norms, elementwise operators.

Sources: LightNet's operator descriptions (protos/op) and TensorLight's reference kernels, 2020-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph.core.parameters import to_float32
from .entries import fail
from .statement import Statement, register_rule

PADDINGS: Mapping[str, str] = {
    name: name for name in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
}
ELEMENTWISE: Mapping[str, str] = {
    "TL_MUL": "Mul",
    "TL_DIV": "Div",
    "TL_SUM": "Add",
    "TL_SUB": "Sub",
    "TL_MAX": "Max",
    "TL_MIN": "Min",
    "TL_POW": "Pow",
}


@register_rule("conv2d", "src weight bias", "group size stride dilation padding autopad")
def conv2d(op: Statement) -> None:
    src, weight, bias = (op.input(name) for name in ("src", "weight", "bias"))
    _check_size(op, weight)
    group, dilations = op.integer("group", 1), op.integers("dilation", 2, 1)
    op.last("Conv", src, weight, bias, **_read_window(op), group=group, dilations=dilations)


@register_rule(
    "deconv2d",
    "src weight bias",
    "group size stride output_dims padding output_padding dilation autopad",
)
def deconv2d(op: Statement) -> None:
    """Write `op` as a transposed convolution; its padding follows from output_dims, if given."""
    src, weight, bias = (op.input(name) for name in ("src", "weight", "bias"))
    _check_size(op, weight)
    strides, dilations = op.integers("stride", 2, 1), op.integers("dilation", 2, 1)
    extra, wanted = op.integers("output_padding", 2), op.integers("output_dims", 4)
    pads, auto = op.integers("padding", 4), op.choice("autopad", PADDINGS)
    if auto == "VALID":
        pads = (0, 0, 0, 0)
    elif auto != "NOTSET":
        if not all(wanted):
            fail(f"autopad {auto!r} needs output_dims", op.at)
        spatial, kernel = op.spec(src, 4).static_shape[2:], op.integers("size", 2, 1)
        zipped = zip(spatial, strides, kernel, dilations, extra, wanted[2:], strict=True)
        totals = [(n - 1) * s + (k - 1) * d + 1 + e - out for n, s, k, d, e, out in zipped]
        if min(totals) < 0:
            fail("output_dims are larger than the output", op.at)
        small, large = [one // 2 for one in totals], [one - one // 2 for one in totals]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    op.last(
        "ConvTranspose",
        *(src, weight, bias),
        group=op.integer("group", 1),
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
    )
    made = op.spec(op.output())
    if all(wanted) and made.shape != wanted:
        fail(f"the output is {made}, output_dims are {list(wanted)}", op.at)


@register_rule("maxpool2d", "src", "size stride padding autopad")
def maxpool2d(op: Statement) -> None:
    op.last("MaxPool", op.input("src"), kernel_shape=op.integers("size", 2, 1), **_read_window(op))


@register_rule("avgpool2d", "src", "size stride padding autopad")
def avgpool2d(op: Statement) -> None:
    """Write `op` as an AveragePool without cells of padding, like TensorRT's default."""
    size = op.integers("size", 2, 1)
    op.last("AveragePool", op.input("src"), kernel_shape=size, **_read_window(op))


@register_rule("batchnorm", "src scale offset mean var", "epsilon")
def batchnorm(op: Statement) -> None:
    inputs = (op.input(name) for name in ("src", "scale", "offset", "mean", "var"))
    op.last("BatchNormalization", *inputs, epsilon=op.number("epsilon", above=0))


@register_rule(
    "bn2scale_wts",
    "src_mean src_var src_scale src_offset",
    "epsilon",
    outputs="dst_scale dst_shift dst_power",
)
def bn2scale_wts(op: Statement) -> None:
    """Write `op`, scale / (var + epsilon) and a shift: LightNet does not take the root."""
    mean, var, scale, offset = (
        op.input(f"src_{name}") for name in ("mean", "var", "scale", "offset")
    )
    spread = op.write("Add", var, np.float32(to_float32(op.number("epsilon", above=0))))
    op.last("Div", scale, spread, output="dst_scale")
    moved = op.write("Div", op.write("Mul", mean, scale), spread)
    op.last("Sub", offset, moved, output="dst_shift")
    length = np.array(op.spec(mean, 1).static_shape)
    op.last("Expand", np.float32(1), length, output="dst_power")


@register_rule("elew", "src1 src2", "elew_op")
def elew(op: Statement) -> None:
    first, second, kind = op.input("src1"), op.input("src2"), op.choice("elew_op", ELEMENTWISE)
    if op.spec(first) != op.spec(second):
        fail(f"{op.spec(first)} and {op.spec(second)} differ", op.at)
    if kind == "Pow" and op.spec(first).dtype.kind != "f":
        fail("a power of integers saturates in LightNet, which plait's does not", op.at)
    op.last(kind, first, second)


@register_rule("dot_product", "src1 src2 ws*")
def dot_product(op: Statement) -> None:
    """Write `op` as the sum of all products; its workspace is ignored."""
    first, second = op.input("src1"), op.input("src2")
    if op.spec(first) != op.spec(second):
        fail(f"{op.spec(first)} and {op.spec(second)} differ", op.at)
    total = op.write("ReduceSum", op.write("Mul", first, second), keepdims=False)
    op.last("Reshape", total, np.array([1]))


@register_rule("relu", "src")
def relu(op: Statement) -> None:
    op.last("Relu", op.input("src"))


@register_rule("lrelu", "src", "negslope")
def lrelu(op: Statement) -> None:
    op.last("LeakyRelu", op.input("src"), alpha=op.number("negslope"))


@register_rule("sigmoid", "src")
def sigmoid(op: Statement) -> None:
    op.last("Sigmoid", op.input("src"))


@register_rule("softmax", "src", "axis")
def softmax(op: Statement) -> None:
    """Write `op` as a Softmax; LightNet's implementation for the CPU does nothing."""
    op.last("Softmax", op.input("src"), axis=op.axis(op.input("src")))


@register_rule("maxreduce", "src", "axis")
def maxreduce(op: Statement) -> None:
    """Write `op` as a ReduceMax; TensorLight finds the maximum among rounded floats."""
    op.last("ReduceMax", op.input("src"), np.array([op.axis(op.input("src"))]))


@register_rule("maxreduce_arg", "src", "axis", outputs="dst arg")
def maxreduce_arg(op: Statement) -> None:
    """Write `op`, the maximum along an axis and its first place."""
    src, axis = op.input("src"), op.axis(op.input("src"))
    op.last("ReduceMax", src, np.array([axis]))
    op.last("Cast", op.write("ArgMax", src, axis=axis), output="arg", to="int32")


@register_rule("submean", "src", "mean dtype")
def submean(op: Statement) -> None:
    """Write `op`, dst[c, h, w] = src[h, w, c] - mean[c], computed in doubles."""
    src, dtype = op.input("src"), op.dtype()
    if op.spec(src, 3).static_shape[-1] != 3 or "bool" in (op.spec(src).dtype, dtype):
        fail(f"{op.spec(src)} is not an image of three channels, the last axis", op.at)
    wide = op.write("Cast", op.write("Transpose", src, perm=(2, 0, 1)), to="float64")
    moved = op.write("Sub", wide, np.reshape(op.numbers("mean", 3), (3, 1, 1)))
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        moved = op.write("Clip", moved, np.float64(limits.min), np.float64(limits.max))
    op.last("Cast", moved, to=dtype.name)


def _read_window(op: Statement) -> dict[str, Any]:
    auto, pads = op.choice("autopad", PADDINGS), op.integers("padding", 4)
    found = {"strides": op.integers("stride", 2, 1), "auto_pad": auto}
    return found if auto != "NOTSET" else {**found, "pads": pads}


def _check_size(op: Statement, weight: str) -> None:
    size, spec = op.integers("size", 2, 1), op.spec(weight, 4)
    if spec.shape is None or spec.shape[2:] != size:
        fail(f"a window of {list(size)} does not fit the weight, {spec}", op.at)
