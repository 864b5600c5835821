"""Masks of attention with a row for each query, as ONNX Runtime's kernel needs them.

Up to 1.31.1 the kernel does not repeat a mask of one row, as used for padding: it fails at run time
for every item. So does 1.32.0 with models older than its newest opset.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph
from ...graph.core.operator import Call
from ...graph.formats.onnx.writer import to_onnx
from ...graph.operators.attention import MASK
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
    """Return the static `graph` with masks of one row repeated for all queries."""
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
