"""Ranges of devices: what they stand for, and what is refused of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.plans.replicas import MOST, expand_range, name_range


@pl.operator(name="test_replica_groups.shown", effects=True)
def shown(x: Array) -> Array:
    return x


def chain(*, shows: bool = False) -> Graph:
    builder = pl.GraphBuilder("chain")
    h = builder.op("Relu", builder.input("x", "float32", (4,)), name="heavy/relu")
    builder.output("y", builder.op("Neg", h, name="light/neg"))
    if shows:
        builder.output("z", builder.call(shown, h, name="light/show"))
    return builder.build()


def planned(*devices: Any, **options: Any) -> pl.Plan:
    return pl.plan(chain(), devices, **options)


@given(first=st.integers(0, 10**6), count=st.integers(2, MOST))
def test_a_range_stands_for_each_device_from_its_first_to_its_last(first: int, count: int) -> None:
    names = expand_range(f"worker:{first}..{first + count - 1}")
    assert [name.split(":") for name in names] == [
        ["worker", str(first + index)] for index in range(count)
    ]
    assert expand_range(name_range(names)) == names


def test_names_without_a_range_stand_for_themselves() -> None:
    assert expand_range("worker:0") == expand_range("worker:0..0") == ("worker:0",)


@pytest.mark.parametrize(
    "name",
    ["worker:3..0", "cpu:0..x", "cpu:..2", "cpu..3", "worker:0..", "worker:0..1..2", ":0..1",
     "worker:-1..2", f"worker:1..{MOST + 1}"],
)  # fmt: skip
def test_what_is_no_range_is_refused(name: str) -> None:
    with pytest.raises(pl.PlanError, match="not a range of devices") as caught:
        planned("cpu", name)
    assert "worker:0..3" in str(caught.value.fix)


@pytest.mark.parametrize(
    "devices",
    [("worker:0..2", "worker:2..4"), ("worker:0..2", "worker:1"), ("worker:0..1", "worker:0..1"),
     (CpuDevice("cpu:1"), "cpu:0..1")],
)  # fmt: skip
def test_a_device_in_two_ranges_is_refused(devices: tuple[Any, ...]) -> None:
    with pytest.raises(pl.PlanError, match="twice"):
        planned(*devices)


def test_a_plan_is_made_for_the_first_device_and_keeps_the_group() -> None:
    pins = {"heavy/*": "worker:0..3", "*": "cpu"}
    plan = planned("cpu", "worker:0..3", pin=pins, max_in_flight=6)
    assert plan.assignment == {"heavy/relu": "worker:0", "light/neg": "cpu"}
    assert plan.replicas == (("worker:0", "worker:1", "worker:2", "worker:3"),)
    assert plan.device_names == ("cpu", "worker:0..3")
    assert plan.every_device == ("cpu", *plan.replicas[0])
    assert (plan.variants, plan.max_in_flight, plan.in_flight) == (4, 2, 8)


def test_a_range_of_one_has_no_replicas() -> None:
    plan = planned("worker:2..2", pin={"*": "worker:2..2"})
    assert (plan.devices, plan.replicas) == (("worker:2",), ())


def test_reports_and_json_say_what_stands_for_what() -> None:
    plan = planned("cpu", "worker:0..3", pin={"heavy/*": "worker:0..3"})
    assert "worker:0 stands for worker:0 to worker:3: items take turns there" in plan.report()
    assert plan.to_dict()["replicas"] == [[f"worker:{index}" for index in range(4)]]


def test_a_pin_to_one_replica_is_refused() -> None:
    with pytest.raises(pl.PlanError, match=r"one of the replicas 'worker:0\.\.3'"):
        planned("cpu", "worker:0..3", pin={"heavy/*": "worker:2"})


def test_the_fix_of_a_pin_to_the_kind_of_a_range_is_one_that_works() -> None:
    with pytest.raises(pl.PlanError) as caught:
        planned("worker:0..1", "cpu:0..1", pin={"heavy/*": "worker"})
    assert caught.value.fix == "did you mean 'worker:0..1'?"
    made = planned("worker:0..1", "cpu:0..1", pin={"heavy/*": "worker:0..1"})
    assert made.assignment["heavy/relu"] == "worker:0"


@pytest.mark.parametrize("between", ["-", ":", ".", "..."])
def test_slips_of_a_range_are_no_names_and_the_fix_spells_it(between: str) -> None:
    name = f"cpu:0{between}1"
    for ask in (planned, pl.device):
        with pytest.raises(pl.PlaitError) as caught:
            ask(name)
        assert "'cpu:0..1'" in str(caught.value.fix)
    assert not pl.devices.probe(name).found


def test_a_range_is_not_one_device() -> None:
    with pytest.raises(pl.DeviceError, match=r"range of devices") as caught:
        pl.device("cpu:0..1")
    assert caught.value.fix == "name one of them: 'cpu:0'"


def test_other_names_of_instances_are_free() -> None:
    assert planned("cpu:abc").devices == ("cpu:abc",)
    assert pl.device("cpu:2-left").name == "cpu:2-left"


def test_a_pin_to_a_range_that_is_not_given_is_refused() -> None:
    with pytest.raises(pl.PlanError, match=r"'worker:0..2', which is not one of the plan.s ranges"):
        planned("cpu", "worker:0..3", pin={"heavy/*": "worker:0..2"})


def test_nodes_with_effects_follow_the_order_of_items() -> None:
    pins = {"heavy/*": "worker:0..1", "*": "cpu"}
    plan = pl.plan(chain(shows=True), ["cpu", "worker:0..1"], pin=pins)
    assert plan.placement is not None
    assert plan.placement.step_of["light/show"].order == ("test_replica_groups.shown",)


def test_a_memory_that_replicas_share_has_room_for_all_of_them() -> None:
    options: dict[str, Any] = {"pin": {"heavy/*": "worker:0..3", "*": "cpu"}}
    plan = planned("cpu", "worker:0..3", **options)
    assert plan.memory is not None
    needed = 4 * plan.memory.nbytes
    planned("cpu", "worker:0..3", memory_limits={"shared": needed}, **options)
    with pytest.raises(pl.DoesNotFitError):
        planned("cpu", "worker:0..3", memory_limits={"shared": needed - 1}, **options)


def test_blocking_runs_take_ranges() -> None:
    x = np.arange(4, dtype=np.float32)
    assert pl.run(chain(), {"x": x}, devices="cpu:0..1")["y"].tolist() == (-x).tolist()
