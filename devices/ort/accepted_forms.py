"""Forms of nodes that kernels of ONNX Runtime accept, where they would fail for every item."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.attribute import Attributes
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call
from ...graph.formats.onnx.writer import to_onnx
from ...graph.operators.attention import MASK
from ...graph.operators.windows import resolve_window
from ...graph.passes.rewriting import Rewriter
from .runtime import find_newest_opset, load, make_options


@cache
def can_repeat_rows() -> bool:
    """Return whether the kernel repeats one row for all queries, by running a small node."""
    b = GraphBuilder("probe")
    heads = b.input("heads", "float32", (1, 1, 2, 1))
    mask = b.input("mask", "float32", (1, 1, 1, 2))
    b.output("y", b.op("Attention", heads, heads, heads, mask))
    session = load(to_onnx(b.build(), opset=find_newest_opset()), make_options())
    fed = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 1, 2), np.float32)
    try:
        session.run(None, dict(zip(("heads", "mask"), fed, strict=True)))
    except Exception:
        return False
    return True


def with_whole_masks(graph: Graph) -> Graph:
    """Return the static `graph` with masks of one row repeated for all queries.

    Up to 1.31.1 the kernel of attention does not repeat a mask of one row, as used for padding. Nor
    does 1.32.0 with models older than its newest opset.
    """
    if not any(node.op == "Attention" for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.find("Attention"):
        shape = _get_whole_shape(rewriter.call(node))
        if shape is not None and not can_repeat_rows():
            name = f"{node.name}/mask"
            target = rewriter.constant(np.array(shape), f"{name}/shape")
            whole = rewriter.make("Expand", (node.inputs[MASK], target), name=name)
            inputs = (*node.inputs[:MASK], *whole.outputs, *node.inputs[MASK + 1 :])
            rewriter.replace([node], [whole, replace(node, inputs=inputs)])
    return rewriter.result()


def _get_whole_shape(call: Call) -> tuple[int, ...] | None:
    if not call.has(MASK):
        return None
    queries = call.spec(0).static_shape[-2]
    *outer, keys = call.spec(MASK).static_shape
    row = tuple(outer[-1:])
    return None if row == (queries,) else (*outer[:-1], queries, keys)


def with_explicit_pads(graph: Graph) -> Graph:
    """Return `graph` with explicit pads of dilated convolutions, which are `SAME` from PyTorch.

    Kernels refuse the combination at run time, up to 1.32.0.
    """
    nodes = [node for node in graph.nodes if _is_concerned(node)]
    if not nodes:
        return graph
    rewriter = Rewriter(graph)
    for node in nodes:
        shape = rewriter.tensors[node.inputs[0]].static_shape
        weights = node.inputs[node.operator.inputs.split().index("w")]
        kernel = rewriter.tensors[weights].static_shape[2:]
        window, _ = resolve_window(shape[2:], node.attributes, kernel)
        assert window is not None, "shapes are known"
        pads = (*window.pads_begin, *window.pads_end)
        attributes = {**node.attributes, "auto_pad": "NOTSET", "pads": pads}
        rewriter.replace([node], [replace(node, attributes=attributes)])
    return rewriter.result()


def _is_concerned(node: Node) -> bool:
    if "w" not in node.operator.inputs.split() or "output_shape" in node.attributes:
        return False
    return is_dilated_same(node.attributes)


def is_dilated_same(attributes: Attributes) -> bool:
    """Return whether a window of `attributes` is dilated, with padding that lengths determine."""
    dilations = attributes.get("dilations") or ()
    return attributes.get("auto_pad", "").startswith("SAME") and any(d != 1 for d in dilations)
