"""Tuning: on simulated devices with one virtual clock, so that every time is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.devices.device import Device
from plait.devices.model import DeviceModel
from plait.devices.ort import device as ort_device
from plait.devices.sim import SimDevice, SimModel
from plait.devices.sim.clock import VirtualClock
from plait.graph.core.ir import Graph
from plait.scheduler.dispatch import core_shares
from plait.scheduler.plans import replicas
from plait.scheduler.tuning import Tuned
from plait.scheduler.tuning import search as tuning
from plait.scheduler.tuning import trial as measured

FEEDS = {"x": np.ones((64, 64), np.float32)}
SLOW, FAST = SimModel(flops_per_s=1e9), SimModel(flops_per_s=4e9)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure few items: on a virtual clock all take as long, and elsewhere any will do."""
    monkeypatch.setattr(measured, "TURN_S", 0.01)


def products(count: int = 4) -> Graph:
    """Return a chain of products."""
    builder = pl.GraphBuilder("products")
    last = builder.input("x", "float32", ("n", 64))
    weights = builder.constant(np.eye(64, dtype=np.float32))
    for index in range(count):
        last = builder.op("MatMul", last, weights, name=f"product {index}")
    builder.output("y", last)
    return builder.build()


def machine(**models: SimModel) -> list[str | Device]:
    """Return devices of these models, on one clock."""
    clock = VirtualClock()
    return [SimDevice(f"sim:{name}", model, clock) for name, model in models.items()]


def names(tuned: Tuned) -> list[str]:
    return [trial.name for trial in tuned.trials]


def test_the_fastest_device_is_found_whatever_was_believed_of_it() -> None:
    believed = pl.Costs(
        models={"sim:a": DeviceModel(flops_per_s=1e12), "sim:b": DeviceModel(flops_per_s=1e6)}
    )
    devices = machine(a=SLOW, b=FAST)
    assert set(
        pl.plan(products(), devices, shapes={"x": (64, 64)}, costs=believed).assignment.values()
    ) == {"sim:a"}
    tuned = pl.tune(products(), devices, feeds=FEEDS, costs=believed)
    assert set(tuned.plan.assignment.values()) == {"sim:b"}
    assert tuned.best.name == "all on sim:b"
    assert names(tuned) == ["all on sim:a", "all on sim:b"], "the plan by costs is one of these"
    assert tuned.rounds == 1


def test_what_is_predicted_by_what_was_measured_is_what_it_takes() -> None:
    tuned = pl.tune(products(), machine(a=SLOW, b=FAST), feeds=FEEDS)
    for trial in tuned.trials:
        in_loop_s = 5e-5  # which takes no time on a virtual clock
        assert tuned.predicted_s(trial) == pytest.approx(trial.seconds, abs=in_loop_s)


@pytest.mark.slow
def test_no_trial_is_faster_than_the_plan_that_is_taken() -> None:
    lacking = SimModel(flops_per_s=8e9, supports=frozenset({"Relu"}))
    builder = pl.GraphBuilder("mixed")
    last = builder.input("x", "float32", (64, 64))
    for index in range(3):
        last = builder.op("Relu", builder.op("MatMul", last, last, name=f"{index}"))
    builder.output("y", last)
    tuned = pl.tune(builder.build(), machine(a=lacking, b=SLOW, c=FAST), feeds=FEEDS)
    assert names(tuned)[:3] == ["most on sim:a", "all on sim:b", "all on sim:c"]
    assert tuned.plan is tuned.best.plan
    least = min(trial.seconds for trial in tuned.trials)
    assert tuned.best.seconds <= least * (1 + tuning.SAME)
    assert tuned.rounds <= tuning.MOST_ROUNDS


