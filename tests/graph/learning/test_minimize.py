"""`minimize`: which variables it changes, what it keeps for them, and what it refuses."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import ASSIGN, VARIABLE, Node
from plait.graph.learning import SGD, Adam, Constant, RMSProp, apply_gradients, minimize, trainable
from plait.graph.operators.state import GROUP


def product() -> tuple[pl.GraphBuilder, str]:
    """Return a builder that has the variables w and v, and their product, a loss."""
    b = pl.GraphBuilder("product")
    w, v = b.variable("w", 2.0, dtype="float32"), b.variable("v", 3.0, dtype="float32")
    b.variable("unused", 1.0, dtype="float32")
    return b, b.op("Mul", w, v)


def nodes(b: pl.GraphBuilder, op: str) -> list[Node]:
    return [node for node in b.nodes if node.op == op]


def assigned(b: pl.GraphBuilder) -> set[str]:
    return {node.inputs[0] for node in nodes(b, ASSIGN)}


def test_the_variables_that_the_loss_is_made_of_are_changed() -> None:
    b, loss = product()
    train = minimize(b, loss, SGD(0.1))
    assert assigned(b) == {"w", "v"}
    (group,) = nodes(b, GROUP)
    assert group.name == "train"
    assert group.outputs == (train,)
    assert set(group.inputs) == {node.outputs[0] for node in nodes(b, ASSIGN)}


def test_only_listed_variables_are_changed() -> None:
    b, loss = product()
    minimize(b, loss, SGD(0.1), ["v"])
    assert assigned(b) == {"v"}


def test_variables_are_trainable_unless_they_are_integers_or_assigned_to() -> None:
    b, loss = product()
    count = b.op("Cast", b.variable("count", np.int64(1)), to="float32")
    mean = b.variable("mean", 0.0, dtype="float32")
    total = b.op("Sum", loss, count, mean)
    assert trainable(b, total) == ["w", "v", "mean"]
    b.assign(mean, loss)
    assert trainable(b, total) == ["w", "v"]


def test_slots_and_steps_are_variables_with_names_of_their_own() -> None:
    b, loss = product()
    fast, slow = minimize(b, loss, Adam(), ["w"]), minimize(b, loss, RMSProp(), ["v"])
    assert (fast, slow) == ("train/done", "train.2/done")
    made = {node.name for node in nodes(b, VARIABLE)} - {"w", "v", "unused"}
    assert made == {"train/step", "w/mean", "w/square", "v/square"}
    assert {"train/step", "w/mean", "w/square", "v/square"} < assigned(b)


def test_steps_are_counted_only_where_the_optimizer_asks() -> None:
    for rate, counted in ((0.1, False), (Constant(0.1), True), ("rate", False)):
        b, loss = product()
        b.input("rate", "float32", ())
        minimize(b, loss, SGD(rate))
        assert ("train/step" in assigned(b)) == counted


def test_slots_of_narrow_floats_are_wide() -> None:
    b = pl.GraphBuilder("narrow")
    w = b.variable("w", np.ones(3), dtype="float16")
    minimize(b, b.op("ReduceSum", b.op("Mul", w, w), keepdims=False), Adam())
    assert b.spec("w/mean").dtype == b.spec("w/square").dtype == np.float32
    (assign,) = (node for node in nodes(b, ASSIGN) if node.inputs[0] == "w")
    assert b.spec(assign.inputs[1]).dtype == np.float16


def test_gradients_may_be_changed_on_the_way() -> None:
    b, loss = product()
    slopes = pl.learning.clip_by_value(b, pl.gradients(b, loss, ["w", "v"]), 0.5)
    train = apply_gradients(b, SGD(1.0), ["w", "v"], slopes, name="clipped")
    assert train == "clipped/done"
    assert assigned(b) == {"w", "v"}


def test_a_loss_of_several_elements_is_refused() -> None:
    b = pl.GraphBuilder("vector")
    w = b.variable("w", np.ones(3))
    with pytest.raises(pl.ShapeError, match="reduce it to one number"):
        minimize(b, w, SGD(0.1))


def test_a_loss_without_variables_is_refused() -> None:
    b = pl.GraphBuilder("fixed")
    with pytest.raises(pl.GraphError, match="0 variables to change"):
        minimize(b, b.input("x", "float32", ()), SGD(0.1))


def test_what_is_no_variable_or_changed_already_is_refused() -> None:
    b, loss = product()
    with pytest.raises(pl.GraphError, match="is not a variable"):
        minimize(b, loss, SGD(0.1), [loss])
    b, loss = product()
    minimize(b, loss, SGD(0.1))
    with pytest.raises(pl.GraphError, match="assigned to 'w' already"):
        minimize(b, loss, SGD(0.1), ["w"])


def test_there_must_be_one_gradient_for_each_variable() -> None:
    b, loss = product()
    with pytest.raises(pl.GraphError, match="2 variables to change and 1 gradients"):
        apply_gradients(b, SGD(0.1), ["w", "v"], [loss])


def test_the_name_of_the_step_stays_free_for_inputs_and_outputs() -> None:
    b, loss = product()
    step = minimize(b, loss, SGD(0.1))
    training = b.input("train", "bool", ())
    b.output("loss", b.op("Where", training, loss, np.float32(0)))
    b.output("step", step)
    assert {"train"} == {*b.build().inputs}
    with pl.BlockingSession(pl.plan(b.build())) as session:
        assert session.run({"train": True}, {"loss": "loss", "step": "step"})["loss"] == 6
        assert session.variables["w"] != 2


def test_a_loss_and_weights_go_by_the_names_of_outputs() -> None:
    b, product_of_both = product()
    b.output("loss", product_of_both)
    b.output("weight", "w")
    b.output("weight too", "weight")
    minimize(b, "loss", SGD(0.5), ["weight"])
    b.output("slope", pl.gradients(b, ["loss"], "v", checkpoint=["loss"]))
    b.output("twice", b.op("Add", "loss", "loss"))
    assert b.spec("loss") == b.spec(product_of_both)
    assert "loss" in b
    with pl.BlockingSession(pl.plan(b.build())) as session:
        found = session.run({})
        assert [float(found[n]) for n in ("loss", "twice", "slope", "weight")] == [6, 12, 2, 2]
        assert float(found["weight too"]) == 2
        assert session.variables["w"] == 2 - 0.5 * 3
