"""One rule for each operator whose old forms change by more than a moved attribute.

Importing this module registers them; comments in them say `before -> after`. A rule returns the
nodes that replace `node` in `context`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.ir import ABSENT, Node
from ...values.dims import normalize_axis
from ...values.errors import ParseError
from .upgrade import NEWEST_OPSET, Context, register_rule


@register_rule("ConstantOfShape", before=NEWEST_OPSET + 1)
def _number_and_dtype(node: Node, context: Context) -> Sequence[Node]:
    # ConstantOfShape(value=tensor of one element) -> (value=number, dtype=its dtype).
    value = node.attributes.get("value")
    if not isinstance(value, np.ndarray):
        return (node,)
    return (replace(node, attributes={"value": value.item(), "dtype": value.dtype.name}),)


@register_rule("BatchNormalization", before=14)
def _inference_only(node: Node, context: Context) -> Sequence[Node]:
    # Old forms train if they have more than one output; `is_test` only repeats that.
    attributes = dict(node.attributes)
    attributes.pop("is_test", None)
    if len(node.outputs) > 1 or attributes.pop("spatial", 1) != 1:
        raise ParseError(
            "batch normalization per activation, or in training mode, is not supported",
            at=f"{node}, {context.assembly.at}",
            fix="export the model for inference",
        )
    return (replace(node, attributes=attributes),)


@register_rule("Dropout", "Gemm", before=7)
def _without_flags(node: Node, context: Context) -> Sequence[Node]:
    # Dropout(is_test), Gemm(broadcast) -> without: both are always as if 1.
    kept = {k: v for k, v in node.attributes.items() if k not in ("is_test", "broadcast")}
    return (replace(node, attributes=kept),)


@register_rule(
    "Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", before=7
)
def _aligned_at_axis(node: Node, context: Context) -> Sequence[Node]:
    # Op(a, b, broadcast=1, axis) -> Op(a, b'), b' having as many dimensions as a from axis on.
    a, b = node.inputs
    axis = node.attributes.get("axis")
    missing = 0
    if axis is not None:
        rank, rank_b = _rank(a, node, context), _rank(b, node, context)
        # b's first dimension was aligned with a's at `axis`; now the last ones are. So b needs a
        # dimension for each of a's after its own.
        missing = rank - rank_b - normalize_axis(axis, rank)
    nodes, b = _with_trailing_dimensions(b, missing, node, context)
    return (*nodes, replace(node, inputs=(a, b), attributes={}))


@register_rule("PRelu", before=7)
def _slope_per_channel(node: Node, context: Context) -> Sequence[Node]:
    # PRelu(x, slope of length c) -> PRelu(x, slope of shape c, 1, 1).
    x, slope = node.inputs
    # One slope for each channel, axis 1: today a vector would be aligned with the last axis.
    missing = max(_rank(x, node, context) - 2, 0) if _rank(slope, node, context) == 1 else 0
    nodes, slope = _with_trailing_dimensions(slope, missing, node, context)
    return (*nodes, replace(node, inputs=(x, slope)))


def _rank(name: str, node: Node, context: Context) -> int:
    rank = context.spec(name).rank
    if rank is None:
        raise ParseError(
            f"how {name!r} is broadcast depends on its rank, which is unknown",
            at=f"{node}, {context.assembly.at}",
            fix="export the model with opset 7 or newer",
        )
    return rank


def _with_trailing_dimensions(
    name: str, count: int, node: Node, context: Context
) -> tuple[Sequence[Node], str]:
    """Return nodes before `node` that append `count` axes to `name`, and the new name."""
    if count <= 0:
        return (), name
    rank = _rank(name, node, context)
    axes = context.constant(f"{node.name}/axes", range(rank, rank + count), "int64")
    made = context.names.take(f"{node.outputs[0]}/aligned")
    return (Node(f"{node.name}/Unsqueeze", "Unsqueeze", (name, axes), (made,)),), made


@register_rule("Hardmax", "LogSoftmax", "Softmax", before=13)
def _along_flattened_axes(node: Node, context: Context) -> Sequence[Node]:
    # Softmax(x, axis) -> Softmax over all axes from `axis` on, as one; often just the last.
    (x,), (y,) = node.inputs, node.outputs
    axis, rank = int(node.attributes.get("axis", 1)), context.spec(x).rank
    # x was made a matrix first, of the axes before `axis` and of those from there on. With the last
    # axis alone in the second group each row is a line of x.
    if rank is not None and (axis == -1 or axis == rank - 1):
        return (replace(node, attributes={"axis": -1}),)
    flat, done = context.names.take(f"{y}/flat"), context.names.take(f"{y}/done")
    shape, measuring = _read_shape(x, node.name, context)
    # A Reshape to a computed shape loses symbols; y is like x in any case.
    context.declared[y] = context.spec(x)
    return (
        Node(f"{node.name}/Flatten", "Flatten", (x,), (flat,), {"axis": axis}),
        Node(f"{node.name}/{node.op}", node.op, (flat,), (done,), {"axis": -1}),
        *measuring,
        Node(node.name, "Reshape", (done, shape), (y,), {"allowzero": 1}),
    )


def _read_shape(x: str, stem: str, context: Context) -> tuple[str, Sequence[Node]]:
    if context.spec(x).is_static:
        return context.constant(f"{stem}/shape", context.spec(x).static_shape, "int64"), ()
    shape = context.names.take(f"{stem}/shape")
    return shape, (Node(f"{stem}/Shape", "Shape", (x,), (shape,)),)


@register_rule("Split", before=18)
def _split_evenly(node: Node, context: Context) -> Sequence[Node]:
    # Split without lengths -> as many equal parts as there are outputs.
    if len(node.inputs) > 1:
        return (node,)
    return (replace(node, attributes={**node.attributes, "num_outputs": len(node.outputs)}),)


@register_rule("GridSample", before=20)
def _rename_modes(node: Node, context: Context) -> Sequence[Node]:
    mode = str(node.attributes.get("mode", "bilinear"))
    newest = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return (replace(node, attributes={**node.attributes, "mode": newest}),)


@register_rule("RoiAlign", before=16)
def _without_half_pixel(node: Node, context: Context) -> Sequence[Node]:
    # The only behaviour of old forms, without a shift by half a pixel, has this name now.
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    return (replace(node, attributes={**node.attributes, **mode}),)


@register_rule("DFT", before=20)
def _default_axis(node: Node, context: Context) -> Sequence[Node]:
    # The axis was 1 by default, and is the last but one now.
    x, length, axis = (*node.inputs, ABSENT, ABSENT)[:3]
    axis = axis or context.constant(f"{node.name}/axis", 1, "int64")
    return (replace(node, inputs=(x, length, axis)),)


@register_rule("GroupNormalization", before=21)
def _per_channel(node: Node, context: Context) -> Sequence[Node]:
    # Scale and bias per group -> per channel, each value repeated.
    x, *parameters = node.inputs
    groups, shape = node.attributes.get("num_groups"), context.spec(x).shape
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(groups, int) or groups < 1 or not isinstance(channels, int):
        raise ParseError(
            "group normalization needs a fixed number of channels and groups",
            at=f"{node}, {context.assembly.at}",
            fix="export the model with opset 21 or newer",
        )
    nodes: list[Node] = []
    for index, name in enumerate(parameters):
        parts = _repeat(f"{node.name}/{index}", name, groups, channels // groups, context)
        nodes += parts
        parameters[index] = nodes[-1].outputs[0]
    return (*nodes, replace(node, inputs=(x, *parameters)))


def _repeat(stem: str, name: str, length: int, times: int, context: Context) -> Iterator[Node]:
    """Yield nodes `stem`... that repeat the `length` elements of `name`, each `times` times."""
    # Channels of one group are neighbours: each value is repeated in place, not the whole vector.
    shapes = {"Reshape": (length, 1), "Expand": (length, times), "Flat": (length * times,)}
    for part, shape in shapes.items():
        wanted = context.constant(f"{stem}/{part}/shape", shape, "int64")
        made = context.names.take(f"{stem}/{part}")
        op = "Expand" if part == "Expand" else "Reshape"
        yield Node(f"{stem}/{part}", op, (name, wanted), (made,))
        name = made


@register_rule("Upsample", before=NEWEST_OPSET + 1)
@register_rule("Resize", before=11)
def _asymmetric(node: Node, context: Context) -> Sequence[Node]:
    # Attributes of the Resize name the choice of pixels of older opsets. A pixel was x / scale,
    # rounded down when enlarging and up when shrinking (as the test
    # resize_downsample_scales_nearest of opset 10 has it); an image of which one side grows while
    # the other shrinks is therefore resized twice.
    # Old Resize rounded down to enlarge and up to shrink, per axis; today a node rounds one way for
    # all of them.
    x, scales = _with_scales(node, context)
    (y,) = node.outputs
    mode, value = str(node.attributes.get("mode", "nearest")), context.value(scales)
    shrinks = value is not None and bool((value < 1).any())
    if value is None or not shrinks or not (value > 1).any() or mode != "nearest":
        return (_resize(node.name, x, scales, y, mode, "ceil" if shrinks else "floor"),)
    between = context.names.take(f"{y}/enlarged")
    grown = context.constant(f"{node.name}/enlarge", np.maximum(value, 1), value.dtype)
    shrunk = context.constant(f"{node.name}/shrink", np.minimum(value, 1), value.dtype)
    return (
        _resize(f"{node.name}/enlarge", x, grown, between, mode, "floor"),
        _resize(node.name, between, shrunk, y, mode, "ceil"),
    )


def _with_scales(node: Node, context: Context) -> Sequence[str]:
    """Return the inputs of `node` in `context`; before opset 9 the scales were an attribute."""
    if "scales" not in node.attributes:
        return node.inputs
    return *node.inputs, context.constant(
        f"{node.name}/scales", node.attributes["scales"], "float32"
    )


def _resize(name: str, x: str, scales: str, y: str, mode: str, rounding: str) -> Node:
    attributes: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric"}
    attributes |= {"mode": mode, "nearest_mode": rounding}
    return Node(name, "Resize", (x, ABSENT, scales), (y,), attributes)


@register_rule("ai.onnx.ml.ZipMap", before=NEWEST_OPSET + 1)
def _zip_map(node: Node, context: Context) -> Sequence[Node]:
    # Classes and their numbers stay a table: one column for each of the classes that it lists.
    return (replace(node, op="Identity", attributes={}),)
