"""Shapes at new lengths: by formula where inference said the same before, inferred where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Dim
from plait.scheduler.planner.bounded_shapes import BoundedShapes
from plait.scheduler.shapes import formulas as formulas_module
from plait.scheduler.shapes.formulas import TRIALS, ShapeFormulas
from plait.scheduler.shapes.specialise import specialise
from varying_shapes import (
    WIDTH,
    by_itself,
    open_graphs,
    read_half,
    read_half_by_numpy,
    rows,
    switching,
    take_alternate,
    two_steps,
)

LONGEST = 32


def formulas(graph: Graph) -> ShapeFormulas:
    shapes = {"x": (LONGEST, WIDTH)}
    fed = {name: graph.tensors[name] for name in graph.inputs}
    return ShapeFormulas(graph, specialise(graph, shapes), fed, shapes)


@pytest.fixture
def inferred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths at which shapes are inferred from now on."""
    lengths: list[int] = []

    def noted(self: BoundedShapes, shapes: dict[str, tuple[int, ...]]) -> Graph | None:
        lengths.append(shapes["x"][0])
        return infer(self, shapes)

    infer = BoundedShapes._inferred
    monkeypatch.setattr(BoundedShapes, "_inferred", noted)
    return lengths


def cut_frames() -> Graph:
    """Return frames of a sound, 256 long with a hop of 128; it is filled up to 2000 before."""
    b = pl.GraphBuilder("framed")
    weights = np.random.default_rng(0).normal(size=(4, 1, 256)).astype("float32")
    x, zero = b.input("x", "float32", ("n",)), np.array([0])
    missing = b.op("Max", np.array([2000]) - b.op("Shape", x), zero)
    x = b.op("Unsqueeze", b.op("Pad", x, b.op("Concat", zero, missing, axis=0)), np.array([0, 1]))
    y = b.op("Conv", x, weights, strides=[128], pads=[128, 128]).relu()
    ends = (np.array([one]) for one in (1, 2**31 - 1, 2, 1))
    b.output("y", b.op("Slice", y, *ends))
    return b.build()


