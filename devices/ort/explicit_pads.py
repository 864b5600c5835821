"""Padding by numbers, for windows that are dilated and padded by `SAME`.

The kernels of ONNX Runtime refuse both at once while they run (Conv, ConvInteger), or compute the
wrong shape (AveragePool, MaxPool, LpPool), up to 1.32.0. PyTorch exports such convolutions.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.ir import Graph, Node
from ...graph.passes.rewriting import Rewriter
from ...graph.windows import resolve_window

_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
_WINDOWS = (*_WEIGHTS, "AveragePool", "LpPool", "MaxPool")


def with_explicit_pads(graph: Graph) -> Graph:
    """Return a graph that computes the same, with numbers as pads of dilated windows."""
    if not any(map(_is_concerned, graph.nodes)):
        return graph
    rewriter = Rewriter(graph)
    for node in filter(_is_concerned, rewriter.find(*_WINDOWS)):
        shape = rewriter.tensors[node.inputs[0]].static_shape
        kernel = node.attributes["kernel_shape"]
        if kernel is None:
            kernel = rewriter.tensors[node.inputs[_WEIGHTS[node.op]]].static_shape[2:]
        window, _ = resolve_window(shape[2:], node.attributes, kernel)
        assert window is not None, "shapes are known"
        pads = (*window.pads_begin, *window.pads_end)
        attributes = {**node.attributes, "auto_pad": "NOTSET", "pads": pads}
        rewriter.replace([node], [replace(node, attributes=attributes)])
    return rewriter.result()


def _is_concerned(node: Node) -> bool:
    if node.op not in _WINDOWS or not node.attributes["auto_pad"].startswith("SAME"):
        return False
    return any(dilation != 1 for dilation in node.attributes.get("dilations") or ())
