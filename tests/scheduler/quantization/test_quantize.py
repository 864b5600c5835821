"""Post-training quantisation, from floats and items to integers and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.quantization.accuracy import compare
from plait.scheduler.quantization.ranges import METHODS, Method

F32 = np.float32
FLOAT_PRODUCTS = {"Conv", "MatMul", "Gemm"}


def weights(*shape: int, seed: int = 0) -> Array:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (values / np.sqrt(values[0].size)).astype(F32)


def network() -> Graph:
    """Build a small network with what convolutional ones have."""
    b = pl.GraphBuilder("network")
    h = b.input("x", "float32", ("n", 3, 8, 8))
    h = b.op("Relu", b.op("Conv", h, weights(8, 3, 3, 3), weights(8), name="stem"))
    h = b.op("MaxPool", h, kernel_shape=(2, 2), strides=(2, 2))
    h = b.op("HardSwish", b.op("Conv", h, weights(8, 1, 3, 3), group=8, name="depth"))
    h = b.op("Gemm", b.op("Flatten", h), weights(8, 5), weights(5), name="head")
    b.output("y", b.op("Softmax", h))
    return b.build()


def items(count: int = 6, seed: int = 0) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((4, 3, 8, 8)).astype(F32)} for _ in range(count)]


def operators(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


@pytest.mark.parametrize("ranges", METHODS)
def test_a_quantised_network_yields_nearly_the_same(ranges: Method) -> None:
    made = pl.quantize(network(), items(), ranges=ranges)
    accuracy = made.accuracy(items(seed=1))["y"]
    assert accuracy.sqnr_db > 20
    assert accuracy.same_class is not None
    assert accuracy.same_class > 0.8


def test_products_are_of_integers_and_the_rest_is_not_touched() -> None:
    graph = network()
    made = pl.quantize(graph, items())
    assert not FLOAT_PRODUCTS & operators(made.graph)
    assert {"QLinearConv", "ConvInteger", "MatMulInteger"} <= operators(made.graph)
    assert "Relu" not in operators(made.graph), "saturating does what it did"
    assert FLOAT_PRODUCTS - {"MatMul"} <= operators(graph), "what is given stays as it is"
    assert (made.graph.inputs, made.graph.outputs) == (graph.inputs, graph.outputs)
    constants = (sum(a.nbytes for a in g.constants.values()) for g in (graph, made.graph))
    before, after = constants
    assert after < before


def test_quantised_dequantised_form_yields_the_same_within_a_step() -> None:
    qdq, integer = (pl.quantize(network(), items(), form=form) for form in ("qdq", "integer"))
    assert {"Conv", "MatMul", "QuantizeLinear", "DequantizeLinear"} <= operators(qdq.graph)
    fed = items(1, seed=1)[0]
    a, b = (pl.run(made.graph, fed)["y"] for made in (qdq, integer))
    np.testing.assert_allclose(a, b, atol=0.02)


@pytest.mark.parametrize("suffix", [".plait", ".onnx"])
def test_a_saved_network_yields_the_same_bits(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("onnx")
    made = pl.quantize(network(), items())
    pl.save(made.graph, tmp_path / f"network{suffix}")
    loaded = pl.load(tmp_path / f"network{suffix}")
    fed = items(1, seed=1)[0]
    (a,), (b,) = (pl.run(graph, fed).values() for graph in (made.graph, loaded))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("pattern", ["stem", "st*", "Conv"])
def test_excluded_nodes_stay_in_floats(pattern: str) -> None:
    made = pl.quantize(network(), items(), exclude=[pattern])
    assert "Conv" in operators(made.graph)
    assert made.kept["stem"] == "excluded"
    assert ("depth" in made.kept) == (pattern == "Conv")


def test_signed_activations_yield_nearly_the_same() -> None:
    made = pl.quantize(network(), items(), activations="int8")
    assert made.accuracy(items(seed=1))["y"].sqnr_db > 25


def test_weights_of_different_sizes_need_scales_of_their_own() -> None:
    b = pl.GraphBuilder("uneven")
    w = weights(6, 4) * np.array([1e-3, 1, 1, 1], F32)
    b.output("y", b.op("MatMul", b.input("x", "float32", ("n", 6)), w))
    fed = [{"x": np.random.default_rng(i).standard_normal((9, 6)).astype(F32)} for i in range(3)]
    expected = fed[0]["x"] @ w[:, 0]
    each, one = (
        np.abs(
            pl.run(pl.quantize(b.build(), fed, per_channel=way).graph, fed[0])["y"][:, 0] - expected
        )
        for way in (True, False)
    )
    assert each.max() < one.max() / 10


def test_both_factors_may_be_computed() -> None:
    b = pl.GraphBuilder("attention")
    x = b.input("x", "float32", ("n", 5, 8))
    b.output("y", b.op("MatMul", x, b.op("Transpose", x, perm=(0, 2, 1))))
    fed = [{"x": np.random.default_rng(0).standard_normal((2, 5, 8)).astype(F32)}]
    made = pl.quantize(b.build(), fed)
    assert "MatMulInteger" in operators(made.graph)
    assert [node.op for node in made.graph.nodes].count("QuantizeLinear") == 1
    assert made.accuracy(fed)["y"].sqnr_db > 35


def test_transposed_convolutions_have_their_weights_in_bytes() -> None:
    b = pl.GraphBuilder("up")
    y = b.op("ConvTranspose", b.input("x", "float32", (1, 4, 5, 5)), weights(4, 3, 2, 2))
    b.output("y", y)
    fed = [{"x": np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(F32)}]
    made = pl.quantize(b.build(), fed)
    assert [node.op for node in made.graph.nodes] == ["DequantizeLinear", "ConvTranspose"]
    assert made.accuracy(fed)["y"].sqnr_db > 40
    assert made.weights_only == list(made.products)
    assert "0 of 1 products in integers, of 1 more the weights" in made.report()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("double", "not float32"),
        ("computed weights", "weights are computed"),
        ("infinite items", "not all numbers that it is fed are finite"),
        ("infinite weights", "is not finite"),
    ],
)
def test_what_cannot_be_quantised_stays_and_says_why(case: str, reason: str) -> None:
    dtype = "float64" if case == "double" else "float32"
    b = pl.GraphBuilder("odd")
    x = b.input("x", dtype, (1, 2, 4, 4))
    w: Any = np.full((3, 2, 2, 2), np.inf if case == "infinite weights" else 1, dtype)
    if case == "computed weights":
        w = b.op("Exp", b.input("w", dtype, (3, 2, 2, 2)))
    b.output("y", b.op("Conv", x, w, name="conv"))
    fed = {"x": np.full((1, 2, 4, 4), np.inf if case == "infinite items" else 1, dtype)}
    fed |= {"w": np.ones((3, 2, 2, 2), dtype)} if case == "computed weights" else {}
    made = pl.quantize(b.build(), [fed])
    assert reason in made.kept["conv"]
    assert operators(made.graph) >= {"Conv"}
    assert not made.products


def test_quantising_twice_finds_nothing_more() -> None:
    once = pl.quantize(network(), items()).graph
    assert not pl.quantize(once, items()).products


def test_the_costliest_product_is_found_and_left_in_floats() -> None:
    """One element of one product's input is so great that the others are lost."""
    b = pl.GraphBuilder("outlier")
    spread = np.array([3000, *[1] * 15], F32)
    fine = b.op("MatMul", b.input("x", "float32", ("n", 16)), weights(16, 4), name="fine")
    scaled = weights(16, 4) / spread[:, None]
    coarse = b.op("MatMul", b.input("z", "float32", ("n", 16)), scaled, name="coarse")
    b.output("y", b.op("Add", fine, coarse))
    random = np.random.default_rng(0)
    drawn = [random.standard_normal((2, 8, 16)).astype(F32) for _ in range(2)]
    fed = [{"x": x, "z": z * spread} for x, z in drawn]
    made = pl.quantize(b.build(), fed)
    costs = made.costs(fed)
    assert [cost.node for cost in costs] == ["coarse", "fine"]
    assert costs[0].sqnr_db < costs[1].sqnr_db - 10
    better = pl.quantize(b.build(), fed, min_sqnr_db=30)
    assert list(better.products) == ["fine"]
    assert "30 dB" in better.kept["coarse"]
    assert better.accuracy(fed)["y"].sqnr_db >= 30


