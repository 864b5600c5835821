"""Explicit padding for dilated convolutions with `SAME` padding.

Kernels of ONNX Runtime refuse the combination at run time, up to 1.32.0. PyTorch exports such
convolutions.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.core.attribute import Attributes
from ...graph.core.ir import Graph, Node
from ...graph.operators.windows import resolve_window
from ...graph.passes.rewriting import Rewriter


def with_explicit_pads(graph: Graph) -> Graph:
    """Return an equal of `graph` with explicit pads of dilated convolutions."""
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
