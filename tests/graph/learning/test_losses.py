"""Losses against their definitions in float64, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_oracles import on_cpu
from numpy.typing import NDArray
from plait import learning

AnyArray = NDArray[Any]
few = settings(max_examples=10)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
reductions = st.sampled_from(["mean", "sum", "none"])
seeds = st.integers(0, 1000)


def built(
    loss: Callable[..., str], x: AnyArray, t: AnyArray, **options: Any
) -> tuple[AnyArray, AnyArray]:
    """Return a loss and its gradient by the first argument."""
    b = pl.GraphBuilder("loss")
    names = b.input("x", x.dtype, x.shape), b.input("t", t.dtype, t.shape)
    y = loss(b, *names, **options)
    b.output("slope", pl.gradients(b, y, "x"))
    b.output("loss", y)
    found = on_cpu(b.build(), {"x": x, "t": t})
    return found["loss"], found["slope"]


def reduced(losses: AnyArray, reduction: str) -> AnyArray:
    return losses if reduction == "none" else np.asarray(getattr(losses, reduction)())


def softmax(x: AnyArray, axis: int) -> AnyArray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


@given(seeds, shapes, reductions)
@few
def test_regression_losses(seed: int, shape: tuple[int, ...], reduction: str) -> None:
    random = np.random.default_rng(seed)
    x, t = random.normal(size=(2, *shape)) * 2
    e = np.abs(x - t)
    wanted: dict[Callable[..., str], AnyArray] = {
        learning.mean_squared_error: e**2,
        learning.mean_absolute_error: e,
        learning.huber: np.where(e <= 1, e**2 / 2, e - 0.5),
    }
    for loss, losses in wanted.items():
        found, _ = built(loss, x, t, reduction=reduction)
        np.testing.assert_allclose(found, reduced(losses, reduction), rtol=1e-12)


def test_the_slope_of_huber_is_the_error_up_to_delta() -> None:
    x = np.array([-7.0, -1.5, -0.5, 0.5, 1.5, 7.0])
    _, slope = built(learning.huber, x, np.zeros(6), delta=1.5, reduction="sum")
    assert np.abs(slope[[0, 2, 3, 5]]).tolist() == [1.5, 0.5, 0.5, 1.5]
    assert np.sign(slope).tolist() == [-1, -1, -1, 1, 1, 1]


@given(seeds, shapes, reductions)
@few
def test_binary_cross_entropy(seed: int, shape: tuple[int, ...], reduction: str) -> None:
    random = np.random.default_rng(seed)
    x, t = random.normal(size=shape) * 3, random.uniform(size=shape)
    p = 1 / (1 + np.exp(-x))
    wanted = -t * np.log(p) - (1 - t) * np.log(1 - p)
    found, slope = built(learning.binary_cross_entropy, x, t, reduction=reduction)
    np.testing.assert_allclose(found, reduced(wanted, reduction), rtol=1e-10)
    scale = 1 / x.size if reduction == "mean" else 1
    np.testing.assert_allclose(slope, (p - t) * scale, rtol=1e-9, atol=1e-15)


def test_binary_cross_entropy_keeps_its_digits_where_the_probability_rounds_to_one() -> None:
    x = np.array([80.0, -80.0, 100.0, 1000.0], "float32")
    t = np.array([1.0, 0.0, 0.0, 1.0], "float32")
    found, slope = built(learning.binary_cross_entropy, x, t, reduction="none")
    np.testing.assert_allclose(found, [np.exp(-80.0), np.exp(-80.0), 100, 0], rtol=1e-4)
    assert np.isfinite(slope).all()


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(-2, 1), reductions)
@few
def test_softmax_cross_entropy(seed: int, n: int, m: int, axis: int, reduction: str) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, m)) * 3
    t = softmax(random.normal(size=(n, m)), axis)
    wanted = -(t * np.log(softmax(x, axis))).sum(axis)
    found, slope = built(learning.softmax_cross_entropy, x, t, axis=axis, reduction=reduction)
    np.testing.assert_allclose(found, reduced(wanted, reduction), rtol=1e-10, atol=1e-12)
    scale = 1 / wanted.size if reduction == "mean" else 1
    np.testing.assert_allclose(slope, (softmax(x, axis) - t) * scale, rtol=1e-9, atol=1e-12)


@given(seeds, st.integers(1, 3), st.integers(1, 4), st.integers(-3, 2), reductions)
@few
def test_labels_do_what_probabilities_of_one_do(
    seed: int, n: int, m: int, axis: int, reduction: str
) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, m, 2)).astype("float32")
    classes = x.shape[axis]
    labels = random.integers(classes, size=np.delete(x.shape, axis))
    one_hot = np.moveaxis(np.eye(classes, dtype="float32")[labels], -1, axis)
    dense = built(learning.softmax_cross_entropy, x, one_hot, axis=axis, reduction=reduction)
    for dtype in ("int32", "int64", "uint8"):
        given_labels = labels.astype(dtype)
        found = built(
            learning.sparse_softmax_cross_entropy, x, given_labels, axis=axis, reduction=reduction
        )
        np.testing.assert_allclose(found[0], dense[0], rtol=1e-6)
        np.testing.assert_allclose(found[1], dense[1], rtol=1e-6, atol=1e-7)


def test_the_gradient_of_labels_adds_nothing_up() -> None:
    """Devices with generated kernels can write scattered elements, but not add to them."""
    b = pl.GraphBuilder("loss")
    x, t = b.input("x", "float32", ("n", 3)), b.input("t", "int64", ("n",))
    assert pl.gradients(b, learning.sparse_softmax_cross_entropy(b, x, t), x).ndim == 2
    assert "add" not in [node.attributes.get("reduction") for node in b.nodes]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("label", [-1, -3, -4, 3, 7])
def test_a_label_that_is_no_class_fails_the_loss_and_its_gradient(label: int, dtype: str) -> None:
    b = pl.GraphBuilder("loss")
    x, t = b.input("x", "float32", (2, 3)), b.input("t", dtype, (2,))
    y = learning.sparse_softmax_cross_entropy(b, x, t)
    b.output("loss", y)
    b.output("slope", pl.gradients(b, y, x))
    fed = {"x": np.zeros((2, 3), "float32"), "t": np.array([1, label], dtype)}
    with pl.BlockingSession(pl.plan(b.build())) as session:
        for name in ("loss", "slope"):
            with pytest.raises(pl.KernelError, match="sparse_softmax_cross_entropy/class/gather"):
                session.run(fed, name)


@given(seeds, st.integers(1, 6), st.integers(-1, 1), reductions, st.sampled_from([-100, -1, 2, 9]))
@few
def test_samples_of_the_ignored_label_count_for_nothing(
    seed: int, n: int, axis: int, reduction: str, ignored: int
) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 3, 2) if axis == 1 else (n, 3))
    axis = 1 if axis == 1 else -1
    labels = random.integers(2, size=np.delete(x.shape, axis))
    labels[random.random(labels.shape) < 0.5] = ignored
    kept = labels != ignored
    logs = np.log(softmax(x, axis))
    one_hot = np.moveaxis(np.eye(3)[np.where(kept, labels, 0)], -1, axis)
    losses = np.where(kept, -(one_hot * logs).sum(axis), 0)
    scale = 1 / max(kept.sum(), 1) if reduction == "mean" else 1
    loss = learning.sparse_softmax_cross_entropy
    options = {"axis": axis, "reduction": reduction, "ignore_index": ignored}
    found, slope = built(loss, x, labels, **options)
    wanted = losses if reduction == "none" else losses.sum() * scale
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)
    slopes = np.where(np.expand_dims(kept, axis), np.exp(logs) - one_hot, 0) * scale
    np.testing.assert_allclose(slope, slopes, rtol=1e-9, atol=1e-14)


def test_an_ignored_label_that_no_label_can_be_is_refused() -> None:
    b = pl.GraphBuilder("loss")
    x, t = b.input("x", "float32", (2, 3)), b.input("t", "int32", (2,))
    for label in (2**31, 1.5, "padding"):
        with pytest.raises(
            pl.GraphError, match=f"ignore_index is {label!r}, which is not a value of int32"
        ):
            learning.sparse_softmax_cross_entropy(b, x, t, ignore_index=label)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_accuracy_is_the_share_of_samples_told_right(dtype: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 5, 3)).astype("float32")
    labels = random.integers(5, size=(8, 3)).astype(dtype)
    b = pl.GraphBuilder("measure")
    b.input("x", "float32", ("n", 5, 3))
    b.input("t", dtype, ("n", 3))
    b.output("share", learning.accuracy(b, "x", "t", axis=1))
    found = pl.run(b.build(), {"x": x, "t": labels})["share"]
    assert found.shape == ()
    assert found == np.float32((x.argmax(1) == labels).mean())


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("ignored", [0, 4, 9])
def test_ignored_samples_have_no_share_in_the_accuracy(dtype: str, ignored: int) -> None:
    random = np.random.default_rng(ignored)
    x = random.normal(size=(40, 5)).astype("float32")
    for labels in (random.integers(5, size=40), np.full(40, ignored)):
        b = pl.GraphBuilder("measure")
        scores, t = b.input("x", "float32", ("n", 5)), b.input("t", dtype, ("n",))
        b.output("share", learning.accuracy(b, scores, t, ignore_index=ignored))
        found = pl.run(b.build(), {"x": x, "t": labels.astype(dtype)})["share"]
        kept = labels != ignored
        right = x[kept].argmax(1) == labels[kept]
        np.testing.assert_allclose(found, right.mean() if kept.any() else 0, rtol=1e-6)


def test_scores_and_labels_of_other_shapes_have_no_accuracy() -> None:
    b = pl.GraphBuilder("measure")
    b.input("x", "float32", (4, 3))
    b.input("t", "int64", (4, 1))
    with pytest.raises(pl.ShapeError, match="accuracy in measure"):
        learning.accuracy(b, "x", "t")
    with pytest.raises(pl.ShapeError, match="axis 2 is outside a tensor of rank 2"):
        learning.accuracy(b, "x", "t", axis=2)


def test_the_number_of_samples_may_be_a_symbol() -> None:
    b = pl.GraphBuilder("loss")
    x, t = b.input("x", "float32", ("n", 3)), b.input("t", "int64", ("m",))
    b.output("loss", learning.sparse_softmax_cross_entropy(b, x, t))
    fed = {"x": np.zeros((2, 3), "float32"), "t": np.array([0, 2])}
    plan = pl.plan(b.build(), shapes={"x": (2, 3), "t": (2,)})
    np.testing.assert_allclose(pl.run(plan, fed)["loss"], np.log(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "x", "t"),
    [
        (learning.mean_squared_error, ("float32", (4, 1)), ("float32", (4,))),
        (learning.mean_absolute_error, ("float32", (4,)), ("float64", (4,))),
        (learning.huber, ("float32", (4,)), ("float32", (1,))),
        (learning.mean_squared_error, ("int32", (4,)), ("int32", (4,))),
        (learning.binary_cross_entropy, ("float32", (4,)), ("bool", (4,))),
        (learning.softmax_cross_entropy, ("float32", (4, 3)), ("float32", (3,))),
        (learning.sparse_softmax_cross_entropy, ("float32", (4, 3)), ("int64", (3,))),
        (learning.sparse_softmax_cross_entropy, ("float32", (4, 3)), ("float32", (4,))),
    ],
)
def test_tensors_that_are_not_alike_are_refused(loss: Any, x: Any, t: Any) -> None:
    b = pl.GraphBuilder("loss")
    with pytest.raises(pl.ShapeError, match=f"{loss.__name__} in loss"):
        loss(b, b.input("x", *x), b.input("t", *t))


def test_an_unknown_reduction_and_a_delta_of_zero_are_refused() -> None:
    b = pl.GraphBuilder("loss")
    x = b.input("x", "float32", (4,))
    with pytest.raises(pl.GraphError, match="'average' is unknown"):
        learning.mean_squared_error(b, x, x, reduction="average")  # type: ignore[arg-type]
    with pytest.raises(pl.GraphError, match="delta is 0"):
        learning.huber(b, x, x, delta=0)
