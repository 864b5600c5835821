"""Arguments, results and refusals of `gradients`, whatever the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from numpy.typing import NDArray
from plait.graph.core.operator import unregister_operator
from plait.graph.core.traits import FLAT
from plait.graph.gradients.formula import Formula, Term
from plait.graph.gradients.registry import Adjoint, gradient

Array = NDArray[Any]


def run(b: pl.GraphBuilder | pl.Graph, **fed: Any) -> dict[str, Array]:
    graph = b if isinstance(b, pl.Graph) else b.build()
    arrays = {name: np.asarray(x, graph.tensors[name].dtype) for name, x in fed.items()}
    return dict(pl.run(pl.plan(graph, shapes={n: x.shape for n, x in arrays.items()}), arrays))


def cube() -> tuple[pl.GraphBuilder, str, str]:
    b = pl.GraphBuilder("cube")
    x = b.input("x", "float32", (3,))
    return b, x, b.op("Mul", b.op("Mul", x, x), x)


def test_one_x_gives_one_name_and_a_list_gives_a_list() -> None:
    b, x, y = cube()
    assert isinstance(pl.gradients(b, y, x), str)
    assert len(pl.gradients(b, [y], [x])) == 1


def test_a_tensor_used_several_times_gets_the_sum() -> None:
    b, x, y = cube()
    b.output("slope", pl.gradients(b, y, x))
    np.testing.assert_allclose(run(b, x=[1, 2, -3])["slope"], [3, 12, 27])


def test_gradients_have_gradients() -> None:
    b, x, y = cube()
    slope = pl.gradients(b, y, x)
    b.output("curvature", pl.gradients(b, slope, x))
    np.testing.assert_allclose(run(b, x=[1, 2, -3])["curvature"], [6, 12, -18])


def test_several_ys_are_added_each_with_its_weights() -> None:
    b, x, y = cube()
    weights = b.constant(np.array([1, 0, 2], "float32"))
    b.output("slope", pl.gradients(b, [y, b.op("Neg", x)], x, [weights, None]))
    np.testing.assert_allclose(run(b, x=[1, 2, -3])["slope"], [2, -1, 53])


def test_an_inner_tensor_is_an_x_too() -> None:
    b = pl.GraphBuilder("inner")
    x = b.input("x", "float32", (2,))
    inner = b.op("Exp", x)
    y = b.op("Mul", inner, inner)
    to_x, to_inner = pl.gradients(b, y, [x, inner])
    b.output("to_x", to_x)
    b.output("to_inner", to_inner)
    found = run(b, x=[0, 1])
    np.testing.assert_allclose(found["to_inner"], 2 * np.exp([0, 1]), rtol=1e-6)
    np.testing.assert_allclose(found["to_x"], 2 * np.exp([0, 2]), rtol=1e-6)


def test_a_y_is_its_own_x() -> None:
    b, _, y = cube()
    b.output("one", pl.gradients(b, y, y))
    assert run(b, x=[4, 5, 6])["one"].tolist() == [1, 1, 1]


def test_what_no_y_depends_on_has_the_gradient_zero() -> None:
    b, _, y = cube()
    other = b.input("other", "float64", (2, 2))
    b.output("nothing", pl.gradients(b, y, other))
    found = run(b, x=[1, 2, 3], other=np.ones((2, 2)))["nothing"]
    assert found.dtype == np.float64
    assert found.tolist() == [[0, 0], [0, 0]]


def test_nothing_comes_through_integers() -> None:
    b = pl.GraphBuilder("steps")
    x = b.input("x", "float32", (2,))
    y = b.op("Cast", b.op("Cast", x, to="int32"), to="float32")
    b.output("slope", pl.gradients(b, y, x))
    assert run(b, x=[1.5, 2.5])["slope"].tolist() == [0, 0]


def test_a_graph_gets_outputs_and_stays_as_it_is() -> None:
    b, _, y = cube()
    b.output("y", y)
    graph = b.build()
    made = pl.gradients(graph, "y", "x")
    assert graph.outputs == ("y",)
    assert made.outputs == ("y", "gradient/x")
    found = run(made, x=[1, 2, -3])
    np.testing.assert_allclose(found["y"], [1, 8, -27])
    np.testing.assert_allclose(found["gradient/x"], [3, 12, 27])


def test_nodes_are_named_after_the_node_whose_gradient_they_are() -> None:
    b = pl.GraphBuilder("named")
    x = b.input("x", "float32", (2,))
    pl.gradients(b, b.op("Exp", x, name="grow"), x)
    assert [node.name for node in b.nodes if node.op == "Mul"] == ["gradient/grow/mul"]


def test_what_is_not_needed_is_not_built() -> None:
    b = pl.GraphBuilder("first layer")
    x = b.input("x", "float32", (2, 3, 8, 8))
    w = b.input("w", "float32", (4, 3, 3, 3))
    pl.gradients(b, b.op("Conv", x, w), w)
    assert {node.op for node in b.nodes} == {"Conv", "ConstantOfShape", "ConvWeightsGradient"}


@pytest.mark.parametrize("batch", [1, 5])
def test_lengths_may_be_symbols(batch: int) -> None:
    b = pl.GraphBuilder("layer")
    x = b.input("x", "float32", ("batch", 3))
    w, bias = b.input("w", "float32", (3, 4)), b.input("bias", "float32", (4,))
    y = b.op("Relu", b.op("Add", b.op("MatMul", x, w), bias))
    for name, made in zip("xwb", pl.gradients(b, y, [x, w, bias]), strict=True):
        b.output(f"d{name}", made)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(batch, 3)), "w": rng.normal(size=(3, 4)), "bias": np.ones(4)}
    kept = (arrays["x"] @ arrays["w"] + 1 > 0).astype(float)
    found = run(b, **arrays)
    np.testing.assert_allclose(found["dx"], kept @ arrays["w"].T, rtol=1e-5)
    np.testing.assert_allclose(found["dw"], arrays["x"].T @ kept, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["db"], kept.sum(0), rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
def test_what_may_have_been_repeated_is_summed_if_it_was(rows: int) -> None:
    b = pl.GraphBuilder("ambiguous")
    x, y = b.input("x", "float32", ("n", 2)), b.input("y", "float32", ("m", 2))
    for name, made in zip("xy", pl.gradients(b, b.op("Mul", x, y), [x, y]), strict=True):
        b.output(f"d{name}", made)
    arrays = {"x": np.arange(8.0).reshape(4, 2), "y": np.arange(1.0, 2 * rows + 1).reshape(-1, 2)}
    found = run(b, **arrays)
    np.testing.assert_allclose(found["dx"], np.broadcast_to(arrays["y"], (4, 2)))
    assert found["dy"].shape == (rows, 2)
    np.testing.assert_allclose(found["dy"].sum(0), arrays["x"].sum(0))


IMAGES: dict[str, dict[str, Any]] = {
    "strided": {"strides": [2, 2], "pads": [1, 1, 0, 0]},
    "same": {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
    "lower": {"strides": [3, 2], "auto_pad": "SAME_LOWER", "dilations": [2, 1]},
    "valid": {"auto_pad": "VALID"},
}


@pytest.mark.parametrize("way", IMAGES)
@pytest.mark.parametrize("size", [(7, 8), (9, 5)])
def test_images_may_be_of_any_size(way: str, size: tuple[int, int]) -> None:
    """By symbols the same as by numbers."""
    results = []
    for shape in (("n", 2, "h", "w"), (2, 2, *size)):
        b = pl.GraphBuilder("image")
        x = b.input("x", "float32", shape)
        w = b.constant(np.arange(54, dtype="float32").reshape(3, 2, 3, 3))
        y = b.op("AveragePool", x, kernel_shape=[2, 2], ceil_mode=True, **IMAGES[way])
        y = b.op("Conv", y, w, pads=[1] * 4)
        b.output("dx", pl.gradients(b, y, x))
        results.append(run(b, x=np.ones((2, 2, *size)))["dx"])
    np.testing.assert_array_equal(results[0], results[1])


def test_compressed_elements_go_back_to_their_places() -> None:
    b = pl.GraphBuilder("compress")
    x, kept = b.input("x", "float32", (2, 3)), b.input("kept", "bool", (3,))
    b.output("slope", pl.gradients(b, b.op("Compress", b.op("Mul", x, x), kept, axis=1), x))
    found = run(b, x=[[1, 2, 3], [4, 5, 6]], kept=[True, False, True])["slope"]
    assert found.tolist() == [[2, 0, 6], [8, 0, 12]]


def test_statistics_that_a_layer_computed_are_used_again() -> None:
    b = pl.GraphBuilder("layer")
    x, scale = b.input("x", "float32", (4, 6)), b.input("scale", "float32", (6,))
    y = b.op("LayerNormalization", x, scale)
    b.output("dx", pl.gradients(b, y, x))
    (node,) = (node for node in b.nodes if node.op == "LayerNormalization")
    assert all(node.outputs)
    assert len(node.outputs) == 3
    rng = np.random.default_rng(1)
    found = run(b, x=rng.normal(size=(4, 6)), scale=np.ones(6))["dx"]
    np.testing.assert_allclose(found, np.zeros((4, 6)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_gradient_has_the_dtype_of_its_tensor(dtype: str) -> None:
    b = pl.GraphBuilder("mixed")
    x, scale = b.input("x", dtype, (2, 3, 4)), b.input("scale", "float32", (3,))
    inputs = [b.constant(np.ones(3, "float32")) for _ in range(3)]
    y = b.op("BatchNormalization", x, scale, *inputs)
    to_x, to_scale = pl.gradients(b, y, [x, scale])
    assert b.spec(to_x).dtype.name == dtype
    assert b.spec(to_scale).dtype.name == "float32"


def test_an_operator_without_a_rule_is_named_with_its_node() -> None:
    b = pl.GraphBuilder("values")
    x = b.input("x", "float32", (3,))
    y = b.op("Unique", x, name="distinct")
    with pytest.raises(pl.GraphError, match="no gradient of Unique") as caught:
        pl.gradients(b, y, x)
    assert "distinct" in str(caught.value)


def test_an_operator_without_a_rule_is_no_matter_beside_the_way() -> None:
    b = pl.GraphBuilder("values")
    x, values = b.input("x", "float32", ()), b.input("values", "float32", (3,))
    count = b.op("ReduceSum", b.op("Unique", values), keepdims=False)
    b.output("slope", pl.gradients(b, b.op("Mul", x, count), x))
    assert run(b, x=2, values=[4, 1, 4])["slope"] == 5


def test_only_floats_have_gradients() -> None:
    b = pl.GraphBuilder("integers")
    x = b.input("x", "int64", (3,))
    y = b.op("Cast", x, to="float32")
    with pytest.raises(pl.GraphError, match="x 'x' is int64"):
        pl.gradients(b, y, x)
    with pytest.raises(pl.GraphError, match="y 'x' is int64"):
        pl.gradients(b, x, y)


def test_weights_must_be_one_for_each_y_and_like_it() -> None:
    b, x, y = cube()
    with pytest.raises(pl.GraphError, match="1 ys and 2 grad_ys"):
        pl.gradients(b, y, x, [None, None])
    with pytest.raises(pl.ShapeError, match="grad_ys"):
        pl.gradients(b, y, x, b.constant(np.ones(2, "float32")))


def test_there_must_be_a_y_and_it_must_exist() -> None:
    b, x, y = cube()
    with pytest.raises(pl.GraphError, match="no y"):
        pl.gradients(b, [], x)
    with pytest.raises(pl.GraphError, match="no tensor 'nothing'"):
        pl.gradients(b, y, "nothing")


def test_a_rank_that_is_not_known_is_said_to_be_missing() -> None:
    b = pl.GraphBuilder("unknown")
    x = b.input("x", "float32", (2, 2))
    y = b.op("Reshape", x, b.input("shape", "int64", ("rank",)))
    with pytest.raises(pl.GraphError, match="how many dimensions"):
        pl.gradients(b, b.op("Gather", y, np.array([0])), x)


def test_rules_are_registered_once() -> None:
    def rule(at: Adjoint) -> list[tuple[int, Term]]:
        return [(0, at.dy)]

    with pytest.raises(pl.GraphError, match="two gradients of 'Relu'"):
        gradient("Relu")(rule)


def test_no_gradient_flows_through_functions_that_are_flat() -> None:
    @pl.operator(name="test_building.steps", traits=FLAT)
    def steps(x: Array) -> Array:
        floors: Array = np.floor(x * 10)
        return floors

    try:
        b = pl.GraphBuilder("steps")
        x = b.input("x", "float32", (2,))
        y = b.op("ReduceSum", b.op("Add", b.call(steps, x), b.op("Mul", x, np.float32(3))))
        b.output("dx", pl.gradients(b, y, x))
        found = pl.run(b.build(), {"x": np.array([1, 2], np.float32)})
    finally:
        unregister_operator("test_building.steps")
    assert found["dx"].tolist() == [3, 3]


def test_a_range_hands_its_gradient_to_where_it_begins_and_to_its_step() -> None:
    b = pl.GraphBuilder("range")
    start, delta = b.input("start", "float32", ()), b.input("delta", "float32", ())
    y = b.op("ReduceSum", b.op("Range", start, np.float32(5.2), delta))
    for name, dx in zip(("ds", "dd"), pl.gradients(b, y, [start, delta]), strict=True):
        b.output(name, dx)
    found = pl.run(b.build(), {"start": np.float32(0.5), "delta": np.float32(0.5)})
    assert (found["ds"], found["dd"]) == (10, 45)


def test_equal_numbers_in_formulas_are_one_constant() -> None:
    b = pl.GraphBuilder("formula")
    x = Formula(b).term(b.input("x", "float32", (2,)))
    assert (x + 2).formula is x.formula
    before = len(b.nodes)
    a, c = 2 * x, x - 2
    assert len(b.nodes) == before + 2
    assert b.nodes[-1].inputs[1] == b.nodes[-2].inputs[1]
    assert (a * 1) is a
    assert c / 1 is c


def test_gradients_are_those_of_variables_and_pass_what_only_waits() -> None:
    b = pl.GraphBuilder("state")
    v = b.variable("v", np.array([1, 2], "float32"))
    x = b.input("x", "float32", (2,))
    y = b.after(b.assign(v, b.op("Mul", b.op("Mul", v, v), x)), x)
    to_v, to_x = pl.gradients(b, y, [v, x])
    assert b.spec(to_v) == b.spec(v)
    ops = {node.name: node.op for node in b.nodes if node.name.startswith("gradient")}
    assert set(ops.values()) == {"ConstantOfShape", "Mul", "Add"}
    assert b.spec(to_x) == b.spec(x)


@pytest.mark.parametrize("axis", [0, -1])
def test_what_is_picked_once_from_each_line_is_not_scattered(axis: int) -> None:
    b = pl.GraphBuilder("pick")
    x = b.input("x", "float32", (3, 3))
    places = b.input("places", "int32", (3, 1) if axis else (1, 3))
    picked = b.op("GatherElements", b.op("Mul", x, x), places, axis=axis)
    b.output("slope", pl.gradients(b, picked, x))
    assert "ScatterElements" not in {node.op for node in b.nodes}
    wanted = np.array([[0, 2, 0], [0, 0, 4], [2, 0, 0]])
    given = np.array([[1, -1, 0]])
    values = np.ones((3, 3)) * [[1], [2], [1]]
    if not axis:
        wanted, values = wanted.T, values.T
    found = run(b, x=values, places=given if not axis else given.T)["slope"]
    assert found.tolist() == wanted.tolist()


def test_gradients_come_through_statistics_of_a_layer_too() -> None:
    slopes = []
    for own in (True, False):
        b = pl.GraphBuilder("statistics")
        x = b.input("x", "float32", ("n", 5))
        if own:
            scale = b.constant(np.ones(5, "float32"))
            y, mean, inverse = b.op("LayerNormalization", x, scale, outputs=3)
        else:
            mean = b.op("ReduceMean", x, np.array([1]))
            away = b.op("Sub", x, mean)
            variance = b.op("ReduceMean", b.op("Mul", away, away), np.array([1]))
            inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, 1e-5)))
            y = b.op("Mul", away, inverse)
        square = b.op("Mul", y, y)
        loss = b.op("Sum", b.op("Mul", square, y), b.op("Mul", mean, mean), inverse)
        b.output("slope", pl.gradients(b, loss, x))
        values = np.random.default_rng(2).normal(size=(3, 5))
        slopes.append(run(b, x=values)["slope"])
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-4, atol=1e-5)


def test_the_mean_of_more_halves_than_a_half_can_count_has_a_gradient() -> None:
    b = pl.GraphBuilder("halves")
    x = b.input("x", "float16", (2, 100_000))
    y = b.op("Mul", b.op("ReduceMean", x, np.array([1])), 1000.0)
    b.output("slope", pl.gradients(b, y, x))
    found = run(b, x=np.ones((2, 100_000)))["slope"]
    np.testing.assert_allclose(found, 0.01, rtol=1e-3)