@pytest.mark.slow
def test_streams_are_judged_by_what_an_item_takes_of_the_whole() -> None:
    tuned = pl.tune(
        products(8), machine(a=FAST, b=FAST), feeds=FEEDS, objective="throughput", max_in_flight=4
    )
    assert set(tuned.plan.assignment.values()) == {"sim:a", "sim:b"}, "two stages"
    assert tuned.best.is_streamed
    single = tuned.trials[0]
    assert tuned.best.items_per_s > 1.5 * single.items_per_s
    assert tuned.best.seconds == pytest.approx(1 / tuned.best.items_per_s)


@pytest.mark.parametrize(("cores", "in_flight"), [(1, 5), (4, 8)])
def test_a_stream_has_more_items_in_flight_than_there_are_cores(
    cores: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "count_cores", lambda: cores)
    tuned = pl.tune(products(2), machine(a=FAST), feeds=FEEDS, objective="throughput")
    assert tuned.plan.in_flight == in_flight
    one = pl.tune(products(2), machine(a=FAST), feeds=FEEDS)
    assert one.plan.in_flight == 1


def test_costs_are_kept_for_the_next_plan() -> None:
    devices = machine(a=SLOW, b=FAST)
    tuned = pl.tune(products(), devices, feeds=FEEDS, costs=pl.Costs(hops={("x", "y"): 0.5}))
    assert tuned.costs.hops["x", "y"] == 0.5
    graph = pl.plan(products(), devices, shapes={"x": (64, 64)}).graph
    for name in ("sim:a", "sim:b"):
        assert tuned.costs.basis(name, graph, graph.nodes[0]) == "measured"


def test_pins_are_kept() -> None:
    tuned = pl.tune(products(), machine(a=SLOW, b=FAST), feeds=FEEDS, pin={"product 1": "sim:a"})
    assert tuned.plan.assignment["product 1"] == "sim:a"


def test_one_plan_serves_all_shapes_within_bounds() -> None:
    tuned = pl.tune(products(), machine(a=SLOW, b=FAST), feeds=FEEDS, bounds={"n": 128})
    assert tuned.plan.bounds == {"n": (1, 128)}
    assert set(tuned.plan.assignment.values()) == {"sim:b"}


def test_replicas_and_threads_are_tried_where_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (tuning, replicas):
        monkeypatch.setattr(module, "count_cores", lambda: 4)
    tuned = pl.tune(products(), ["cpu"], feeds=FEEDS, objective="throughput", max_in_flight=3)
    assert names(tuned) == ["all on cpu", "all on cpu, 4 threads", "all on cpu:0..1"]
    assert tuned.trials[2].plan.variants == 2
    assert tuned.predicted_s(tuned.trials[1]) is None, "nothing is known of so many threads"
    alone = pl.tune(products(), ["cpu"], feeds=FEEDS)
    assert names(alone) == ["all on cpu", "all on cpu, 4 threads"], "one item has no replicas"


@pytest.fixture
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    for module in (tuning, replicas, core_shares, ort_device):
        monkeypatch.setattr(module, "count_cores", lambda: 4)


@pytest.mark.usefixtures("_four_cores")
def test_threads_that_spin_and_that_sleep_are_tried_for_one_item() -> None:
    tuned = pl.tune(products(), ["ort"], feeds=FEEDS)
    every = ["all on ort", "all on ort, 4 threads", "all on ort, 1 thread"]
    assert names(tuned) == every, "all cores, spinning, is what it has by itself"
    assert "\n  ort: 4 threads, spinning\n" in tuned.trials[0].plan.report()
    assert tuned.predicted_s(tuned.trials[1]) is not None


@pytest.mark.usefixtures("_four_cores")
def test_a_stream_is_tried_on_threads_on_replicas_and_one_item_at_a_time() -> None:
    tuned = pl.tune(products(), ["ort"], feeds=FEEDS, objective="throughput", max_in_flight=4)
    by_name = {trial.name: trial.plan for trial in tuned.trials}
    for threads in ("4 threads, spinning", "4 threads", "1 thread"):
        assert by_name[f"all on ort, {threads}"].in_flight == 4
    assert by_name["all on ort, one item at a time"].in_flight == 1
    tried = [plan.variants for plan in by_name.values() if plan.replicas]
    assert sorted(tried) == [2, 4], "once each, whoever came by them"


