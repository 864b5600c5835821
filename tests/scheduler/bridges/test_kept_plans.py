"""Plans that `run` keeps from one call to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import plait as pl
import pytest
from plait.devices.kernels.registry import kernel
from plait.graph.core.ir import Graph
from plait.scheduler.bridges.blocking import MOST_NBYTES, MOST_PLANS, KeptPlans

X = np.array([-1, 2], np.float32)


def relu(weight: object = 0.0) -> Graph:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.op("Add", b.input("x", "float32", (2,)), weight), name="relu"))
    return b.build()


def test_a_graph_is_planned_once() -> None:
    kept, graph = KeptPlans(), relu()
    assert kept.find(graph, ["cpu"]) is kept.find(graph, ("cpu",))


@pytest.mark.parametrize(
    "asked",
    [
        lambda kept, graph: kept.find(relu(), ("cpu",)),
        lambda kept, graph: kept.find(graph, ("cpu", "sim:npu")),
        lambda kept, graph: kept.find(graph, ("cpu",), pin={"relu": "cpu"}),
        lambda kept, graph: kept.find(graph, ("cpu",), bounds={}),
        lambda kept, graph: kept.find(graph, ("cpu",), shapes={"x": (2,)}),
        lambda kept, graph: kept.find(graph, ("cpu",), strategy="preference"),
    ],
    ids=["graph", "devices", "pins", "bounds", "shapes", "strategy"],
)
def test_what_else_is_asked_for_has_a_plan_of_its_own(
    asked: Callable[[KeptPlans, Graph], pl.Plan],
) -> None:
    kept, graph = KeptPlans(), relu()
    first = kept.find(graph, ("cpu",))
    assert asked(kept, graph) is not first
    assert kept.find(graph, ("cpu",)) is first


def test_the_plan_that_was_not_asked_for_longest_gives_way() -> None:
    kept, graphs = KeptPlans(), [relu() for _ in range(MOST_PLANS + 1)]
    plans = [kept.find(graph, "cpu") for graph in graphs]
    assert kept.find(graphs[-1], "cpu") is plans[-1]
    assert kept.find(graphs[0], "cpu") is not plans[0]


def test_nothing_of_a_graph_with_many_bytes_is_held_on_to() -> None:
    weight = np.broadcast_to(np.float32(0), (MOST_NBYTES // 8 + 1, 2))  # takes no memory
    kept = KeptPlans()
    graph = Graph("large", (), (), (), {"w": pl.TensorSpec("float32", weight.shape)}, {"w": weight})
    assert kept.find(graph, "cpu") is not kept.find(graph, "cpu")


def test_what_is_registered_later_counts() -> None:
    graph = relu()
    assert pl.run(graph, {"x": X})["y"].tolist() == [0, 2]

    @kernel("Relu", score=1)
    def seven(xp: object, inputs: object, outputs: list[np.ndarray], attributes: object) -> None:
        outputs[0].fill(7)

    try:
        assert pl.run(graph, {"x": X})["y"].tolist() == [7, 7]
    finally:
        pl.unregister(seven)
    assert pl.run(graph, {"x": X})["y"].tolist() == [0, 2]


def test_mistakes_are_told_by_planning() -> None:
    kept = KeptPlans()
    with pytest.raises(pl.PlanError):
        kept.find(relu(), ("cpu",), pin={"nothing": "cpu"})
    with pytest.raises(pl.PlaitError):
        kept.find("no graph", ("cpu",))  # type: ignore[arg-type]
    with pytest.raises(pl.PlaitError):
        kept.find(relu(), [["cpu"]])  # type: ignore[list-item]


def test_each_run_begins_anew() -> None:
    """Variables and random numbers are those of a session of its own."""
    b = pl.GraphBuilder("count")
    count = b.variable("count", np.float32(0))
    added = b.op("Add", count, 1.0)
    b.assign(count, added)
    b.output("y", added)
    graph = b.build()
    assert [float(pl.run(graph, {})["y"]) for _ in range(3)] == [1, 1, 1]


def test_nothing_is_open_between_calls() -> None:
    graph = relu()
    pl.run(graph, {"x": X})
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("plait")}
    assert threads == set()