def test_lengths_of_all_rests_follow_where_a_runtime_checks_shapes(
    inferred: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the pads, which nodes compute from lengths."""

    def refuse(*_: object) -> Graph:
        raise AssertionError("pads were computed node by node")

    monkeypatch.setattr(formulas_module, "specialise", refuse)
    random, graph = np.random.default_rng(1), cut_frames()
    with pl.BlockingSession(pl.plan(graph, "ort", bounds={"n": 4096})) as session:
        for n in (4096, *range(1000, 4000, 97)):
            feeds = {"x": random.normal(size=n).astype("float32")}
            wanted = pl.run(graph, feeds, "cpu")["y"]
            np.testing.assert_allclose(session.run(feeds)["y"], wanted, 1e-4, 1e-4)
    assert len(inferred) <= TRIALS + 1


def test_lengths_at_which_tensors_do_not_fit_fail_in_the_runtime() -> None:
    b = pl.GraphBuilder("halved")
    x = b.input("x", "float32", ("n", 4))
    half = b.op("Unsqueeze", b.op("Transpose", x), np.array([0]))
    half = b.op("MaxPool", half, kernel_shape=[2], strides=[2])
    twice = b.op("Resize", half, None, np.array([1, 1, 2], "float32"), mode="nearest")
    b.output("y", b.op("Add", x, b.op("Transpose", b.op("Squeeze", twice, np.array([0])))))
    graph = b.build()
    with pl.BlockingSession(pl.plan(graph, "ort", bounds={"n": 64})) as session:
        for n in (64, 32, 10, 22, 7, 48, 9, 50):
            feeds = {"x": np.arange(4 * n, dtype="float32").reshape(n, 4)}
            if n % 2:
                with pytest.raises(pl.PlaitError):
                    session.run(feeds)
            else:
                wanted = feeds["x"] + np.repeat(feeds["x"][1::2], 2, axis=0)
                np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


@pytest.mark.parametrize("device", ["cpu", "ort"])
def test_a_few_lengths_are_inferred_and_then_none(inferred: list[int], device: str) -> None:
    graph = two_steps()
    with pl.BlockingSession(pl.plan(graph, device, bounds={"n": LONGEST})) as session:
        lengths = [LONGEST, 5, 9, 7, 2, 31, 12, 11, 5]
        for n in lengths:
            np.testing.assert_allclose(
                session.run(rows(n))["y"], by_itself(graph, rows(n))["y"], 1e-5
            )
    assert inferred == lengths[1 : 1 + TRIALS]


def test_the_ends_of_lengths_are_always_inferred(inferred: list[int]) -> None:
    plan = pl.plan(two_steps(), bounds={"n": (0, LONGEST)})
    with pl.BlockingSession(plan) as session:
        for n in (5, 9, 7, 1, 0, 8):
            assert session.run(rows(n))["y"].shape == (n, WIDTH)
    assert inferred == [5, 9, 7, 1, 0]


def test_lengths_that_become_values_are_always_inferred(inferred: list[int]) -> None:
    graph = switching()
    with pl.BlockingSession(pl.plan(graph, bounds={"n": LONGEST})) as session:
        for n in (8, 9, 10, 11, 3, 2, 20):
            np.testing.assert_array_equal(session.run(rows(n))["y"], by_itself(graph, rows(n))["y"])
    assert len(inferred) == 7


def test_lengths_that_do_not_fit_are_errors_at_whichever_of_them() -> None:
    b = pl.GraphBuilder("fits 32 alone")
    b.output("y", b.op("Add", b.input("x", "float32", ("n",)), np.ones(LONGEST, np.float32)))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"n": LONGEST})) as session:
        for n in range(2, 8):
            with pytest.raises(pl.ShapeError):
                session.run({"x": np.ones(n, np.float32)})
        assert session.run({"x": np.ones(LONGEST, np.float32)})["y"].tolist() == [2] * LONGEST


def test_computed_and_read_lengths_are_inferred_a_few_times(inferred: list[int]) -> None:
    with pl.BlockingSession(pl.plan(read_half(), bounds={"n": LONGEST})) as session:
        for n in (5, 9, 7, 2, 31, 12, 11, 3):
            wanted = read_half_by_numpy(rows(n)["x"])
            np.testing.assert_array_equal(session.run(rows(n))["y"], wanted)
    assert inferred == [5, 9, 7, 2, 12]  # even lengths follow other rules


def test_lengths_that_do_not_fit_are_found_among_many_that_do() -> None:
    """Formulas have the greater of two lengths that are added, as networks with skips do."""
    b = pl.GraphBuilder("skips")
    half = take_alternate(b, b.input("x", "float32", ("n", WIDTH)))
    quarter = b.op("MaxPool", half, kernel_shape=[1, 1], strides=[2, 1])
    scales = np.array([1, 1, 2, 1], "float32")
    larger = b.op("Resize", quarter, None, scales, coordinate_transformation_mode="asymmetric")
    b.output("y", b.op("Add", half, larger))
    fitting = [n for n in range(5, LONGEST) if (n + 1) // 2 == 2 * ((n + 3) // 4)]
    with pl.BlockingSession(pl.plan(b.build(), bounds={"n": LONGEST})) as session:
        for n in fitting:
            half = rows(n)["x"][::2]
            wanted = half + np.repeat(half[::2], 2, axis=0)[: len(half)]
            np.testing.assert_array_equal(session.run(rows(n))["y"][0, 0], wanted)
        for n in {*range(5, LONGEST)}.difference(fitting):
            with pytest.raises(pl.ShapeError):
                session.run(rows(n))


@settings(max_examples=60)
@given(open_graphs(), st.lists(st.integers(1, LONGEST), min_size=TRIALS, max_size=12))
def test_formulas_say_what_is_inferred_or_nothing(graph: Graph, lengths: list[int]) -> None:
    made = formulas(graph)
    for n in lengths:
        shapes = {"x": (n, WIDTH)}
        true = specialise(graph, shapes)
        found = made.at(shapes)
        if found is None:
            made.compare(shapes, true)
        else:
            assert found == true
        if (told := made.find(shapes, true.tensors)) is not None:
            assert told[0] == true.tensors
            assert all(np.array_equal(true.constants[one], told[1][one]) for one in told[1])


def test_tensors_are_never_larger_than_planned() -> None:
    """Two computed lengths may be at their largest for different lengths of inputs."""
    graph = two_steps()

    def make(n: Dim, rest: Dim) -> Graph:
        specs = {name: pl.TensorSpec("float32", (n, rest)) for name in graph.tensors}
        return replace(graph, tensors={**specs, "x": pl.TensorSpec("float32", (n,))})

    template, fed = make("n", "(40-n)"), {"x": pl.TensorSpec("float32", ("n",))}
    made = ShapeFormulas(template, make(20, 20), fed, {"x": (20,)})
    for n in (10, 15, 30):
        made.compare({"x": (n,)}, make(n, 40 - n))
        assert made.find({"x": (n,)}, ["y"]) is None
    assert made.at({"x": (15,)}) == make(15, 25)
    assert made.find({"x": (20,)}, ["y"]) == ({"y": pl.TensorSpec("float32", (20, 20))}, {})


def test_formulas_stay_within_what_was_inferred() -> None:
    made = formulas(two_steps())
    for n in (3, 4, 5):
        made.compare({"x": (n, WIDTH)}, specialise(two_steps(), {"x": (n, WIDTH)}))
    assert made.at({"x": (LONGEST, WIDTH)}) is not None
    assert made.at({"x": (LONGEST + 1, WIDTH)}) is None
