"""Planning takes work in proportion to the graph, whatever its form.

Counted in calls of functions, Python's and C's, and in memory: neither depends on the machine.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import plait as pl
import pytest
from counted_work import calls_of
from plait.graph.core.ir import Graph
from plait.scheduler.packing import problem
from plait.scheduler.planner.memory.happens_before import relate
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.partition.cutting import MOST_APART

COUNTS = MOST_APART + 4, 650
MORE = 1.15
"""By what factor work may grow beyond the graph: sorting."""

KERNEL = np.ones((3, 3, 3, 3), "float32")


def independent(b: pl.GraphBuilder, count: int) -> None:
    """Each has scratch."""
    for index in range(count):
        x = b.input(f"x{index}", "float32", (1, 3, 4, 4 + index % 3))
        b.output(f"y{index}", b.op("Conv", x, KERNEL, pads=[1, 1, 1, 1]))


def towers(b: pl.GraphBuilder, count: int) -> None:
    for tower in range(100):
        x = b.input(f"x{tower}", "float32", (1, 3, 4, 4))
        for _ in range(count // 100):
            x = b.op("Conv", x, KERNEL, pads=[1, 1, 1, 1])
        b.output(f"y{tower}", x)


def diamonds(b: pl.GraphBuilder, count: int) -> None:
    x = b.input("x", "float32", (4, 8))
    for _ in range(count // 3):
        x = b.op("Sub", b.op("Softmax", x), b.op("Sin", x))
    b.output("y", x)


def wide(b: pl.GraphBuilder, count: int) -> None:
    x = b.input("x", "float32", (1, 8))
    parts = [b.op("Softmax", b.op("Mul", x, np.float32(index))) for index in range(count // 2)]
    b.output("y", b.op("Concat", *parts, axis=0))


def fetched(b: pl.GraphBuilder, count: int) -> None:
    x = b.input("x", "float32", (4, 8))
    for index in range(count):
        x = b.op("Sin", x)
        b.output(f"y{index}", x)


def nested(b: pl.GraphBuilder, count: int) -> None:
    x = b.input("x", "float32", (4, 8))
    kept = [x := b.op("Softmax", x) for _ in range(count // 2)]
    for one in reversed(kept):
        x = b.op("Sub", x, one)
    b.output("y", x)


def alike(b: pl.GraphBuilder, count: int) -> None:
    """All read one tensor, each with another attribute."""
    x = b.input("x", "float32", (4, 8))
    b.output("y", b.op("Sum", *(b.op("Elu", x, alpha=1 + i / 7) for i in range(count))))


def taken_apart(b: pl.GraphBuilder, count: int) -> None:
    """One node of many outputs, each of which is read."""
    x = b.input("x", "float32", (count // 2, 8))
    for index, part in enumerate(b.op("Split", x, outputs=count // 2, axis=0)):
        b.output(f"y{index}", b.op("Softmax", part))


def duplicates(b: pl.GraphBuilder, count: int) -> None:
    """All are the same, and fetched."""
    x = b.input("x", "float32", (4, 8))
    for index in range(count):
        b.output(f"y{index}", b.op("Sin", x))


GRAPHS = [independent, towers, diamonds, wide, fetched, nested, alike, taken_apart, duplicates]


def built(add: Callable[[pl.GraphBuilder, int], None], count: int) -> Graph:
    b = pl.GraphBuilder(add.__name__)
    add(b, count)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("add", "devices"),
    [*((add, ("cpu",)) for add in GRAPHS), (independent, ("cpu", "worker:0"))],
)
def test_planning_work_grows_with_the_graph(
    add: Callable[[pl.GraphBuilder, int], None], devices: tuple[str, ...]
) -> None:
    def plan(count: int) -> Callable[[], pl.Plan]:
        graph = built(add, count)
        pins = {node.name: devices[i % len(devices)] for i, node in enumerate(graph.nodes)}
        return lambda: pl.plan(graph, devices, pin=pins)

    plan(100)()  # what is imported and compiled once
    few, many = (calls_of(plan(count)) for count in COUNTS)
    assert many <= MORE * few * COUNTS[1] / COUNTS[0]


@pytest.mark.slow
def test_memory_is_laid_out_without_a_list_of_all_conflicts() -> None:
    graph = built(independent, COUNTS[1])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pl.plan(graph, ["cpu"])
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert most <= 20_000 * COUNTS[1]


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "worker:0")])
def test_what_is_laid_out_without_looking_at_pairs_is_sound(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]
) -> None:
    monkeypatch.setattr(relate, "__kwdefaults__", {"most": 100})
    monkeypatch.setattr(problem, "MOST_PAIRS", 100)
    graph = built(towers, 300)
    pins = {node.name: devices[i // 7 % len(devices)] for i, node in enumerate(graph.nodes)}
    for slots in (1, 4):
        plan = pl.plan(graph, devices, pin=pins, max_in_flight=slots, passes=())
        verify_memory(plan)
        assert plan.memory is not None
        assert plan.memory.nbytes < sum(p.tensors_nbytes for p in plan.memory.pools.values())


def test_garbage_is_looked_for_when_a_plan_is_made_and_there_is_next_to_none() -> None:
    graph = built(diamonds, 900)
    pl.plan(graph, ["cpu"])  # what is imported once makes cycles
    found: list[int] = []

    def note(phase: str, told: dict[str, int]) -> None:
        found.extend([told["collected"]] if phase == "stop" else [])

    gc.collect()
    gc.callbacks.append(note)
    try:
        plan = pl.plan(graph, ["cpu"])
        assert len(found) <= 1  # when it is over
        gc.collect()
    finally:
        gc.callbacks.remove(note)
    assert sum(found) < len(plan.graph.nodes)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    graph = built(diamonds, 3)
    try:
        if not enabled:
            gc.disable()
        pl.plan(graph)
        assert gc.isenabled() == enabled
        with pytest.raises(pl.PlanError):
            pl.plan(graph, max_in_flight=0)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_hundreds_of_independent_nodes_are_one_step() -> None:
    plan = pl.plan(built(independent, MOST_APART + 1), ["cpu"])
    assert len(plan.steps) == 1
    assert len(pl.plan(built(independent, MOST_APART), ["cpu"]).steps) == MOST_APART
    verify_memory(plan)
