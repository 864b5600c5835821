"""Training in a session: variables, slots and steps go on from item to item."""

from __future__ import annotations

from typing import Any

import learning_oracles as oracles
import numpy as np
import plait as pl
import pytest
from numpy.typing import NDArray
from plait import learning
from plait.devices.opencl.device import OpenClDevice
from plait.graph.gradients.formula import Term
from plait.graph.learning import Progress, Slots, Update
from pocl import pocl_device

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(16, 3)), RANDOM.normal(size=16)
W = RANDOM.normal(size=3)
STEPS = 6


def regression(optimizer: learning.Optimizer, dtype: str = "float64") -> pl.Graph:
    b = pl.GraphBuilder("regression")
    x, y = b.constant(X.astype(dtype)), b.constant(Y.astype(dtype))
    w = b.variable("w", W, dtype=dtype)
    loss = learning.mean_squared_error(b, b.op("MatMul", x, w), y)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, optimizer))
    return b.build()


def trained(optimizer: learning.Optimizer, dtype: str = "float64") -> NDArray[Any]:
    with pl.BlockingSession(pl.plan(regression(optimizer, dtype))) as session:
        for _ in range(STEPS):
            session.run({})
        return np.asarray(session.run({}, "w"))


def slope(w: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(2 / len(Y) * X.T @ (X @ w - Y))


def by_hand(step: Any, **options: Any) -> NDArray[Any]:
    """Apply an oracle step by step, each time to all gradients so far, from the first weights."""
    slopes: list[NDArray[Any]] = []
    w = W
    for _ in range(STEPS):
        slopes.append(slope(w))
        w = step(W, slopes, **options)
    return w


@pytest.mark.parametrize(
    ("optimizer", "wanted"),
    [
        (
            learning.SGD(0.1, 0.9, nesterov=True, weight_decay=0.01),
            by_hand(oracles.sgd, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (
            learning.AdamW(0.1, weight_decay=0.1),
            by_hand(oracles.adam, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
        ),
        (
            learning.RMSProp(0.1, momentum=0.5),
            by_hand(oracles.rmsprop, lr=0.1, alpha=0.99, eps=1e-8, momentum=0.5),
        ),
    ],
)
def test_variables_and_slots_go_on_from_item_to_item(
    optimizer: learning.Optimizer, wanted: NDArray[Any]
) -> None:
    np.testing.assert_allclose(trained(optimizer), wanted, rtol=1e-10)


def test_a_schedule_sees_each_step_once() -> None:
    w = W
    for step in range(STEPS):
        w = w - 0.1 / (1 + step) * slope(w)
    found = trained(learning.SGD(lambda step: 0.1 / (step + 1)))
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_who_fetches_the_loss_alone_changes_nothing() -> None:
    graph = regression(learning.Adam(learning.Constant(0.1)))
    with pl.BlockingSession(pl.plan(graph)) as session:
        first = [session.run({}, "loss") for _ in range(3)]
        before = session.run({})["loss"]
        after = session.run({}, "loss")
        assert session.run({}, "train/step") == 1
    assert first == [before] * 3
    assert after < before


def test_narrow_variables_are_updated_in_float32() -> None:
    found = trained(learning.Adam(0.1), "float16")
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, trained(learning.Adam(0.1)), atol=3e-3)


def test_a_stream_of_batches_trains_as_items_one_by_one_do() -> None:
    b = pl.GraphBuilder("streamed")
    w, x = b.variable("w", W), b.input("x", "float64", (3,))
    loss = learning.mean_squared_error(b, w, x)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, learning.Adam(0.1)))
    plan, items = pl.plan(b.build()), [{"x": row} for row in X]
    with pl.BlockingSession(plan) as session:
        one_by_one = [float(session.run(item)["loss"]) for item in items]
    with pl.BlockingSession(plan) as session:
        with session.stream(items) as results:
            streamed = [float(item["loss"]) for item in results]
        assert session.run(items[0], "train/step") == len(X)
    assert streamed == one_by_one
    assert len(set(streamed)) == len(X)


class Signs:
    """Steps of one length, whatever the gradient: an optimiser as users write them."""

    learning_rate = 0.01
    slots = ()

    def updates(self, progress: Progress, dtype: Any) -> Update:
        rate = progress.scalar(progress.rate, dtype)

        def update(x: Term, g: Term, slots: Slots) -> tuple[Term, Slots]:
            return x - g.op("Sign") * rate, {}

        return update


def test_an_optimiser_of_ones_own_needs_three_members() -> None:
    np.testing.assert_allclose(np.abs(trained(Signs()) - W), 0.01 * STEPS, rtol=1e-12)


def test_the_rate_may_be_fed() -> None:
    b = pl.GraphBuilder("fed")
    w, rate = b.variable("w", 2.0), b.input("rate", "float32", ())
    b.output("train", learning.minimize(b, b.op("Mul", w, w), learning.SGD(rate)))
    with pl.BlockingSession(pl.plan(b.build())) as session:
        for value in (0.25, 0.0, 0.5):
            session.run({"rate": np.array(value, "float32")})
        assert session.run({}, "w") == 0


def test_weights_may_live_on_an_opencl_device() -> None:
    device = OpenClDevice(device=pocl_device())
    graph = regression(learning.SGD(0.1, momentum=0.9), "float32")
    losses = []
    for one in (device, "cpu"):
        with pl.BlockingSession(pl.plan(graph, [one])) as session:
            losses.append([float(session.run({})["loss"]) for _ in range(STEPS)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
