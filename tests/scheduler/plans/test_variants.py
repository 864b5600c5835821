"""The variants of a plan: the same partition and memory, on other devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import plait as pl
import pytest
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait import devices
from plait.graph.core.ir import Graph
from plait.scheduler.plans.placement import Step
from plait.scheduler.plans.variants import make_variant


@pytest.fixture(autouse=True)
def stages() -> Iterator[None]:
    """Have devices with a memory of their own, by name."""
    devices.register("stage", PrivateDevice)
    devices.register("other", PrivateDevice)
    yield
    devices.unregister("stage")
    devices.unregister("other")


def random_chain(random: Random) -> Graph:
    builder = pl.GraphBuilder("random")
    made = [builder.input("x", "float32", (32,))]
    for index in range(random.randint(1, 8)):
        made.append(builder.op("Add", random.choice(made), made[-1], name=f"n{index}"))
    builder.output("y", made[-1])
    return builder.build()


def described(step: Step) -> tuple[str, str, tuple[int, ...]]:
    return step.name, step.device, step.waits


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), index=st.integers(0, 5), in_flight=st.integers(1, 3))
def test_a_variant_is_what_planning_for_its_devices_gives(
    seed: int, index: int, in_flight: int
) -> None:
    random = Random(seed)
    graph = random_chain(random)
    names = {
        "cpu": "cpu",
        "stage:0..2": f"stage:{index % 3}",
        "other:4..5": f"other:{4 + index % 2}",
    }
    pins = {node.name: random.choice([*names]) for node in graph.nodes}
    plan = pl.plan(graph, [*names], pin=pins, max_in_flight=3 * in_flight)
    found = make_variant(plan, index)
    alone = pl.plan(
        graph,
        [*names.values()],
        pin={node: names[device] for node, device in pins.items()},
        max_in_flight=in_flight,
    )
    assert found.replicas == ()
    assert found.devices == alone.devices
    assert found.pins == alone.pins
    assert found.assignment == alone.assignment
    assert found.memory == alone.memory
    assert found.costs == alone.costs
    assert found.placement is not None
    assert alone.placement is not None
    assert found.placement.home == alone.placement.home
    assert found.placement.local == alone.placement.local
    assert [described(step) for step in found.steps] == [described(step) for step in alone.steps]


def test_plans_without_replicas_are_their_only_variant() -> None:
    plan = pl.plan(random_chain(Random(0)), "stage:0")
    assert make_variant(plan, 0) is plan


def test_plans_for_other_shapes_keep_their_replicas() -> None:
    builder = pl.GraphBuilder("any")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n",))))
    plan = pl.plan(builder.build(), "stage:0..2", max_in_flight=3)
    assert plan.for_shapes({"x": (4,)}).replicas == plan.replicas


def test_saved_plans_keep_their_replicas(tmp_path: Path) -> None:
    plan = pl.plan(random_chain(Random(1)), ["cpu:0..1", "worker:3..5"], max_in_flight=6)
    plan.save(tmp_path / "a.plan")
    assert pl.load_plan(tmp_path / "a.plan") == plan


def test_devices_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    pl.plan(random_chain(Random(0)), "stage:0..1").save(tmp_path / "a.plan")
    devices.unregister("stage")
    devices.register("stage", lambda name: PrivateDevice(name, nbytes=1 + int(name[-1]) << 20))
    with pytest.raises(pl.PlanError, match="'stage:1' is not like 'stage:0'"):
        pl.plan(random_chain(Random(0)), "stage:0..1")
    with pytest.raises(pl.PlanError, match="'stage:1' is not like 'stage:0'"):
        pl.load_plan(tmp_path / "a.plan")
