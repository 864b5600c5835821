"""Several kernels for an operator: which one a node gets. Row T24 of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.kernels import registry
from plait.devices.kernels.fused import takes
from plait.devices.kernels.registry import find_kernel, kernel, list_kernels, list_kernels_for
from plait.devices.worker.modules import list_node_sources
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Call
from plait.graph.values.errors import GraphError
from plait.graph.values.tensor import Array, TensorSpec

FLOATS = np.array([1.0, 2.0], np.float32)


@pytest.fixture(autouse=True)
def _forget_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    list_kernels()  # those that are imported later would be forgotten too
    monkeypatch.setattr(registry, "_kernels", copy(registry._kernels))
    monkeypatch.setattr(registry, "_others", copy(registry._others))
    registry._others.clear()


def add(value: float, **options: Any) -> Callable[..., None]:
    """Register a kernel for Relu that writes a number."""

    @kernel("Relu", **options)
    def fill(xp: Any, inputs: Sequence[Array], outputs: Sequence[Array], attributes: Any) -> None:
        outputs[0].fill(value)

    return fill


def relu(dtype: str = "float32", shape: Sequence[int | str] = (2,)) -> Graph:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", dtype, shape), name="relu"))
    return b.build()


def found(graph: Graph, device: str = "cpu", n: int = 2) -> float:
    """Return the number that the kernel wrote which was taken."""
    x = np.ones(n, graph.tensors["x"].dtype)
    return float(pl.run(graph, {"x": x}, devices=[device])["y"][0])


def of_floats(call: Call) -> bool:
    return call.spec(0).dtype == np.float32


def length(call: Call) -> float:
    return float(call.spec(0).static_shape[0])


def test_a_kernel_is_taken_where_it_serves() -> None:
    add(7, when=of_floats)
    assert found(relu("float32")) == 7
    assert found(relu("float64")) == 1


def test_the_highest_score_wins_whatever_the_order() -> None:
    add(5, score=5)
    add(9, score=9)
    add(7, score=7)
    assert found(relu()) == 9


def test_a_score_may_depend_on_the_shape() -> None:
    add(3, score=3)
    add(7, score=length)
    assert found(relu(shape=(2,)), n=2) == 3
    assert found(relu(shape=(8,)), n=8) == 7


def test_a_negative_score_stands_back_behind_the_usual_kernel() -> None:
    add(7, score=-1)
    assert found(relu()) == 1


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ({"score": 2}, {"score": 2}, 5),  # the first that was registered
        ({"score": 2}, {"score": 2, "when": of_floats}, 7),
        ({"score": 2, "when": of_floats}, {"score": 2, "device": "cpu"}, 7),
        ({"score": 2, "device": "cpu"}, {"score": 3}, 7),
        ({"score": 2}, {"score": 9, "device": "cuda"}, 5),
    ],
)
def test_of_equal_scores_the_more_special_one_is_taken(
    first: dict[str, Any], second: dict[str, Any], wanted: float
) -> None:
    add(5, **first)
    add(7, **second)
    assert found(relu()) == wanted


def test_shapes_that_become_known_later_decide_then() -> None:
    add(7, when=lambda call: length(call) > 4)
    graph = relu(shape=("n",))
    plan = pl.plan(graph)
    with pl.BlockingSession(plan) as session:
        for n, wanted in ((2, 1), (8, 7), (3, 1)):
            assert session.run({"x": np.ones(n, np.float32)})["y"][0] == wanted


def test_a_kernel_has_scratch_of_its_own() -> None:
    def scratch(call: Call, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        return [TensorSpec("int64", (3,))]

    @kernel("Relu", when=of_floats, scratch=scratch)
    def taken(
        xp: Any, inputs: Any, outputs: Sequence[Array], attributes: Any, scratch: Sequence[Array]
    ) -> None:
        scratch[0].fill(4)
        outputs[0].fill(scratch[0].sum())

    assert found(relu()) == 12


def test_an_operator_may_have_kernels_for_some_calls_only() -> None:
    known = {op: each for op, each in registry._kernels.items() if op[0] != "Relu"}
    registry._kernels.clear()
    registry._kernels.update(known)
    add(7, when=of_floats)
    assert found(relu("float32")) == 7
    with pytest.raises(pl.UnsupportedOpError, match=r"no kernel for 'Relu' .* that serves here"):
        pl.plan(relu("float64"), passes=["-expand_unsupported"])


def test_a_plan_tells_which_kernel_was_chosen() -> None:
    add(7, when=of_floats)
    assert "has the kernel fill" in pl.plan(relu()).reasons["relu"]
    assert "has the kernel" not in pl.plan(relu("float64")).reasons["relu"]


def test_a_node_with_a_kernel_of_its_own_is_in_no_chain() -> None:
    (node,), call = relu().nodes, relu().call(relu().nodes[0])
    assert takes(node, call)
    add(7, when=of_floats)
    assert not takes(node, call)


def test_a_condition_that_fails_is_an_error_of_ours() -> None:
    def broken(call: Call) -> bool:
        raise LookupError("no such thing")

    add(7, when=broken)
    with pytest.raises(pl.PlaitError, match="no such thing"):
        pl.plan(relu())


def test_workers_import_all_kernels_that_they_may_choose_among() -> None:
    made = add(7, when=of_floats)
    made.__module__, made.__qualname__ = "somebody.kernels", "fill"
    (node,) = relu().nodes
    assert "somebody.kernels" in {source.module for source in list_node_sources(node)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"when": True}, "when is True"),
        ({"score": "7"}, "score is '7'"),
        ({"score": np.nan}, "is nan"),
    ],
)
def test_conditions_and_scores_that_are_none_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message) as raised:
        add(7, **wrong)
    assert "kernel for 'Relu' on 'any'" in str(raised.value)
    assert found(relu()) == 1


def test_two_usual_kernels_are_refused_with_the_way_out() -> None:
    with pytest.raises(GraphError, match="two kernels for 'Relu' on 'any'") as raised:
        add(7)
    assert raised.value.fix is not None
    assert "when= or score=" in raised.value.fix


def test_all_kernels_are_listed() -> None:
    before = len(list_kernels())
    add(7, when=of_floats)
    add(9, device="cuda", score=1)
    assert len(list_kernels()) == before + 2
    assert [each.when for each in list_kernels_for("Relu", "cpu")] == [None, of_floats]
    usual = find_kernel("Relu", "cpu")
    assert usual is not None
    assert usual.is_usual
