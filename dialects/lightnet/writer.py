"""Writes graphs as LightNet's files: the model in JSON or its text form, the weights in text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.check import check
from ...graph.core.ir import Graph, Node
from ...graph.operators.windows import Window, resolve_transposed_window, resolve_window
from ...graph.passes.unneeded import remove_dead
from ...graph.values.errors import GraphError
from .arithmetic import ELEMENTWISE
from .document import Document, refused_node_error

NodeWriter: TypeAlias = Callable[[Document, Node], None]

_WRITERS: dict[str, NodeWriter] = {}
_ELEW = {op: name for name, op in ELEMENTWISE.items()}


def write_node(document: Document, node: Node) -> None:
    """Write `node` to `document` as one or several operators; GraphError if LightNet lacks them."""
    if any(node.outputs[1:]):
        raise refused_node_error(node, f"{node.op} of several outputs")
    document.shape(node.outputs[0])
    _WRITERS[node.op](document, node)


def _register_writer(*ops: str) -> Callable[[NodeWriter], NodeWriter]:
    def register(writer: NodeWriter) -> NodeWriter:
        _WRITERS.update(dict.fromkeys(ops, writer))
        return writer

    return register


@_register_writer("Conv")
def _conv(document: Document, node: Node) -> None:
    x, w, channels = _read_convolution(document, node, 0)
    window, _ = resolve_window(document.shape(x)[2:], node.attributes, document.shape(w)[2:])
    _write_convolution(document, node, "conv2d", channels, window)


@_register_writer("ConvTranspose")
def _conv_transpose(document: Document, node: Node) -> None:
    x, w, channels = _read_convolution(document, node, 1)
    channels *= node.attributes["group"]
    spatial, out = document.shape(x)[2:], document.shape(node.outputs[0])
    window, _ = resolve_transposed_window(spatial, node.attributes, document.shape(w)[2:])
    assert window is not None, "all shapes are known"
    lengths = (
        (n - 1) * stride + reach - begin - end
        for n, stride, reach, begin, end in zip(
            spatial, window.strides, window.extents, window.pads_begin, window.pads_end, strict=True
        )
    )
    # ONNX may have the output's lengths, LightNet the padding at its end.
    extra = [whole - length for whole, length in zip(out[2:], lengths, strict=True)]
    if min(extra) < 0:
        raise refused_node_error(node, "transposed convolution that is cut at the end")
    more = {"output_dims": list(out), "output_padding": extra}
    _write_convolution(document, node, "deconv2d", channels, window, **more)


@_register_writer("MaxPool", "AveragePool")
def _pool(document: Document, node: Node) -> None:
    kernel, x = node.attributes["kernel_shape"], node.inputs[0]
    if len(kernel) != 2 or node.attributes["ceil_mode"]:
        raise refused_node_error(node, "pool of other than two axes, or that rounds up")
    window, _ = resolve_window(document.shape(x)[2:], node.attributes, kernel)
    assert window is not None, "all shapes are known"
    # Irrelevant without padding.
    counted = node.attributes.get("count_include_pad", False)
    padded = any((*window.pads_begin, *window.pads_end))
    if any(one != 1 for one in window.dilations) or (counted and padded):
        raise refused_node_error(node, "pool with gaps, or that counts padding")
    _write_pool(document, node, window)


@_register_writer("GlobalMaxPool", "GlobalAveragePool")
def _global_pool(document: Document, node: Node) -> None:
    spatial = document.shape(node.inputs[0])[2:]
    if len(spatial) != 2:
        raise refused_node_error(node, "pool of other than two axes")
    _write_pool(document, node, Window(spatial, (1, 1), (1, 1), (0, 0), (0, 0)))


@_register_writer("Gemm", "MatMul")
def _product(document: Document, node: Node) -> None:
    # For lack of an operator, a product with a constant is a convolution of one cell.
    shape, weight = document.shape(node.inputs[0]), document.value(node.inputs[1])
    if len(shape) != 2 or weight is None or weight.ndim != 2 or node.attributes.get("transA"):
        raise refused_node_error(node, "product but of a matrix with a constant")
    weight = weight * weight.dtype.type(node.attributes.get("alpha", 1))
    # A convolution has a row of weights for each feature, like transB.
    weight = weight if node.attributes.get("transB") else weight.T
    bias = document.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else 0
    if bias is None or np.ndim(bias) > 1:
        raise refused_node_error(node, "product with anything but a constant row added")
    row = np.multiply(bias, node.attributes.get("beta", 1))
    # A single number, or a missing bias, is broadcast to a row.
    row = np.broadcast_to(row, weight.shape[:1]).astype(weight.dtype)
    cells = document.fresh(node.outputs[0])
    source = _get_source(document, node)
    document.write("reshape", source, cells, document.fresh(node.name), dims=[*shape, 1, 1])
    inputs = {
        "src": cells,
        "weight": document.constant(weight[:, :, None, None], document.fresh(node.inputs[1])),
        "bias": document.constant(row, document.fresh(f"{node.name}_bias")),
    }
    made, name = document.fresh(node.outputs[0]), document.fresh(node.name)
    one = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    document.write("conv2d", inputs, made, name, group=1, dilation=[1, 1], **_list_window(one))
    _emit(document, node, "reshape", {"src": made}, dims=list(document.shape(node.outputs[0])))


@_register_writer("BatchNormalization")
def _normalization(document: Document, node: Node) -> None:
    if node.attributes["training_mode"] or len(document.shape(node.inputs[0])) != 4:
        raise refused_node_error(
            node, "batch normalization but of four axes, and not while training"
        )
    names = ("src", "scale", "offset", "mean", "var")
    inputs = dict(zip(names, map(document.operand, node.inputs), strict=True))
    _emit(document, node, "batchnorm", inputs, epsilon=node.attributes["epsilon"])


@_register_writer(*_ELEW)
def _elementwise(document: Document, node: Node) -> None:
    shape = document.shape(node.outputs[0])
    if node.op == "Pow" and document.graph.tensors[node.outputs[0]].dtype.kind != "f":
        raise refused_node_error(node, "power of integers that wraps")
    operands = [document.operand(one, shape) for one in node.inputs]
    _write_chain(document, node, "elew", operands, elew_op=_ELEW[node.op])


@_register_writer("Concat")
def _concat(document: Document, node: Node) -> None:
    operands = [document.operand(one) for one in node.inputs]
    rank = len(document.shape(node.outputs[0]))
    _write_chain(document, node, "concat", operands, axis=node.attributes["axis"] % rank)


@_register_writer("Relu", "Sigmoid", "Identity")
def _unary(document: Document, node: Node) -> None:
    optype = "forward" if node.op == "Identity" else node.op.lower()
    _emit(document, node, optype, _get_source(document, node))


@_register_writer("LeakyRelu")
def _leaky(document: Document, node: Node) -> None:
    _emit(document, node, "lrelu", _get_source(document, node), negslope=node.attributes["alpha"])


@_register_writer("Softmax")
def _softmax(document: Document, node: Node) -> None:
    axis = node.attributes["axis"] % len(document.shape(node.inputs[0]))
    _emit(document, node, "softmax", _get_source(document, node), axis=axis)


@_register_writer("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(document: Document, node: Node) -> None:
    dims = list(document.shape(node.outputs[0]))
    _emit(document, node, "reshape", _get_source(document, node), dims=dims)


@_register_writer("Transpose")
def _transpose(document: Document, node: Node) -> None:
    rank = len(document.shape(node.inputs[0]))
    axes = node.attributes["perm"] or range(rank)[::-1]
    _emit(document, node, "transpose", _get_source(document, node), axes=[a % rank for a in axes])


@_register_writer("ReduceMax")
def _reduce(document: Document, node: Node) -> None:
    axes = document.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if axes is None or axes.size != 1 or not node.attributes["keepdims"]:
        raise refused_node_error(node, "maximum but along one axis, which is kept")
    axis = int(axes.item()) % len(document.shape(node.inputs[0]))
    _emit(document, node, "maxreduce", _get_source(document, node), axis=axis)


@_register_writer("Resize")
def _resize(document: Document, node: Node) -> None:
    before, after = document.shape(node.inputs[0]), document.shape(node.outputs[0])
    how = node.attributes["coordinate_transformation_mode"], node.attributes["nearest_mode"]
    whole = all(b % a == 0 for a, b in zip(before, after, strict=True))
    centred = how == ("half_pixel", "round_prefer_ceil")
    # For whole ratios a new centre is never halfway between two cells, so these modes are equal.
    alike = how in (("half_pixel", "round_prefer_floor"), ("asymmetric", "floor"))
    if node.attributes["mode"] != "nearest" or not (centred or (whole and alike)):
        raise refused_node_error(node, "resize but to the nearest centre, halves rounded up")
    axes = list(node.attributes["axes"] or range(len(before)))
    ratios = (np.array(after) / before)[axes]
    scales = document.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else ratios
    stretched = node.attributes["keep_aspect_ratio_policy"] == "stretch"
    if not stretched or scales is None or not np.array_equal(ratios, scales):
        raise refused_node_error(node, "resize by another scale than that of the lengths")
    source = _get_source(document, node)
    _emit(document, node, "resize", source, mode="TL_NEAREST", dims=list(after))


@_register_writer("Slice")
def _slice(document: Document, node: Node) -> None:
    given = dict(zip(("data", "starts", "ends", "axes", "steps"), node.inputs, strict=False))
    known = {name: document.value(one) for name, one in given.items() if one}
    starts, axes, steps = known.get("starts"), known.get("axes"), known.get("steps")
    shape, out = document.shape(node.inputs[0]), document.shape(node.outputs[0])
    if starts is None or (steps is not None and any(steps != 1)):
        raise refused_node_error(node, "slice but of known places, one by one")
    chosen = range(len(starts)) if axes is None else [int(a) % len(shape) for a in axes]
    parts = [
        {"axis": axis, "start": _start(int(start), shape[axis]), "len": out[axis]}
        for axis, start in zip(chosen, starts, strict=True)
    ]
    tensor = document.operand(node.inputs[0])
    if not parts:
        _emit(document, node, "forward", {"src": tensor})
        return
    # LightNet slices along one axis at a time; only the last slice has the name of the result.
    for part in parts[:-1]:
        made = document.fresh(node.outputs[0])
        tensor = document.write("slice", {"src": tensor}, made, document.fresh(node.name), **part)
    document.write("slice", {"src": tensor}, node.outputs[0], node.name, **parts[-1])


def _start(start: int, length: int) -> int:
    return min(max(start + length if start < 0 else start, 0), length)


def _emit(
    document: Document, node: Node, optype: str, inputs: dict[str, str], **parameters: Any
) -> None:
    document.write(optype, inputs, node.outputs[0], node.name, **parameters)


def _get_source(document: Document, node: Node) -> dict[str, str]:
    return {"src": document.operand(node.inputs[0])}


def _write_chain(
    document: Document, node: Node, optype: str, operands: Sequence[str], **parameters: Any
) -> None:
    """Write `node` to `document` as a chain of operators `optype`, since each takes two `operands`.

    `parameters` are those of each operator.
    """
    first, *others = operands
    if not others:
        _emit(document, node, "forward", {"src": first})
        return
    for other in others[:-1]:
        made, name = document.fresh(node.outputs[0]), document.fresh(node.name)
        first = document.write(optype, {"src1": first, "src2": other}, made, name, **parameters)
    _emit(document, node, optype, {"src1": first, "src2": others[-1]}, **parameters)


def _read_convolution(document: Document, node: Node, axis: int) -> tuple[str, str, int]:
    x, w = node.inputs[:2]
    if len(document.shape(w)) != 4:
        raise refused_node_error(node, "convolution of other than two axes")
    return x, w, document.shape(w)[axis]


def _write_convolution(
    document: Document, node: Node, optype: str, channels: int, window: Window | None, **more: Any
) -> None:
    assert window is not None, "all shapes are known"
    x, w, *rest = node.inputs
    if rest and rest[0]:
        bias = document.operand(rest[0])
    else:
        # LightNet requires a bias.
        zeros = np.zeros(channels, document.graph.tensors[x].dtype)
        bias = document.constant(zeros, document.fresh(f"{node.name}_bias"))
    inputs = {"src": document.operand(x), "weight": document.operand(w), "bias": bias}
    more = {"group": node.attributes["group"], "dilation": list(window.dilations), **more}
    _emit(document, node, optype, inputs, **_list_window(window), **more)


def _write_pool(document: Document, node: Node, window: Window) -> None:
    optype = "maxpool2d" if "Max" in node.op else "avgpool2d"
    _emit(document, node, optype, _get_source(document, node), **_list_window(window))


def _list_window(window: Window) -> dict[str, Any]:
    return {
        "size": list(window.kernel),
        "stride": list(window.strides),
        "padding": [*window.pads_begin, *window.pads_end],
        "autopad": "NOTSET",
    }


SUFFIX = ".net"
"""Suffix of files in the text form."""


def dump_lightnet(graph: Graph, *, as_text: bool = False) -> tuple[bytes, bytes]:
    """Return the LightNet model and the weights of `graph`.

    The model is JSON, or with `as_text` the text form. Inputs are created without a value.
    Constants that weights cannot hold are written into the model. Names in the text form consist of
    letters, digits and ``_``: other names are replaced, except those of inputs and outputs.

    Raises GraphError if the graph breaks an invariant, a shape is not known, or LightNet lacks
    operators; the message names all of these.
    """
    # Dead nodes might lack an operator there.
    live = remove_dead(check(graph))
    # All unknown operators at once, before the first refusal of a single node.
    unknown = sorted({node.op for node in live.nodes if node.op not in _WRITERS})
    if unknown:
        raise GraphError(
            f"LightNet has no operators for {', '.join(unknown)}",
            at=graph.name,
            fix="save a .plait file or an ONNX model",
        )
    document = Document(live)
    for name in live.inputs:
        document.create(name, live.tensors[name], from_file=True)
    for node in live.nodes:
        write_node(document, node)
    return document.finish(as_text=as_text)


def make_files(graph: Graph, path: Path) -> Mapping[Path, bytes]:
    """Return the contents of the files of `graph`: the model at `path`, the weights next to it.

    The model is in the text form if the path ends in ``.net``, else in JSON.
    """
    model, weights = dump_lightnet(graph, as_text=path.suffix == SUFFIX)
    return {path.with_suffix(".wts"): weights, path: model}