def test_what_no_integers_reach_stays_in_floats() -> None:
    made = pl.quantize(network(), items(1), min_sqnr_db=500)
    assert (len(made.products), len(made.kept)) == (0, 3)
    assert made.accuracy(items(1))["y"].sqnr_db == np.inf


def test_the_report_tells_products_sizes_and_outputs() -> None:
    made = pl.quantize(network(), items(), exclude=["head*"])
    report = made.report(made.accuracy(items(1)))
    assert "2 of 3 products in integers" in report
    assert "output y: " in report
    assert "same class" in report
    assert "in floats: head/product: excluded" in report
    assert made.to_dict()["products"] == ["stem", "depth"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranges": "median"}, "ranges is 'median'"),
        ({"activations": "int4"}, "activations is 'int4'"),
        ({"form": "bytes"}, "form is 'bytes'"),
        ({"exclude": "stem"}, "exclude is 'stem'"),
        ({"exclude": ["nothing"]}, "'nothing' fits no node"),
        ({"min_sqnr_db": float("nan")}, "min_sqnr_db is nan"),
    ],
)
def test_arguments_that_make_no_sense_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.PlanError, match=message):
        pl.quantize(network(), items(1), **arguments)


def test_no_items_are_an_error() -> None:
    with pytest.raises(pl.FeedError, match="no items"):
        pl.quantize(network(), [])


def test_a_graph_is_asked_for() -> None:
    with pytest.raises(pl.PlanError, match="expected a graph"):
        pl.quantize("model.onnx", items(1))  # type: ignore[arg-type]


def test_a_trio_task_is_not_blocked() -> None:
    async def main() -> None:
        pl.quantize(network(), items(1))

    with pytest.raises(pl.SessionError, match="block"):
        trio.run(main)


def test_errors_are_measured_as_defined() -> None:
    a, b = np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    found = compare([({"y": a}, {"y": b}), ({"y": b}, {"y": b})])["y"]
    assert (found.max_error, found.mean_error) == (0.5, 1.0 / 8)
    signal, noise = np.square(a).sum() + np.square(b).sum(), 0.5
    assert found.sqnr_db == pytest.approx(10 * np.log10(signal / noise))
    assert found.same_class == 0.75


def test_rows_that_are_no_probabilities_have_no_class() -> None:
    a = np.array([[3.0, 1.0]])
    assert compare([({"y": a}, {"y": a})])["y"].same_class is None


def test_no_error_is_infinitely_good_but_plain_json() -> None:
    a = np.ones((2, 2))
    found = compare([({"y": a}, {"y": a})])["y"]
    assert found.sqnr_db == np.inf
    assert found.to_dict()["sqnr_db"] is None
