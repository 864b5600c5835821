"""Attention that is generated; its results are in test_network_kernels and test_drawn_nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import AnyArray
from plait.devices.codegen.registry import THREADS, find_refusal, generate
from plait.graph.core.ir import Graph
from single_node import single_node_graph


def zeros(*shape: int, dtype: str = "float32") -> AnyArray:
    return np.zeros(shape, dtype)


def answer(graph: Graph) -> str | None:
    (node,) = graph.nodes
    return find_refusal(node, graph.call(node))


X = zeros(2, 2, 3, 4)
LONG = zeros(2, 2, 3, 512)
REFUSED: dict[str, tuple[list[AnyArray | None], dict[str, Any], int, str]] = {
    "scores": ([X, X, X], {}, 4, "scores and states are not written"),
    "past": ([X, X, X, None, X, X], {}, 1, "states are not read"),
    "used": ([X, X, X, None, None, None, zeros(2, dtype="int64")], {}, 1, "states are not read"),
    "values": ([X, X, X.astype(np.float64)], {}, 1, "another dtype than keys"),
    "float64": ([X, X, X], {"softmax_precision": "float64"}, 1, "asked for in float64"),
    "long": ([LONG, LONG, X], {}, 1, "512 elements and values of 4 do not fit"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_rare_or_too_large_is_refused(what: str) -> None:
    inputs, attributes, n_outputs, why = REFUSED[what]
    found = answer(single_node_graph("Attention", inputs, attributes, n_outputs))
    assert found is not None
    assert why in found


@pytest.mark.parametrize("depth", [1, 64, 128])
def test_heads_of_usual_models_are_generated(depth: int) -> None:
    x = zeros(2, 12, 70, depth, dtype="float16")
    graph = single_node_graph("Attention", [x, x, x], {"is_causal": True})
    assert answer(graph) is None
    (node,) = graph.nodes
    (kernel,) = generate(node, graph.call(node), graph.output_specs(node)).kernels
    assert (kernel.groups, kernel.threads) == (2 * 12 * 3, THREADS)
