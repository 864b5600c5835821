from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import plait as pl
import pytest

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from plait.devices.device import check_support
from plait.devices.ort import support as ort_support
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.engine import Engine
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call
from plait.graph.operators.bounded_call import make_bounded_call
from plait.graph.values.tensor import Array


def scaled() -> Graph:
    """Convolutions with scales and shifts behind them, which passes ask devices about."""
    builder = pl.GraphBuilder("scaled")
    h = builder.input("x", "float32", (1, 4, 8, 8))
    for _ in range(6):
        h = builder.op("Conv", h, np.ones((4, 4, 1, 1), "float32"))
        h = builder.op("Add", builder.op("Mul", h, np.float32(2)), np.float32(1))
        h = builder.op("Mul", h, builder.op("Sigmoid", h))
    builder.output("y", h)
    return builder.build()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Node, Call]]:
    """Return what ONNX Runtime's rules are asked about, in order."""
    found: list[tuple[Node, Call]] = []
    rules = ort_support.supports

    def supports(node: Node, call: Call, engine: Engine) -> Any:
        found.append((node, call))
        return rules(node, call, engine)

    monkeypatch.setattr(ort_support, "supports", supports)
    return found


@pytest.mark.parametrize("devices", [["ort"], ["ort", "cpu"], ["cpu", "ort"]])
def test_planning_asks_about_each_node_once(
    devices: list[str], asked: list[tuple[Node, Call]]
) -> None:
    pl.plan(scaled(), devices)
    assert asked
    assert max(Counter((id(node), call.inputs) for node, call in asked).values()) == 1


def test_a_node_is_asked_about_again_where_its_shapes_or_constants_are_others(
    asked: list[tuple[Node, Call]],
) -> None:
    device, graph = OrtDevice(), scaled()
    node = graph.nodes[0]
    weights = node.inputs[1]
    longer = {**graph.tensors, "x": pl.TensorSpec("float32", (2, 4, 8, 8))}
    others = {**graph.constants, weights: np.zeros((4, 4, 1, 1), "float32")}
    for again in (graph, replace(graph, tensors=longer), replace(graph, constants=others)):
        for _ in range(2):
            assert check_support(again, node, device).ok
    assert len(asked) == 3


def test_an_answer_keeps_no_constants() -> None:
    device, graph = OrtDevice(), scaled()
    weights = ref(graph.constants[graph.nodes[0].inputs[1]])
    assert check_support(graph, graph.nodes[0], device).ok
    del graph
    gc.collect()
    assert weights() is None


def _pick(x: Array) -> Array:
    return x[x > 0]


def test_functions_of_bounded_results_are_refused_as_functions() -> None:
    spec = pl.TensorSpec("float32", ("count",))
    picked = pl.operator(spec, inputs=[pl.TensorSpec("float32", (4,))], name="test.picked")(_pick)
    b = pl.GraphBuilder("picked")
    b.output("y", b.call(picked, b.input("x", "float32", (4,))))
    graph = b.build()
    node = make_bounded_call(graph, graph.nodes[0], [pl.TensorSpec("float32", (4,))])
    call = Call((graph.tensors["x"],), (None,), node.attributes, n_outputs=2)
    said = pl.device("ort").supports(node, call)
    assert said == (False, "Python functions do not run on 'ort' devices")
