"""Nodes that draw random numbers, written with Philox: their numbers, and those refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from numpy.typing import NDArray
from plait.graph.core.nested import draws
from plait.graph.operators.randomness import KEY_SPEC, RANDOM_KEY
from plait.graph.passes import PASSES
from plait.graph.passes.pipeline import run_passes
from plait.graph.passes.randomness import with_random_key

AnyArray = NDArray[Any]


def single(op: str, x: AnyArray | None = None, **given: Any) -> pl.Graph:
    b = pl.GraphBuilder(op)
    inputs = [] if x is None else [b.input("x", x.dtype, ("n", *x.shape[1:]))]
    b.output("y", b.op(op, *inputs, name="draw", **given))
    return b.build()


def run(graph: pl.Graph, x: AnyArray | None = None, seed: int = 0) -> AnyArray:
    y: AnyArray = pl.run(graph, {} if x is None else {"x": x}, fetches="y", seed=seed)
    return y


def test_a_graph_that_draws_nothing_is_left_as_it_is() -> None:
    graph = single("Relu", np.zeros(3))
    assert with_random_key(graph) is graph


def test_a_graph_that_draws_has_one_more_input() -> None:
    graph = with_random_key(single("RandomNormal", shape=[3]))
    assert graph.inputs == (RANDOM_KEY,)
    assert graph.tensors[RANDOM_KEY] == KEY_SPEC
    assert not any(map(draws, graph.nodes))
    assert with_random_key(graph) is graph


def test_the_key_may_be_declared_and_fed_by_the_caller() -> None:
    b = pl.GraphBuilder("keyed")
    b.input(RANDOM_KEY, "uint64", (2,))
    b.output("y", b.op("RandomUniform", shape=[4], name="draw"))
    fed = {RANDOM_KEY: np.array([7, 0], "uint64")}
    wanted = run(single("RandomUniform", shape=[4]), seed=7)
    assert pl.run(b.build(), fed)["y"].tolist() == wanted.tolist()


@pytest.mark.parametrize("as_input", [True, False])
def test_another_tensor_of_the_key_s_name_is_refused(as_input: bool) -> None:
    b = pl.GraphBuilder("taken")
    if as_input:
        b.input(RANDOM_KEY, "float32", (2,))
    else:
        b.constant(np.zeros(2, "uint64"), name=RANDOM_KEY)
    b.output("y", b.op("RandomUniform", shape=[4]))
    with pytest.raises(pl.GraphError, match="random_key"):
        pl.plan(b.build())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("like", [True, False])
def test_normal_and_uniform_numbers_are_scaled(dtype: str, like: bool) -> None:
    x = np.zeros((50, 80), "int32") if like else None
    shape = {} if like else {"shape": [50, 80]}
    suffix = "Like" if like else ""
    normal = run(single(f"RandomNormal{suffix}", x, dtype=dtype, mean=3.0, scale=0.5, **shape), x)
    uniform = run(single(f"RandomUniform{suffix}", x, dtype=dtype, low=2.0, high=6.0, **shape), x)
    assert normal.dtype.name == uniform.dtype.name == dtype
    assert normal.shape == uniform.shape == (50, 80)
    normal, uniform = normal.astype("float64"), uniform.astype("float64")
    assert abs(normal.mean() - 3) < 0.05
    assert abs(normal.std() - 0.5) < 0.03
    assert 2 <= uniform.min() < 2.05
    assert 5.95 < uniform.max() <= 6
    assert abs(uniform.mean() - 4) < 0.1


def test_a_seed_of_a_node_is_all_that_its_numbers_follow_from() -> None:
    first, other = (
        run(single("RandomNormal", shape=[5], seed=2.5), seed=seed).tolist() for seed in (0, 1)
    )
    assert first == other
    assert first != run(single("RandomNormal", shape=[5], seed=2.0)).tolist()
    assert (
        run(single("RandomNormal", shape=[5])).tolist()
        != run(single("RandomNormal", shape=[5]), seed=1).tolist()
    )


def test_nodes_that_are_alike_draw_other_numbers_and_are_not_merged() -> None:
    b = pl.GraphBuilder("two")
    first, second = (b.op("RandomNormal", shape=[4]) for _ in range(2))
    b.output("y", b.op("Sub", first, second))
    graph = b.build()
    assert [node.op for node in run_passes(graph, PASSES)[0].nodes].count("RandomNormal") == 2
    assert pl.run(graph, {})["y"].all()


def test_what_is_drawn_is_neither_folded_nor_computed_at_open() -> None:
    plan = pl.plan(single("RandomNormal", shape=[4]))
    assert plan.prologue is None
    with pl.BlockingSession(plan) as session:
        assert session.run({})["y"].tolist() != session.run({})["y"].tolist()


def test_bernoulli_is_one_as_often_as_its_probability_says() -> None:
    x = np.repeat(np.array([[0.0], [0.25], [1.0]]), 4000, 1)
    y = run(single("Bernoulli", x, dtype="int8"), x)
    assert y.dtype == np.int8
    assert y[0].sum() == 0
    assert y[2].sum() == 4000
    assert abs(y[1].mean() - 0.25) < 0.03


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_multinomial_draws_classes_by_their_probabilities(dtype: str) -> None:
    logits = np.log(np.array([[1, 2, 0, 5, 0], [0, 1, 0, 0, 0]]) + 1e-300).astype("float32")
    logits[logits < -80] = -np.inf
    y = run(single("Multinomial", logits, sample_size=4000, dtype=dtype), logits)
    assert (y.dtype, y.shape) == (np.dtype(dtype), (2, 4000))
    shares = np.bincount(y[0], minlength=5) / 4000
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 0, 5 / 8, 0], atol=0.03)
    assert set(y[1].tolist()) == {1}


def dropout(ratio: float | None, training: bool | None, dtype: str = "float32") -> pl.Graph:
    """Return a graph that drops, its mask, and the gradient of Σ y · w; training may be fed."""
    b = pl.GraphBuilder("dropout")
    x, w = b.input("x", dtype, ("n", 100)), b.input("w", dtype, ("n", 100))
    mode = b.input("training", "bool", ()) if training is None else b.constant(np.array(training))
    given = None if ratio is None else b.constant(np.float32(ratio))
    y, mask = b.op("Dropout", x, given, mode, outputs=2)
    b.output("slope", pl.gradients(b, b.op("ReduceSum", b.op("Mul", y, w), keepdims=False), x))
    b.output("y", y)
    b.output("mask", mask)
    return b.build()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.2])
@pytest.mark.parametrize("fed", [True, False])
def test_dropout_in_training_drops_and_scales_and_so_does_its_gradient(
    dtype: str, ratio: float | None, fed: bool
) -> None:
    random = np.random.default_rng(0)
    x, w = (random.normal(size=(40, 100)).astype(dtype) + 10 for _ in range(2))
    feeds = {"x": x, "w": w, **({"training": np.array(True)} if fed else {})}
    found = pl.run(dropout(ratio, None if fed else True, dtype), feeds)
    share = 0.5 if ratio is None else ratio
    mask = found["mask"]
    assert abs(mask.mean() - (1 - share)) < 0.03
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-7}[dtype]
    np.testing.assert_allclose(found["y"], np.where(mask, x / (1 - share), 0), tolerance)
    np.testing.assert_allclose(found["slope"], np.where(mask, w / (1 - share), 0), tolerance)


def test_the_mode_and_the_ratio_of_dropout_may_be_lists_of_one_and_nothing_else() -> None:
    b = pl.GraphBuilder("listed")
    x, mode = b.input("x", "float32", ()), b.input("mode", "bool", (1,))
    b.output("y", b.op("Dropout", x, np.array([0.5], "float32"), mode))
    found = pl.run(b.build(), {"x": np.float32(3), "mode": np.array([True])})["y"]
    assert found.shape == ()
    assert found.item() in (0, 6)
    for modes, ratios in (([], 0.5), ([True, True], 0.5), (True, [1, 2])):
        with pytest.raises(pl.ShapeError, match="must be one number"):
            b.op("Dropout", x, np.array(ratios, "float32"), np.array(modes, bool))


def test_the_gradient_of_one_number_is_one_number_where_dropout_has_lists_of_one() -> None:
    b = pl.GraphBuilder("listed")
    x, mode = b.input("x", "float32", ()), b.input("mode", "bool", (1,))
    y = b.op("Dropout", x, np.array([0.5], "float32"), mode)
    slope = pl.gradients(b, y, x)
    assert b.spec(slope).shape == ()
    b.output("y", y)
    b.output("slope", slope)
    found = pl.run(b.build(), {"x": np.float32(3), "mode": np.array([True])})
    assert found["slope"] == found["y"] / 3


def test_a_scale_beyond_its_dtype_is_infinite() -> None:
    b = pl.GraphBuilder("large")
    b.output("y", b.op("RandomUniform", shape=[2], low=1.0, high=1e300))
    assert np.isinf(pl.run(b.build(), {})["y"]).all()


@pytest.mark.parametrize("ratio", [-0.1, 1.5, np.nan, np.inf])
@pytest.mark.parametrize("training", [None, True])
def test_a_ratio_that_is_no_share_is_refused_in_training(ratio: float, training: bool) -> None:
    with pytest.raises(pl.ShapeError, match="the ratio is"):
        dropout(ratio, training)
    assert dropout(ratio, False)  # nothing is dropped: it is not looked at


def test_dropout_that_is_told_so_drops_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(3, 100)).astype("float32")
    found = pl.run(dropout(0.9, None), {"x": x, "w": x, "training": np.array(False)})
    assert found["y"].tobytes() == found["slope"].tobytes() == x.tobytes()
    assert found["mask"].all()
    still = pl.plan(dropout(0.9, False))
    assert RANDOM_KEY not in still.graph.inputs


def test_what_is_drawn_has_no_gradient_but_what_is_made_of_it_does() -> None:
    """x · σ + μ, as variational autoencoders have it."""
    b = pl.GraphBuilder("reparametrized")
    mean, deviation = (b.input(name, "float32", (50,)) for name in ("mean", "deviation"))
    noise = b.op("RandomNormalLike", mean)
    y = b.op("Add", mean, b.op("Mul", deviation, noise))
    slopes = pl.gradients(b, b.op("ReduceSum", y, keepdims=False), [mean, deviation])
    for name, tensor in zip(("of mean", "of deviation", "noise"), [*slopes, noise], strict=True):
        b.output(name, tensor)
    found = pl.run(b.build(), {n: np.ones(50, "float32") for n in ("mean", "deviation")})
    assert (found["of mean"] == 1).all()
    assert found["of deviation"].tolist() == found["noise"].tolist()


def test_gradients_that_compute_again_see_what_was_drawn() -> None:
    found = []
    for checkpoint in (None, ["h"]):
        b = pl.GraphBuilder("again")
        x = b.input("x", "float32", (64, 64))
        h = b.op("Tanh", x, outputs=["h"])[0]
        for _ in range(3):
            dropped = b.op("Dropout", b.op("Sin", h), np.float32(0.5), np.array(True))
            h = b.op("Exp", b.op("Cos", dropped))
        loss = b.op("ReduceSum", h, keepdims=False)
        b.output("slope", pl.gradients(b, loss, x, checkpoint=checkpoint))
        found.append(pl.run(b.build(), {"x": np.ones((64, 64), "float32")}, seed=3)["slope"])
    assert found[0].tobytes() == found[1].tobytes()


def looping(fed: bool) -> pl.Graph:
    """Return a Loop that draws in each iteration, and in a branch inside of it."""
    inner = pl.GraphBuilder("then")
    inner.output("t", inner.op("RandomUniform", shape=[3], name="draw"))
    other = pl.GraphBuilder("else")
    other.output("t", other.op("RandomNormal", shape=[3], name="draw"))
    body = pl.GraphBuilder("body")
    body.input("i", "int64", ())
    body.input("going", "bool", ())
    drawn = body.op("RandomUniform", shape=[3], name="draw")
    chosen = body.op(
        "If",
        body.op("Less", "i", 100),
        then_branch=inner.build(),
        else_branch=other.build(),
        name="choice",
    )
    body.output("on", body.op("Identity", "going"))
    body.output("row", body.op("Concat", drawn, chosen, axis=0))
    b = pl.GraphBuilder("looping")
    count = b.input("count", "int64", ()) if fed else b.constant(np.array(4))
    b.output("y", b.op("Loop", count, None, body=body.build(), name="loop"))
    return b.build()


def test_iterations_and_branches_draw_numbers_of_their_own_unrolled_or_not() -> None:
    """A count that is fed above the unrolled ones runs the body as a graph."""
    unrolled = pl.run(looping(fed=False), {}, seed=1)["y"]
    assert unrolled.shape == (4, 6)
    assert len(np.unique(unrolled)) == 24
    run_by_session = pl.run(looping(fed=True), {"count": np.array(300)}, seed=1)["y"]
    assert len(np.unique(run_by_session.round(6))) > 1700
    np.testing.assert_array_equal(run_by_session[:4], unrolled)


def test_a_scan_that_draws_is_refused_and_so_are_gradients_of_graphs_that_draw() -> None:
    body = pl.GraphBuilder("body")
    body.input("x", "float32", (3,))
    body.output("y", body.op("Add", "x", body.op("RandomUniform", shape=[3])))
    b = pl.GraphBuilder("scanning")
    b.input("x", "float32", (2, 3))
    b.output("y", b.op("Scan", "x", body=body.build(), num_scan_inputs=1))
    with pytest.raises(pl.GraphError, match="Scan draws random numbers"):
        pl.plan(b.build())
    with pytest.raises(pl.GraphError, match="a graph inside of it draws"):
        pl.gradients(b.build(), "y", "x")


def test_a_model_that_draws_is_saved_as_it_was_and_loaded_again(tmp_path: Any) -> None:
    graph = single("RandomNormal", shape=[3], seed=1.0)
    for name in ("model.onnx", "model.plait"):
        pl.save(graph, tmp_path / name)
        assert run(pl.load(tmp_path / name)).tolist() == run(graph).tolist()
