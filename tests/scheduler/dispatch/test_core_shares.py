"""On how many cores each device of a plan computes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.ort.device import OrtDevice
from plait.scheduler.dispatch import core_shares
from plait.scheduler.dispatch.core_shares import (
    divide_cores,
    scale_to_cores,
    scale_to_one_core,
    share_cores,
    share_equally,
)
from plait.scheduler.plans.partition import Subgraph
from plait.scheduler.plans.placement import Step
from small_graphs import doubling

pytest.importorskip("onnxruntime")
CORES = 8


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_shares, "count_cores", lambda: CORES)


def diamond(pins: Mapping[str, str], **options: Any) -> pl.Plan:
    """Return a plan of first, then left and right, then last."""
    b = pl.GraphBuilder("diamond")
    first = b.op("Exp", b.input("x", "float32", (64,)), name="first")
    left, right = (b.op(op, first, name=n) for n, op in (("left", "Neg"), ("right", "Abs")))
    b.output("y", b.op("Add", left, right, name="last"))
    devices = list(dict.fromkeys(pins.values()))
    return pl.plan(b.build(), devices, pin=pins, passes=(), **options)


def test_the_only_device_that_computes_has_all_cores() -> None:
    assert share_cores(pl.plan(doubling(), ["ort", "cpu"], pin={"*": "ort"})) == {"ort": 8}


def test_a_device_whose_programs_do_not_scale_leaves_a_core_to_the_loop() -> None:
    plan = pl.plan(doubling(), ["cpu"])
    assert share_cores(plan) == {"cpu": 7}
    assert share_equally(plan) == 7


def test_devices_that_take_turns_do_not_share() -> None:
    plan = diamond({"first": "ort", "left": "cpu", "right": "cpu", "last": "ort"})
    assert share_cores(plan) == {"ort": 8, "cpu": 3}


def test_devices_that_overlap_share_all_cores_but_one() -> None:
    b = pl.GraphBuilder("two towers")
    for name, op in (("left", "Exp"), ("right", "Neg")):
        b.output(f"y {name}", b.op(op, b.input(f"x {name}", "float32", (64,)), name=name))
    plan = pl.plan(b.build(), ["ort", "cpu"], pin={"left": "ort", "right": "cpu"})
    assert share_cores(plan) == {"ort": 3, "cpu": 3}


def test_items_that_overlap_let_devices_overlap_that_take_turns_for_one() -> None:
    pins = {"first": "ort", "left": "cpu", "right": "cpu", "last": "ort"}
    assert share_cores(diamond(pins, max_in_flight=2)) == {"ort": 3, "cpu": 3}


def test_beside_items_that_are_fed_and_fetched_one_core_is_the_loops() -> None:
    assert share_cores(diamond({"*": "ort"}, max_in_flight=4)) == {"ort": 7}


def test_replicas_divide_the_cores() -> None:
    plan = pl.plan(doubling(), ["ort:0..2"], max_in_flight=3)
    assert share_cores(plan) == {"ort:0": 2, "ort:1": 2, "ort:2": 2}


def test_replicas_beside_others_divide_the_cores_where_each_set_has_one_item() -> None:
    pins = {"first": "cpu:0..1", "*": "ort:0..1"}
    names = ("cpu:0", "cpu:1", "ort:0", "ort:1")
    shares = share_cores(diamond(pins, max_in_flight=2))
    assert shares == dict(zip(names, (1, 1, 4, 4), strict=True))
    assert share_cores(diamond(pins, max_in_flight=4)) == dict.fromkeys(names, 1), "two on each"
    shared = diamond({"first": "cpu", "*": "ort:0..1"}, max_in_flight=2)
    assert share_cores(shared) == {"cpu": 2, "ort:0": 2, "ort:1": 2}, "one cpu for both"


def test_while_shapes_are_not_known_any_two_devices_may_overlap() -> None:
    b = pl.GraphBuilder("open")
    b.output("y", b.op("Neg", b.op("Exp", b.input("x", "float32", ("n",)), name="e"), name="n"))
    plan = pl.plan(b.build(), ["ort", "cpu"], pin={"e": "ort", "n": "cpu"}, passes=())
    assert share_cores(plan) == {"ort": 3, "cpu": 3}
    assert share_cores(plan.for_shapes({"x": (5,)})) == {"ort": 8, "cpu": 3}


@given(st.data())
def test_a_device_has_all_cores_when_no_pair_of_steps_may_overlap(data: st.DataObject) -> None:
    """By the definition: any two steps of different devices are in order."""
    names = data.draw(st.lists(st.sampled_from(["ort", "cpu"]), min_size=1, max_size=8))
    work = Subgraph.__new__(Subgraph)
    steps, after = [], list[set[int]]()
    for index, name in enumerate(names):
        waits = sorted(data.draw(st.sets(st.integers(0, index - 1))) if index else ())
        steps.append(Step(index, name, work, tuple(waits)))
        after.append({*waits}.union(*(after[wait] for wait in waits)))
    devices = {name: pl.devices.find(name) for name in {*names, "ort"}}
    overlapping = any(
        names[a] != names[b] and a not in after[b] for a, b in combinations(range(len(names)), 2)
    )
    assert (divide_cores(steps, devices, in_flight=1)["ort"] == CORES) != overlapping


def test_programs_are_compiled_for_their_plans_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    compile_on = OrtDevice.compile_on

    def note(self: OrtDevice, cores: int, *arguments: Any, **more: Any) -> Any:
        asked.append(cores)
        return compile_on(self, cores, *arguments, **more)

    monkeypatch.setattr(OrtDevice, "compile_on", note)
    x = {"x": np.ones(64, np.float32)}
    for pins, in_flight, cores in (
        ({"*": "ort"}, 1, 8),
        ({"left": "cpu", "*": "ort"}, 1, 8),
        ({"left": "cpu", "*": "ort"}, 2, 3),
    ):
        with pl.BlockingSession(diamond(pins, max_in_flight=in_flight)) as session:
            session.run(x)
        assert {*asked} == {cores}
        asked.clear()
    with pl.BlockingSession(diamond({"*": "ort:0..3"}, max_in_flight=4)) as session:
        with session.stream([x] * 8) as results:
            assert len([item["y"] for item in results]) == 8
    assert {*asked} == {2}


def test_a_report_says_on_what_a_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.devices.ort.device.count_cores", lambda: CORES)
    assert "\n  ort: 8 threads, spinning\n" in pl.plan(doubling(), ["ort"]).report()
    plan = pl.plan(doubling(), [pl.device("ort", threads=2, spinning=False)])
    assert "\n  ort: 2 threads\n" in plan.report()


def test_a_saved_plan_keeps_what_was_said_of_threads(tmp_path: Path) -> None:
    plan = pl.plan(doubling(), [pl.device("ort", threads=2, spinning=True)])
    plan.save(tmp_path / "a.plan")
    loaded = pl.load_plan(tmp_path / "a.plan")
    assert "\n  ort: 2 threads, spinning\n" in loaded.report()


def products(length: int) -> pl.Graph:
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (256, 256))
    for _ in range(length):
        last = b.op("MatMul", last, np.eye(256, dtype=np.float32))
    b.output("y", last)
    return b.build()


@pytest.fixture
def _eight_in_ort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.devices.ort.device.count_cores", lambda: CORES)


@pytest.mark.usefixtures("_eight_in_ort")
def test_a_prediction_knows_on_how_many_cores_programs_compute() -> None:
    device = OrtDevice()
    seconds = {
        threads: pl.simulate(pl.plan(products(20), [pl.device("ort", threads=threads)]))
        .profile.records[0]
        .spans()
        for threads in (1, 8)
    }
    (one,), (eight,) = map(list, seconds.values())
    ratio = (one.ended_ns - one.started_ns) / (eight.ended_ns - eight.started_ns)
    assert ratio == pytest.approx(device.speedup(1.0, 8), rel=1e-3)


@pytest.mark.usefixtures("_eight_in_ort")
def test_what_was_measured_on_all_cores_is_predicted_again_there_and_longer_on_a_share() -> None:
    plan = pl.plan(products(20), ["ort"])
    profile = pl.simulate(plan).profile
    costs = pl.Costs.from_profile(profile, plan)
    again = pl.simulate(plan, costs=costs).profile
    assert span_ns(again) == pytest.approx(span_ns(profile), rel=1e-3)
    shared = pl.plan(products(20), ["ort"], max_in_flight=2, costs=costs)
    assert span_ns(pl.simulate(shared).profile) > 1.5 * span_ns(profile)


def span_ns(profile: pl.Profile) -> int:
    (span,) = profile.records[0].spans()
    return span.ended_ns - span.started_ns


@given(st.floats(1e-6, 1), st.integers(1, 64))
def test_one_core_takes_what_it_is_said_to_take_on_several(seconds: float, cores: int) -> None:
    device = OrtDevice()
    on_several = scale_to_cores(device, seconds, cores)
    assert on_several <= seconds
    one = scale_to_one_core(device, on_several, cores)
    assert scale_to_cores(device, one, cores) == pytest.approx(on_several)
    assert scale_to_one_core(pl.devices.find("cpu"), seconds, cores) == seconds


def test_a_device_that_only_assigns_to_variables_takes_no_share() -> None:
    b = pl.GraphBuilder("counter")
    x, count = b.input("x", "float32", (64,)), b.variable("count", np.zeros(1, np.float32))
    b.output("y", b.op("Relu", x, name="net/relu"))
    b.assign(count, b.op("Add", count, np.ones(1, np.float32), name="net/add"))
    plan = pl.plan(b.build(), ["ort", "cpu"], pin={"net/*": "ort", "*": "cpu"}, passes=())
    assert {step.device for step in plan.steps} == {"ort", "cpu"}
    assert share_cores(plan) == {"ort": 8}
