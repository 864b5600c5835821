"""Nodes that a device without double precision cannot compute."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from generated_cases import all_cases
from generators import list_generated_ops
from plait.devices.codegen.registry import computes_float64, find_refusal, generate
from plait.graph.core.ir import Graph, Node
from single_node import single_node_graph

HALVES, FLOATS, INTEGERS, DOUBLES, BYTES = (
    np.full(1, 2, dtype) for dtype in ("float16", "float32", "int32", "float64", "int8")
)
SCALE = np.float32(0.5)
SIZES = np.array([7], np.int64)


def has_float64(graph: Graph, node: Node) -> bool:
    """True when the word is in a node's code."""
    code = generate(node, graph.call(node), graph.output_specs(node))
    texts = [text for each in code.kernels for text in (each.body, *each.functions)]
    types = [parameter.ctype for each in code.kernels for parameter in each.parameters]
    return any(re.search(r"(\b|_)[fF]64(\b|_)", text) for text in (*texts, *types))


def test_no_node_has_float64_in_its_code_and_keeps_quiet_about_it() -> None:
    asked = 0
    for make in all_cases().values():
        graph, _ = make()
        for node in graph.nodes:
            call = graph.call(node)
            if find_refusal(node, call) is None and node.op in list_generated_ops():
                asked += 1
                assert computes_float64(node, call) or not has_float64(graph, node), node
    assert asked > 200


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Pow", (FLOATS, FLOATS), {}, False),
        ("Pow", (FLOATS, INTEGERS), {}, True),
        ("Pow", (FLOATS, DOUBLES), {}, True),
        ("Pow", (HALVES, HALVES), {}, True),
        ("Pow", (INTEGERS, FLOATS), {}, True),
        ("Pow", (INTEGERS, INTEGERS), {}, False),
        ("QuantizeLinear", (FLOATS, SCALE), {}, False),
        ("QuantizeLinear", (FLOATS, SCALE), {"precision": "float64"}, True),
        ("QuantizeLinear", (INTEGERS, np.int32(2)), {}, True),
        ("DequantizeLinear", (BYTES, SCALE), {}, False),
        ("Range", (np.float32(0), np.float32(3), np.float32(1)), {}, True),
        ("Range", (np.int32(0), np.int32(3), np.int32(1)), {}, False),
        ("ReduceL2", (INTEGERS,), {}, True),
        ("ReduceL2", (FLOATS,), {}, False),
        ("Resize", (INTEGERS, None, None, SIZES), {"mode": "linear"}, True),
        ("Resize", (INTEGERS, None, None, SIZES), {"mode": "nearest"}, False),
        ("Resize", (FLOATS, None, None, SIZES), {"mode": "cubic"}, False),
        ("Shrink", (INTEGERS,), {}, True),
        ("Shrink", (FLOATS,), {}, False),
    ],
)
def test_float64_on_the_way_is_told_of(
    op: str, inputs: tuple[Any, ...], attributes: dict[str, Any], expected: bool
) -> None:
    constant = {3} if op == "Resize" else {0, 1, 2} if op == "Range" else set[int]()
    graph = single_node_graph(op, inputs, attributes, 1, constant)
    (node,) = graph.nodes
    assert computes_float64(node, graph.call(node)) == expected
    assert has_float64(graph, node) <= expected


def test_short_powers_of_halves_are_products() -> None:
    graph = single_node_graph("Pow", (HALVES, HALVES), {}, 1, {1})
    (node,) = graph.nodes
    assert not computes_float64(node, graph.call(node))
    assert not has_float64(graph, node)
