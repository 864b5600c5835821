"""Numbers of items that found their plan, and what the others waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.runtime.status import Status

HINT = "fix: bound the lengths"


@pl.operator((pl.TensorSpec("int64", ("found",)),), inputs=[pl.TensorSpec("int64", ("n",))])
def positive(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers above 0."""
    return x[x > 0]


def rectified() -> pl.Graph:
    b = pl.GraphBuilder("rectified")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n",))))
    return b.build()


def make_long_graph() -> pl.Graph:
    """Return a graph with too many nodes to be bound to new lengths without a plan for each."""
    b = pl.GraphBuilder("long")
    x = b.input("x", "float32", ("n",))
    for _ in range(40):
        x = b.op("Sin", x)
    b.output("y", x)
    return b.build()


def found() -> pl.Graph:
    b = pl.GraphBuilder("found")
    kept = b.call(positive, b.input("x", "int64", ("n",)))
    b.output("y", b.op("Add", kept, np.array(1)))
    return b.build()


def fed(graph: pl.Graph, length: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.arange(length).astype(graph.tensors["x"].dtype)}


def run(plan: pl.Plan, lengths: Sequence[int]) -> tuple[pl.Profile, Status, int]:
    """Return the profile, the status, and how many lookups had missed before the first item."""
    with pl.BlockingSession(plan) as session:
        opened = session.status().plans.misses
        for length in lengths:
            session.run(fed(plan.fed, length))
        return session.profile(), session.status(), opened


def counts(profile: pl.Profile) -> tuple[int, int, int]:
    plans = profile.totals()["plans"]
    return plans["hits"], plans["bound"], plans["misses"]


def test_new_lengths_within_bounds_wait_for_no_plan() -> None:
    profile, _, _ = run(pl.plan(rectified(), ["cpu"], bounds={"n": 64}), range(1, 30))
    assert counts(profile) == (0, 29, 0)
    spent = profile.attribution()
    assert spent.planning_ns == 0 < spent.binding_ns
    assert "plans: 0 items found theirs, 29 waited for programs to be bound" in profile.table()
    assert HINT not in profile.table()
    assert "most items had new lengths, and were bound in " in profile.table()
    profile, _, _ = run(pl.plan(rectified(), ["cpu"], bounds={"n": 64}), [5] * 29)
    assert "new lengths" not in profile.table()


def test_new_lengths_without_bounds_wait_for_plans_and_are_told_of_bounds() -> None:
    profile, _, _ = run(pl.plan(make_long_graph(), ["cpu"], passes=()), range(1, 30))
    assert counts(profile) == (0, 0, 29)
    assert profile.table().count(HINT) == 1


@pytest.mark.parametrize("length", [1, 5])
def test_items_of_computed_lengths_wait_no_longer_once_all_is_there(length: int) -> None:
    plan = pl.plan(found(), ["cpu"], bounds={"n": 64, "found": 64})
    profile, status, _ = run(plan, [length] * 20)
    hits, bound, misses = counts(profile)
    assert hits >= 18
    assert hits + bound + misses == 20
    assert HINT not in profile.table()
    assert status.plans.hits >= hits


@settings(max_examples=20, deadline=None)
@given(
    # Of more lengths, later ones are bound for one item each, and not kept.
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    bounds=st.sampled_from([None, {"n": 9}]),
)
def test_items_are_counted_as_the_session_counts_plans(
    lengths: list[int], bounds: dict[str, int] | None
) -> None:
    profile, status, opened = run(pl.plan(rectified(), ["cpu"], bounds=bounds), lengths)
    hits, bound, misses = counts(profile)
    assert hits == status.plans.hits == len(lengths) - len(set(lengths))
    assert bound + misses == status.plans.misses - opened == len(set(lengths))
    assert (misses if bounds else bound) == 0
