"""Shares of a program's time by node, from ONNX Runtime's profiler."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph

pytest.importorskip("onnxruntime")

from plait.devices.ort.device import OrtDevice
from plait.devices.ort.profiling import join_nodes


def network() -> Graph:
    """Return a convolution that ONNX Runtime joins with what follows it, and a product."""
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", (1, 16, 24, 24))
    weights = b.constant(np.full((16, 16, 3, 3), 0.1, np.float32))
    h = b.op("Conv", x, weights, pads=[1, 1, 1, 1], name="conv")
    h = b.op("Relu", h, name="relu")
    h = b.op("Reshape", h, np.array([16, 576]), name="flat")
    b.output("y", b.op("MatMul", h, b.constant(np.ones((576, 8), np.float32)), name="product"))
    return b.build()


def test_every_node_has_a_share_also_those_that_were_joined() -> None:
    shares = OrtDevice().shares(network())
    assert set(shares) == {"conv", "relu", "flat", "product"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares[name] for name in ("conv", "relu", "product")) > 0


def test_what_was_not_run_is_part_of_its_reader_or_else_of_its_maker() -> None:
    graph = network()
    by_last = join_nodes(graph, ["relu", "product"])
    assert {n: [one.name for one in found] for n, found in by_last.items()} == {
        "relu": ["relu", "conv"],
        "product": ["product", "flat"],
    }
    by_first = join_nodes(graph, ["conv"])
    assert [node.name for node in by_first["conv"]] == ["conv", "relu", "flat", "product"]
    assert join_nodes(graph, []) == {}


def test_a_graph_without_anything_to_compute_has_no_shares() -> None:
    b = pl.GraphBuilder("empty")
    b.output("y", b.op("Relu", b.input("x", "float32", (0, 4))))
    assert OrtDevice().shares(b.build()) == {}


async def test_costs_know_the_nodes_of_a_program_that_onnx_runtime_ran() -> None:
    graph = network()
    plan = pl.plan(graph, ["ort"], passes=())
    async with pl.Session(plan, measure=True) as session:
        for _ in range(3):
            await session.run({"x": np.ones((1, 16, 24, 24), np.float32)})
        costs = pl.Costs.from_profile(session.profile(), plan)
    for node in plan.graph.nodes:
        assert costs.basis("ort", plan.graph, node) == "measured"
    nodes = sum(costs.node_s("ort", plan.graph, node) for node in plan.graph.nodes)
    (program,) = costs.programs["ort"].values()
    assert nodes == pytest.approx(program.trusted_s)