@pl.operator(pl.TensorSpec("float32", (64, 64)), inputs=[pl.TensorSpec("float32", (64, 64))])
def halved(x: Any) -> Any:
    return x / 2


@pl.operator(pl.TensorSpec("float32", ("rows", 64)), inputs=[pl.TensorSpec("float32", (64, 64))])
def positive(y: Any) -> Any:
    return y[y[:, 0] > 0]


def around(then: Any = halved) -> Graph:
    """Return products between two functions."""
    b = pl.GraphBuilder("around")
    x = b.input("x", "float32", (64, 64))
    made = b.include(products(), {"x": b.call(halved, x, name="before")}, prefix="net/")
    b.output("y", b.call(then, made["y"], name="after"))
    return b.build()


STREAM: dict[str, Any] = {"feeds": FEEDS, "objective": "throughput", "max_in_flight": 4}


@pytest.mark.slow
@pytest.mark.usefixtures("_four_cores")
@pytest.mark.parametrize(
    ("graph", "bounds"),
    [(around(), {}), (around(positive), {"rows": 64})],
    ids=["lengths known", "lengths computed"],
)
def test_functions_around_a_network_are_tried_on_replicas_with_it(
    graph: Graph, bounds: dict[str, int]
) -> None:
    tuned = pl.tune(graph, ["ort", "cpu"], bounds=bounds, **STREAM)
    whole = [trial.plan for trial in tuned.trials if len(trial.plan.replicas) == 2]
    assert sorted(plan.variants for plan in whole) == [2, 4], "once each, whoever came by them"
    for plan in whole:
        assert {plan.assignment[name] for name in ("before", "after")} == {"cpu:0"}
        assert {plan.assignment[f"net/product {index}"] for index in range(4)} == {"ort:0"}
        with pl.BlockingSession(plan) as session, session.stream([FEEDS] * 8) as results:
            for item in results:
                np.testing.assert_array_equal(item["y"], FEEDS["x"] / (4 if not bounds else 2))
    assert tuned.notes == ()


@pytest.mark.usefixtures("_four_cores")
@pytest.mark.parametrize(
    ("devices", "more", "note"),
    [
        (["ort", "cpu:0"], {}, "cpu:0 is pinned to, has a number"),
        (["ort", "cpu"], {"pin": {"before": "cpu"}}, "cpu is pinned to, has a number"),
        (["ort", "cpu"], {"memory_limits": {"cpu": 1 << 30}}, "memory is limited"),
        (["ort", "cpu"], {"max_in_flight": 1}, "there is one core, or one item under way"),
    ],
)
def test_what_is_not_tried_on_replicas_is_noted(
    devices: list[str], more: dict[str, Any], note: str
) -> None:
    tuned = pl.tune(around(), devices, **{**STREAM, **more})
    assert not any(len(trial.plan.replicas) > 1 for trial in tuned.trials)
    (said,) = tuned.notes
    assert said.startswith(f"no replicas of {' and '.join(sorted(devices))}: {note}")
    assert str(tuned).splitlines()[-1] == said
    assert tuned.to_dict()["notes"] == [said]


@pytest.mark.usefixtures("_four_cores")
def test_what_cannot_be_planned_is_not_tried_on_replicas() -> None:
    tuned = pl.tune(around(), ["ort", "cpu"], max_subgraphs=1, **STREAM)
    assert {*tuned.plan.assignment.values()} <= {"cpu", "cpu:0"}  # whichever was faster
    assert tuned.notes == ()


@pytest.mark.usefixtures("_four_cores")
def test_ranges_with_pins_are_tried_once() -> None:
    pins = {"net/*": "ort:0..1", "*": "cpu:0..1"}
    tuned = pl.tune(around(), ["ort:0..1", "cpu:0..1"], pin=pins, **STREAM)
    assert names(tuned) == ["most on ort:0..1"]
    assert tuned.notes == ()


