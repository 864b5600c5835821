"""Axes, indices and limits that are fed: the wrong ones fail everywhere, and do no damage.

What a device does not run goes to `cpu`, which is beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import pytest
from every_device import SUBJECTS, Subject, parameters
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.slow

DEVICES = parameters(
    tuple(each for each in SUBJECTS if each.kind in ("cpu", "formal", "ort", "generated", "opencl"))
)
X = np.arange(1, 13, dtype="float32").reshape(3, 4)
ONES = np.ones((1, 1, 2, 2), "float32")
ROI = np.array([[0, 0, 2, 2]], "float32")
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.5], [2, 2, 3, 3]]], "float32")
SCORES = np.array([[[0.9, 0.8, 0.7]]], "float32")


class Fed(NamedTuple):
    """An operator that is fed v beside x, a value of v that is right, and some that are not."""

    make: Callable[[pl.GraphBuilder, Any, Any], Any]
    right: Array
    wrong: tuple[Array, ...]
    x: Array = X


def whole(*values: Any) -> Array:
    return np.array(values, "int64")


def number(value: float, dtype: str = "int64") -> Array:
    return np.array(value, dtype)


def axes(op: str, right: int = 0, x: Array = X) -> Fed:
    beyond = x.ndim + (op == "Unsqueeze")
    wrong = (whole(beyond), whole(-beyond - 1), whole(right, right))
    return Fed(lambda b, x, v: b.op(op, x, v), whole(right), wrong, x)


def scan(op: str) -> Fed:
    wrong = tuple(map(number, (2, -3, 5, 2**40)))
    return Fed(lambda b, x, v: b.op(op, x, v), number(-1), wrong)


def scattered(op: str, row: int, **attributes: Any) -> Fed:
    """An operator that writes one row, or as many elements as are named."""
    updates = np.zeros((1, row), "float32")
    right = whole([-3]) if op == "ScatterND" else whole([2, -3])
    wrong = (whole([3]), whole([-4])) if op == "ScatterND" else (whole([3, 0]), whole([-4, 0]))
    return Fed(lambda b, x, v: b.op(op, x, v, updates, **attributes), right, wrong)


FED = {
    "CumSum": scan("CumSum"),
    "CumProd": scan("CumProd"),
    "ReduceSum": axes("ReduceSum"),
    "Squeeze": axes("Squeeze", x=X[:1]),
    "Unsqueeze": axes("Unsqueeze"),
    "Slice": Fed(
        lambda b, x, v: b.op("Slice", x, whole(0), whole(2), v), whole(1), (whole(2), whole(-3))
    ),
    "Gather": Fed(
        lambda b, x, v: b.op("Gather", x, v),
        whole(2, -3),
        tuple(whole(0, v) for v in (3, -4, 2**31, 2**40, -(2**63))),
    ),
    "Gather int32": Fed(
        lambda b, x, v: b.op("Gather", x, v, axis=1),
        np.array([3, -4], "int32"),
        tuple(np.array([0, v], "int32") for v in (4, -5, 2**31 - 1)),
    ),
    "GatherElements": Fed(
        lambda b, x, v: b.op("GatherElements", x, v),
        whole([2, -3]),
        (whole([3, 0]), whole([-4, 0])),
    ),
    "GatherND": Fed(
        lambda b, x, v: b.op("GatherND", x, v), whole([2, -4]), (whole([0, 4]), whole([-4, 0]))
    ),
    "ScatterElements": scattered("ScatterElements", 2),
    "ScatterElements, added": scattered("ScatterElements", 2, reduction="add"),
    "ScatterND": scattered("ScatterND", 4),
    "ScatterND, largest": scattered("ScatterND", 4, reduction="max"),
    "TensorScatter": Fed(
        lambda b, x, v: b.op("TensorScatter", x, np.zeros((3, 2), "float32"), v, axis=1),
        whole(0, 2, 1),
        (whole(0, 3, 1), whole(0, -1, 1)),
    ),
    "ReverseSequence": Fed(
        lambda b, x, v: b.op("ReverseSequence", x, v),
        whole(1, 3, 2, 1),
        (whole(1, 4, 1, 1), whole(1, -1, 1, 1)),
    ),
    "MaxUnpool": Fed(
        lambda b, x, v: b.op("MaxUnpool", x, v, kernel_shape=(2, 2), strides=(2, 2)),
        whole([[[0, 2], [8, 15]]]),
        (whole([[[0, 2], [8, 16]]]), whole([[[0, 2], [8, -1]]])),
        ONES,
    ),
    "RoiAlign": Fed(
        lambda b, x, v: b.op("RoiAlign", x, ROI, v, output_height=1, output_width=1),
        whole(0),
        (whole(1), whole(-1)),
        ONES,
    ),
    "NonMaxSuppression": Fed(
        lambda b, x, v: b.op("NonMaxSuppression", x, SCORES, whole(3), v),
        number(0.5, "float32"),
        tuple(number(v, "float32") for v in (-0.5, 1.5, np.nan)),
        BOXES,
    ),
}


def graph_of(fed: Fed) -> pl.Graph:
    b = pl.GraphBuilder("fed")
    x = b.input("x", "float32", fed.x.shape)
    alike = all(wrong.shape == fed.right.shape for wrong in fed.wrong)
    v = b.input("v", fed.right.dtype.name, fed.right.shape if alike else ("n",))
    b.output("y", fed.make(b, x, v))
    return b.build()


def planned(graph: pl.Graph, subject: Subject) -> pl.Plan:
    with subject.skipped_if_missing():
        device = subject.make_for_session()
        others = () if device.name == "cpu" else ("cpu",)
        return pl.plan(graph, [device, *others], strategy="preference")


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("subject", DEVICES)
def test_a_wrong_one_fails_and_the_next_item_is_right(name: str, subject: Subject) -> None:
    fed = FED[name]
    graph = graph_of(fed)
    wanted = pl.run(graph, {"x": fed.x, "v": fed.right}, devices=["formal"])["y"]
    with pl.BlockingSession(planned(graph, subject)) as session:
        for wrong in fed.wrong:
            with pytest.raises((pl.ShapeError, pl.KernelError)) as raised:
                session.run({"x": fed.x, "v": wrong})
            assert not isinstance(raised.value, pl.InternalError)
            right = session.run({"x": fed.x, "v": fed.right})["y"]
            np.testing.assert_allclose(right, wanted, 1e-6)


ALLOWED = {
    "OneHot": Fed(
        lambda b, x, v: b.op("OneHot", v, number(3), np.array([0, 1], "float32")),
        whole(-3, 2),
        (whole(3, -4), whole(2**40, -(2**63))),
    ),
    "Trilu": Fed(
        lambda b, x, v: b.op("Trilu", x, v),
        number(1),
        tuple(map(number, (9, -9, 2**63 - 1, -(2**63)))),
    ),
    "TensorScatter, circular": Fed(
        lambda b, x, v: b.op(
            "TensorScatter", x, np.zeros((3, 2), "float32"), v, axis=1, mode="circular"
        ),
        whole(0, 2, 1),
        (whole(0, 3, 1), whole(0, 9, 1)),
    ),
    "Slice": Fed(
        lambda b, x, v: b.op("Slice", x, v, whole(2)),
        whole(1),
        (whole(2**63 - 1), whole(-(2**63))),
    ),
}
"""Values beyond an axis that have a meaning."""


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("subject", DEVICES)
def test_those_that_are_allowed_mean_the_same(name: str, subject: Subject) -> None:
    fed = ALLOWED[name]
    graph = graph_of(fed)
    with pl.BlockingSession(planned(graph, subject)) as session:
        for v in (fed.right, *fed.wrong):
            feeds = {name: {"x": fed.x, "v": v}[name] for name in graph.inputs}
            wanted = pl.run(graph, feeds, devices=["formal"])["y"]
            np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


@pytest.mark.parametrize("subject", DEVICES)
def test_variables_keep_what_they_held_before_the_item_that_failed(subject: Subject) -> None:
    b = pl.GraphBuilder("summing")
    total = b.variable("total", np.zeros(4, np.float32))
    row = b.op("Gather", X, b.input("i", "int64", ()), axis=0)
    b.assign(total, b.op("Add", total, row))
    b.output("y", row)
    with pl.BlockingSession(planned(b.build(), subject)) as session:
        session.run({"i": number(1)})
        with pytest.raises(pl.KernelError):
            session.run({"i": number(3)})
        assert session.variables["total"].tolist() == X[1].tolist()
        session.run({"i": number(2)})
        assert session.variables["total"].tolist() == (X[1] + X[2]).tolist()
