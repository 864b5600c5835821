"""Passes as part of planning: chosen by name, told in the plan, and held back by pins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph
from plait.graph.passes.rewriting import MayMerge
from plait.graph.values.errors import GraphError
from plait.scheduler.errors import PlanError


def swish(lengths: tuple[int | str, ...] = (4,)) -> Graph:
    """Return y = x · sigmoid(identity(x))."""
    b = pl.GraphBuilder("swish")
    x = b.input("x", "float32", lengths)
    copy = b.op("Identity", x, name="copy")
    b.output("y", b.op("Mul", copy, b.op("Sigmoid", copy, name="gate"), name="product"))
    return b.build()


def ops(plan: pl.Plan) -> list[str]:
    return [node.op for node in plan.graph.nodes]


def test_a_plan_tells_what_passes_did() -> None:
    plan = pl.plan(swish())
    assert ops(plan) == ["Swish"]
    assert [one.name for one in plan.applied] == ["bypass_identities", "fuse_activation"]
    assert "passes: 3 -> 1 nodes" in plan.report()
    (first, second) = plan.to_dict()["passes"]
    assert first["removed"] == ["copy"]
    assert second["rewritten"] == ["product: Mul -> Swish"]


def test_a_plan_without_passes_tells_nothing_of_them() -> None:
    plan = pl.plan(swish(), passes=())
    assert ops(plan) == ["Identity", "Sigmoid", "Mul"]
    assert "passes:" not in plan.report()


@pytest.mark.parametrize(
    ("passes", "left"),
    [
        (["fuse_activation"], ["Identity", "Swish"]),
        (["-fuse_activation"], ["Sigmoid", "Mul"]),
        (["-fuse_activation", "-bypass_identities"], ["Identity", "Sigmoid", "Mul"]),
    ],
)
def test_passes_are_chosen_by_name(passes: list[str], left: list[str]) -> None:
    assert ops(pl.plan(swish(), passes=passes)) == left


def test_candidates_for_a_stream_are_made_from_one_simplified_graph() -> None:
    seen = []

    def note(graph: Graph, _: MayMerge) -> Graph:
        seen.append(graph)
        return graph

    plan = pl.plan(swish(("n",)), bounds={"n": 8}, passes=[note], max_in_flight=4)
    assert len(seen) == 1
    assert plan.passes == (note,)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(GraphError, match="no pass 'fuse'"):
        pl.plan(swish(), passes=["fuse"])


@pytest.mark.parametrize("passes", ["fuse_activation", 3, [3]])
def test_what_is_no_list_of_passes_is_an_error(passes: object) -> None:
    with pytest.raises(PlanError, match="passes is"):
        pl.plan(swish(), passes=passes)  # type: ignore[arg-type]


def test_a_pass_of_the_users_own_is_told_by_its_name() -> None:
    def rename(graph: Graph, may_merge: MayMerge) -> Graph:
        return Graph("renamed", *(getattr(graph, f) for f in list(graph.__dataclass_fields__)[1:]))

    plan = pl.plan(swish(), passes=["fuse_activation", rename])
    assert plan.graph.name == "renamed"
    assert {one.name for one in plan.applied} == {"fuse_activation", "rename"}


def test_what_is_pinned_apart_stays_apart() -> None:
    plan = pl.plan(swish(), ["cpu", "sim:0"], pin={"copy": "sim:0", "product": "cpu"})
    assert "Identity" in ops(plan)


def test_passes_are_told_once_more_where_shapes_let_them_do_more() -> None:
    b = pl.GraphBuilder("varying")
    x = b.input("x", "float32", ("n", 4))
    b.output("y", b.op("Neg", b.op("Reshape", b.op("Abs", x), np.array([2, 4]), name="reshape")))
    plan = pl.plan(b.build())
    assert "Reshape" in ops(plan)
    fixed = plan.for_shapes({"x": (2, 4)})
    assert ops(fixed) == ["Abs", "Neg"]
    assert [one.removed for one in fixed.applied] == [("reshape",)]


def test_a_saved_plan_tells_what_passes_did(tmp_path: Path) -> None:
    plan = pl.plan(swish(), passes=["-bypass_identities"])
    plan.save(tmp_path / "swish.plan")
    loaded = pl.load_plan(tmp_path / "swish.plan")
    assert loaded.applied == plan.applied
    assert loaded.passes == plan.passes


def test_a_plan_within_bounds_tells_what_passes_did() -> None:
    plan = pl.plan(swish(("n",)), bounds={"n": 8})
    assert [one.name for one in plan.applied] == ["bypass_identities", "fuse_activation"]