def test_graphs_whose_shapes_depend_on_values_are_run_too() -> None:
    builder = pl.GraphBuilder("found")
    found = builder.op("NonZero", builder.input("x", "float32", ("n", 64)))
    builder.output("y", builder.op("Neg", found))
    tuned = pl.tune(builder.build(), ["cpu"], feeds=FEEDS)
    assert not tuned.plan.is_static
    assert tuned.predicted_s(tuned.best) is None
    assert tuned.best.seconds > 0
    assert "-" in tuned.table()


def test_the_table_says_what_was_tried_and_marks_the_choice() -> None:
    tuned = pl.tune(products(), machine(a=SLOW, b=FAST), feeds=FEEDS)
    header, first, second = str(tuned).splitlines()
    for column in ("devices", "in flight", "replicas", "threads", "items/s", "p50", "p99"):
        assert column in header
    assert not first.startswith("*")
    assert second.startswith("*  all on sim:b")
    found = tuned.to_dict()
    assert found["chosen"] == "all on sim:b"
    assert [trial["devices"] for trial in found["trials"]] == [["sim:a"], ["sim:b"]]
    assert found["trials"][1]["latency_ms"]["p50"] == pytest.approx(tuned.best.seconds * 1e3)


def test_progress_is_told_before_anything_runs() -> None:
    told: list[str] = []
    pl.tune(products(), machine(a=SLOW), feeds=FEEDS, progress=told.append)
    turns = [f"running all on sim:a, turn {turn} of {tuning.TURNS}" for turn in (1, 2, 3)]
    assert told == [*turns, "measuring the nodes of all on sim:a"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"strategy": "auto"}, "strategy, which it decides"),
        ({"shapes": {"x": (1, 64)}}, "shapes, which it decides"),
        ({"feeds": [1]}, "feeds is"),
        ({"costs": 3}, "costs is 3"),
        ({"objective": "beauty"}, "objective is 'beauty'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(pl.PlanError, match=fault):
        pl.tune(products(), machine(a=SLOW), **{"feeds": FEEDS, **arguments})


def test_a_model_of_a_path_is_tuned(tmp_path: Path) -> None:
    pl.save(products(), tmp_path / "products.plait")
    tuned = pl.tune(tmp_path / "products.plait", machine(a=SLOW, b=FAST), feeds=FEEDS)
    assert set(tuned.plan.assignment.values()) == {"sim:b"}


def test_a_plan_is_no_graph_to_tune() -> None:
    with pytest.raises(pl.PlanError, match="expected a graph, got Plan"):
        pl.tune(pl.plan(products()), ["cpu"], feeds=FEEDS)  # type: ignore[arg-type]


def test_a_graph_that_no_device_can_run_is_refused() -> None:
    nothing = SimModel(supports=frozenset({"Relu"}))
    with pytest.raises(pl.UnsupportedOpError, match="MatMul"):
        pl.tune(products(), machine(a=nothing), feeds=FEEDS)


def test_a_trio_task_is_not_blocked() -> None:
    async def main() -> None:
        pl.tune(products(), ["cpu"], feeds=FEEDS)

    with pytest.raises(pl.SessionError, match=r"plait.tune\(\) would block"):
        trio.run(main)


def test_a_plan_that_names_its_nodes_otherwise_is_no_other_one() -> None:
    """A node that `cpu` would have fused is taken apart again for `ort`."""
    b = pl.GraphBuilder("swish")
    x = b.input("x", "float32", (4,))
    b.output("y", b.op("Mul", x, b.op("Sigmoid", x, name="squash"), name="swish"))
    alone, beside = (
        pl.plan(b.build(), devices, strategy="preference") for devices in (["ort"], ["ort", "cpu"])
    )
    assert alone.assignment != beside.assignment
    assert tuning._is_same(alone, beside)
    assert not tuning._is_same(alone, pl.plan(b.build(), ["cpu"]))
