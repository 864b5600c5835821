"""Weights by name: constants, and what variables hold to begin with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.errors import GraphError, ShapeError


def model() -> pl.Graph:
    """Return (x * scale).reshape(shape) + w."""
    b = pl.GraphBuilder("model")
    x = b.input("x", "float32", (2, 2))
    scaled = b.op("Mul", x, b.constant(np.array([[1, 2]], "float32"), "scale"))
    flat = b.op("Reshape", scaled, b.constant(np.array([4]), "shape"), name="flatten")
    b.output("y", b.op("Add", flat, b.variable("w", np.zeros(4, "float32"))))
    return b.build()


def test_the_weights_of_a_graph_are_its_constants_and_variables() -> None:
    weights = pl.weights_of(model())

    assert sorted(weights) == ["scale", "shape", "w"]
    assert weights["w"].tolist() == [0, 0, 0, 0]


def test_a_variable_whose_initial_value_is_computed_is_no_weight() -> None:
    ones = pl.GraphBuilder("ones")
    one = ones.constant(np.ones(2, "float32"), "one")
    ones.output("value", ones.op("Add", one, one))
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Relu", b.variable("w", ones.build())))

    assert pl.weights_of(b.build()) == {}
    given = pl.with_weights(b.build(), {"w": np.array([3, 4], "float32")})
    assert pl.weights_of(given)["w"].tolist() == [3, 4]


def test_weights_that_are_not_given_stay() -> None:
    changed = pl.weights_of(pl.with_weights(model(), {"w": np.arange(4, dtype="float32")}))

    assert changed["w"].tolist() == [0, 1, 2, 3]
    assert changed["scale"].tolist() == [[1, 2]]


def test_a_graph_with_its_own_weights_is_the_same_graph() -> None:
    assert pl.with_weights(model(), pl.weights_of(model())) == model()


def test_an_array_that_may_change_later_is_copied() -> None:
    given = np.ones((1, 2), "float32")
    changed = pl.with_weights(model(), {"scale": given})
    given[:] = 7

    assert changed.constants["scale"].tolist() == [[1, 1]]


def test_weights_of_a_file_are_used_where_they_lie(tmp_path: Path) -> None:
    pl.save_weights({"scale": np.array([[5, 6]], "float32")}, tmp_path / "w.safetensors")
    weights = pl.load_weights(tmp_path / "w.safetensors")

    changed = pl.with_weights(model(), weights)
    assert changed.constants["scale"] is weights["scale"]


def test_bfloat16_weights_become_float32_exactly() -> None:
    half = np.array([[0.1, -3]], dtype_of("bfloat16"))
    changed = pl.with_weights(model(), {"scale": half}).constants["scale"]

    assert changed.dtype == np.float32
    assert changed.tolist() == half.astype("float64").tolist()


@pytest.mark.parametrize("name", ["scale", "w"])
@pytest.mark.parametrize("array", [np.ones((2, 1), "float32"), np.ones((1, 2), "float64")])
def test_an_array_of_another_shape_or_wider_dtype_is_refused(
    name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.floating]]
) -> None:
    with pytest.raises(ShapeError, match=r"the weight is float32\[.*\], the array float") as caught:
        pl.with_weights(model(), {name: array})
    assert caught.value.at == f"weight '{name}'"


def test_unknown_names_are_all_named_beside_the_known_ones() -> None:
    with pytest.raises(GraphError, match="no weights named 'v', 'z'") as caught:
        pl.with_weights(model(), {"v": np.ones(1), "w": np.ones(4, "float32"), "z": np.ones(1)})
    assert caught.value.fix == "pass those of weights_of(graph): 'w', 'scale', 'shape'"


def test_a_constant_that_shapes_follow_from_keeps_its_value() -> None:
    b = pl.GraphBuilder("g")
    repeats = b.constant(np.array([1, 2]), "repeats")
    b.output("y", b.op("Tile", b.input("x", "float32", (2, 2)), repeats, name="repeat"))

    with pytest.raises(GraphError, match="with another 'repeats' its outputs have other") as caught:
        pl.with_weights(b.build(), {"repeats": np.array([2, 1])})
    assert "'repeat'" in str(caught.value.at)


def test_a_constant_that_shapes_follow_from_through_a_list_keeps_its_value() -> None:
    b = pl.GraphBuilder("g")
    x, tail = b.input("x", "float32", ("n", 8)), b.constant(np.array([2, 4]), "tail")
    shape = b.op("Concat", b.op("Shape", x, end=1), tail, axis=0)
    b.output("y", b.op("Reshape", x, shape))

    with pytest.raises(GraphError, match="with other values of 'tail' tensors have other shapes"):
        pl.with_weights(b.build(), {"tail": np.array([4, 2])})
    assert pl.with_weights(b.build(), {"tail": np.array([2, 4])}).tensors["y"].shape == ("n", 2, 4)


def test_a_constant_that_shapes_follow_from_may_be_written_otherwise() -> None:
    changed = pl.with_weights(model(), {"shape": np.array([-1])})
    assert changed.constants["shape"].tolist() == [-1]


def test_the_graph_of_a_plan_is_refused() -> None:
    with pytest.raises(GraphError, match="not nodes in the graph of a plan"):
        pl.with_weights(pl.plan(model()).graph, {"w": np.ones(4, "float32")})


def test_a_saved_graph_holds_the_values_of_its_variables(tmp_path: Path) -> None:
    trained = pl.with_weights(model(), {"w": np.array([1, 2, 3, 4], "float32")})
    pl.save(trained, tmp_path / "trained.plait")

    assert pl.load(tmp_path / "trained.plait") == trained


def test_loading_weights_as_a_graph_says_what_to_do(tmp_path: Path) -> None:
    pl.save_weights(pl.weights_of(model()), tmp_path / "w.safetensors")
    with pytest.raises(pl.ParseError, match="these are weights, not a graph") as caught:
        pl.load(tmp_path / "w.safetensors")
    assert caught.value.fix == "use plait.with_weights(graph, plait.load_weights(path))"


def test_saving_a_graph_as_weights_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="a safetensors file holds no graph") as caught:
        pl.save(model(), tmp_path / "w.safetensors")
    assert caught.value.fix == "use plait.save_weights(plait.weights_of(graph), path)"
