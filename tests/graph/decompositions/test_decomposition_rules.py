"""Decompositions compute what the operator's definition says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bound import Bound
from formal_node import formal_node
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from node_strategies.drawing import NodeCase
from plait.devices.formal.device import FormalDevice
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.core.operator import find_operator
from plait.graph.core.traits import Part
from plait.graph.decompositions.rules import decompose, decompositions
from plait.graph.passes.rewriting import Rewriter
from single_node import AnyArray, single_node_graph

UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)
RULES = [
    (op, index)
    for op, rules in sorted(decompositions().items())
    for index in range(len(rules))
    if Part.DEFINITION not in find_operator(op).lacks  # those are compared with what runs them
]

WITHIN_ONE = ("QLinearConv", "QLinearMatMul", "QuantizeLinear", "DynamicQuantizeLinear")
"""What is rounded once more often than its definition."""


@pytest.fixture(scope="module")
def formal() -> Iterator[FormalDevice]:
    device = FormalDevice()
    device.open()
    yield device
    device.close()


def moderate(case: NodeCase) -> list[AnyArray | None]:
    """Return the inputs without infinities, NaNs and what overflows in between."""
    return [
        x
        if x is None or x.dtype.kind != "f"
        else np.clip(np.nan_to_num(x, posinf=1, neginf=-1), -9, 9).astype(x.dtype)
        for x in case.inputs
    ]


def written_out(graph: Graph, rule: tuple[str, int]) -> Graph | None:
    rewriter = Rewriter(graph)
    (node,) = graph.nodes
    made = decompose(rewriter, node, decompositions()[rule[0]][rule[1]])
    if made is None:
        return None
    assert all(one.op != node.op or one != node for one in made)
    rewriter.replace([node], made)
    return check(rewriter.result())


def compare(op: str, inputs: list[AnyArray | None], found: AnyArray, wanted: AnyArray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "c" or op == "CastLike":
        np.testing.assert_array_equal(found, wanted)
        return
    if wanted.dtype.kind != "f":
        apart = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
        assert apart.max(initial=0) <= (op in WITHIN_ONE)
        return
    floats = [x for x in (*inputs, wanted) if x is not None and x.dtype.kind == "f" and x.size]
    unit = max([float(np.finfo(x.dtype).eps) for x in floats], default=0.0)
    size = 1 + max([float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in floats], default=0.0)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=128 * unit, atol=128 * unit * size
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule[0]}-{rule[1]}")
@settings(max_examples=2, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_a_rule_computes_what_the_definition_says(
    formal: FormalDevice, rule: tuple[str, int], data: st.DataObject
) -> None:
    op = rule[0]
    case = STRATEGIES[op](data.draw)
    inputs = moderate(case)
    constant = {*case.constant, *range(1, len(inputs))}
    graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, constant)
    assume(all(spec.size < 300 for spec in graph.tensors.values()))
    simpler = written_out(graph, rule)
    assume(simpler is not None)
    assert simpler is not None
    fed = {name: np.asarray(inputs[int(name[1:])]) for name in graph.inputs}
    with Bound(formal, simpler) as bound:
        results = bound.run(fed)
    reference = formal_node(op, inputs, case.attributes, case.n_outputs, constant)
    for name, wanted in zip(graph.outputs, reference, strict=True):
        compare(op, inputs, results[name], wanted)


def test_gemm_is_written_out_without_c_where_beta_is_zero() -> None:
    arrays = [np.ones((2, 2), np.float32) for _ in range(3)]
    made = written_out(single_node_graph("Gemm", arrays, {"beta": 0.0}, 1, set()), ("Gemm", 0))
    assert made is not None
    assert [node.op for node in made.nodes] == ["MatMul"]
