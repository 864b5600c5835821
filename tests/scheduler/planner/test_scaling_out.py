"""One device, or replicas of it, for a stream: as predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count, permutations
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.ort import device as ort_device
from plait.graph.core.ir import Graph
from plait.scheduler.dispatch import core_shares
from plait.scheduler.dispatch.core_shares import find_shared_lanes
from plait.scheduler.planner import scaling_out
from plait.scheduler.planner.partition.problem import PartitionProblem
from plait.scheduler.plans import replicas
from plait.scheduler.runtime import runtime
from plait.scheduler.runtime.events import FunctionsOverlap
from plait.scheduler.simulation import lanes

pytest.importorskip("onnxruntime")
SIDE = 256


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (core_shares, replicas, lanes, ort_device):
        monkeypatch.setattr(module, "count_cores", lambda: 4)


def products(length: int = 20, **more: Any) -> Graph:
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (SIDE, SIDE))
    for index in range(length):
        last = b.op("MatMul", last, np.eye(SIDE, dtype=np.float32), name=f"product {index}")
    b.output("y", last)
    return b.build()


@pl.operator(pl.TensorSpec("float32", (SIDE, SIDE)), inputs=[pl.TensorSpec("uint8", ("bytes",))])
def decoded(file: Any) -> Any:
    return np.full((SIDE, SIDE), len(file), np.float32)


@pl.operator(pl.TensorSpec("float32", ()), inputs=[pl.TensorSpec("float32", (SIDE, SIDE))])
def largest(y: Any) -> Any:
    return y.max()


def pipeline(decode: Any = decoded, then: Any = largest) -> Graph:
    """Return a graph of a function, a network, and another function."""
    b = pl.GraphBuilder("pipeline")
    file = b.input("file", "uint8", ("bytes",))
    image = b.call(decode, file, name="decode")
    made = b.include(products(), {"x": image}, prefix="net/")
    b.output("found", b.call(then, made["y"], name="then"))
    return b.build()


STREAM: Mapping[str, Any] = {
    "bounds": {"bytes": 1000},
    "max_in_flight": 4,
    "objective": "throughput",
}


LENGTHS = [1, 5, 2, 1000, 7, 3, 1, 8, 2, 9, 4, 11, 6, 3, 2, 10]


@pytest.mark.parametrize("order", [*permutations(["ort", "cpu", "worker:0"])])
def test_a_device_that_has_no_replicas_takes_none_from_others(order: Sequence[str]) -> None:
    plan = pl.plan(pipeline(), list(order), **STREAM)
    assert set(plan.device_names) == {"ort:0..3", "cpu:0..3", "worker:0"}
    assert set(plan.assignment.values()) == {"ort:0", "cpu:0"}
    assert set(find_shared_lanes(plan)) == {
        f"{kind}:{n}" for kind in ("ort", "cpu") for n in range(4)
    }


def found(plan: pl.Plan) -> list[int]:
    files = [{"file": np.zeros(length, np.uint8)} for length in LENGTHS]
    with pl.BlockingSession(plan) as session, session.stream(files) as results:
        return [int(item["found"]) for item in results]


def test_a_stream_has_replicas_of_a_device_that_is_named_without_a_number() -> None:
    plan = pl.plan(products(), ["ort", "cpu"], max_in_flight=4, objective="throughput")
    assert plan.device_names == ("ort:0..3", "cpu")
    assert plan.in_flight == 4
    one = pl.plan(products(), ["ort:0", "cpu"], max_in_flight=4, objective="throughput")
    assert one.device_names == ("ort:0", "cpu"), "the user names one"
    rates = [pl.simulate(made, items=32).items_per_s for made in (plan, one)]
    assert rates[0] > (1 + scaling_out.GAIN) * rates[1]
    said = f"a stream is predicted {rates[0] / rates[1]:.1f} times as fast on 4 as on one"
    assert said in plan.report()


def test_no_other_number_of_replicas_is_predicted_to_be_much_faster() -> None:
    plan = pl.plan(products(), ["ort"], max_in_flight=4, objective="throughput")
    best = pl.simulate(plan, items=32).items_per_s
    for names in (["ort:0..1"], ["ort:0..3"]):
        other = pl.plan(products(), names, max_in_flight=4, objective="throughput")
        assert pl.simulate(other, items=32).items_per_s <= best * (1 + scaling_out.GAIN)


def test_where_one_item_is_to_be_fast_it_is_no_slower_on_replicas() -> None:
    plan = pl.plan(products(), ["ort"], max_in_flight=4)
    one = pl.plan(products(), ["ort:0"], max_in_flight=4)
    assert pl.simulate(plan).makespan_s <= (1 + scaling_out.SAME) * pl.simulate(one).makespan_s


@pytest.mark.parametrize("devices", [["ort", "cpu"], ["cpu", "ort"]])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_functions_around_a_network_have_replicas_with_it_and_it_stays_whole(
    devices: list[str], objective: str
) -> None:
    plan = pl.plan(pipeline(), devices, **{**STREAM, "objective": objective})
    assert sorted(plan.device_names) == ["cpu:0..3", "ort:0..3"]
    assert [one.device for one in plan.subgraphs] == ["cpu:0", "ort:0", "cpu:0"]
    assert found(plan) == LENGTHS


def test_the_report_says_what_came_of_weighing_replicas(tmp_path: Path) -> None:
    plan = pl.plan(pipeline(), ["ort", "cpu"], **STREAM)
    one = pl.plan(pipeline(), ["ort:0", "cpu:0"], **STREAM)
    rates = [pl.simulate(made, items=16).items_per_s for made in (plan, one)]
    assert rates[0] > (1 + scaling_out.GAIN) * rates[1]
    chosen = "most on ort on 4 replicas"
    assert f"strategy auto, for throughput: {chosen}\n" in plan.report()
    gain = f"a stream is predicted {rates[0] / rates[1]:.1f} times as fast on 4 as on one"
    time = r"\d[\d.]* [mµn]?s"
    why = rf"\n  most on ort: {time} predicted, all on cpu {time}; {re.escape(gain)}\n"
    assert re.search(why, plan.report())
    assert plan.decision is not None
    assert one.decision is not None
    first, *others = plan.decision.candidates
    assert (first.name, first.devices) == (chosen, plan.device_names)
    assert first.seconds == pytest.approx(1 / rates[0], rel=0.01)
    (before,) = [other for other in others if other.note == "the best on one"]
    assert before.name == one.decision.chosen.replace(":0", "")
    compared = pl.diff(one, plan)
    assert compared.before.strategy == compared.after.strategy == "auto"
    plan.save(tmp_path / "a.plan")
    loaded = pl.load_plan(tmp_path / "a.plan")
    assert loaded.report() == plan.report()
    assert loaded.strategy == "auto"
    assert found(loaded) == LENGTHS


@pytest.mark.parametrize("devices", [["ort", "cpu"], ["ort:0", "cpu:0"], ["ort", "cpu", "sim"]])
def test_splits_that_take_no_less_work_are_not_searched_for(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pl.plan(pipeline(), devices, **STREAM)
    monkeypatch.setattr(PartitionProblem, "least_work_s", 0.0)
    searched = pl.plan(pipeline(), devices, **STREAM)
    assert (plan.assignment, plan.device_names) == (searched.assignment, searched.device_names)
    decisions = [one.decision for one in (plan, searched)]
    names = [{one.name for one in found.candidates} for found in decisions if found is not None]
    if devices == ["ort", "cpu"]:  # replicas use the cores as well as splits do
        assert names[0] < names[1]
    else:
        assert names[0] == names[1]


@pl.operator(pl.TensorSpec("float32", ("rows",)), inputs=[pl.TensorSpec("float32", (SIDE, SIDE))])
def counted(y: Any) -> Any:
    """Return as many numbers as the file had bytes."""
    return np.full(int(y[0, 0]), y[0, 0], np.float32)


def test_where_a_function_decides_lengths_what_comes_before_tells(tmp_path: Path) -> None:
    bounds = {"bytes": 1000, "rows": 1000}
    plan = pl.plan(pipeline(then=counted), ["ort", "cpu"], **{**STREAM, "bounds": bounds})
    assert not plan.is_static
    assert sorted(plan.device_names) == ["cpu:0..3", "ort:0..3"]
    report = plan.report()
    assert "as fast on 4 as on one, up to where values decide lengths\n" in report
    names = f"{__name__}.decoded, {__name__}.counted"
    assert f"  4 items at once may call {names}\n" in report  # of lengths known and not
    plan.save(tmp_path / "a.plan")
    for one in (plan, pl.load_plan(tmp_path / "a.plan")):
        files = [{"file": np.zeros(length, np.uint8)} for length in LENGTHS]
        with pl.BlockingSession(one) as session, session.stream(files) as results:
            assert [item["found"].tolist() for item in results] == [[n] * n for n in LENGTHS]


def test_a_function_may_run_for_two_items_at_once() -> None:
    calls, second = count(), Event()

    @pl.operator(
        pl.TensorSpec("float32", ()),
        inputs=[pl.TensorSpec("float32", (SIDE, SIDE))],
        ordered=False,
    )
    def overtaken(y: Any) -> Any:
        if next(calls):
            second.set()
        assert second.wait(60), "the second call comes while the first one is under way"
        return y.max()

    assert found(pl.plan(pipeline(then=overtaken), ["ort", "cpu"], **STREAM)) == LENGTHS


@pl.operator(pl.TensorSpec("float32", ()), inputs=[pl.TensorSpec("float32", (SIDE, SIDE))])
class Largest:
    def run(self, y: Any) -> Any:
        return y.max()


@pl.operator(
    pl.TensorSpec("float32", ()), inputs=[pl.TensorSpec("float32", (SIDE, SIDE))], effects=True
)
def told(y: Any) -> Any:
    return y.max()


@pytest.mark.parametrize(
    ("devices", "then", "more"),
    [
        (("ort", "cpu"), Largest, {}),
        (("ort", "cpu"), largest, {"pin": {"decode": "cpu"}}),
        (("ort", "cpu"), largest, {"pin": {"net/*": "ort"}}),
        (("ort", "cpu:0"), largest, {}),
        (("ort:0", "cpu"), largest, {}),
        (("ort", pl.device("cpu")), largest, {}),
        (("ort", "worker"), largest, {}),
    ],
)
def test_functions_run_one_at_a_time_for_who_asks_for_that(
    devices: Any, then: Any, more: Any
) -> None:
    plan = pl.plan(pipeline(then=then), devices, **STREAM, **more)
    assert plan.replicas == ()


def test_functions_with_effects_keep_the_order_of_items_on_replicas() -> None:
    plan = pl.plan(pipeline(then=told), ["ort", "cpu"], **STREAM)
    assert plan.variants > 1
    assert [name.rpartition(".")[2] for name in plan.ordered_functions] == ["told"]


@pl.operator([pl.TensorSpec("float32", (SIDE, SIDE))], effects=True, name="test_scaling_out.acts")
def decode_with_effects(file: Any) -> Any:
    return np.zeros((SIDE, SIDE), np.float32)


def test_two_functions_with_effects_do_not_run_at_the_same_time() -> None:
    plan = pl.plan(pipeline(decode_with_effects, told), ["ort", "cpu"], **STREAM)
    assert plan.replicas == ()


def test_what_is_made_of_such_a_plan_is_on_replicas_too() -> None:
    plan = pl.plan(pipeline(), ["ort", "cpu"], **STREAM, precision={"ort": "float16"})
    for other in (plan.replan(2), plan.fetching("net/y"), plan.for_shapes({"file": (7,)})):
        assert other.replicas == plan.replicas
        assert {one.device for one in other.subgraphs} == {"cpu:0", "ort:0"}


@pytest.mark.parametrize(
    ("devices", "more"),
    [
        ("ort", {"max_in_flight": 1}),
        ("ort", {"pin": {"*": "ort"}}),
        ("ort", {"strategy": "preference"}),
        ("ort", {"memory_limits": {"ort": 1 << 30}}),
        ("cpu", {}),
        (("ort", "cpu"), {"pin": {"product 0": "cpu"}}),
        (pl.device("ort", threads=1), {}),
    ],
)
def test_who_says_what_runs_where_is_taken_at_their_word(devices: Any, more: Any) -> None:
    options = {"max_in_flight": 4, "objective": "throughput", **more}
    assert pl.plan(products(), devices, **options).replicas == ()


def test_what_has_effects_keeps_its_order() -> None:
    b = pl.GraphBuilder("told")
    b.output("y", b.op("Relu", b.call(note, b.input("x", "float32", (4,)))))
    assert pl.plan(b.build(), ["ort", "cpu"], max_in_flight=4).replicas == ()


@pl.operator(pl.TensorSpec("float32", (4,)), effects=True)
def note(x: Any) -> Any:
    return x


def test_little_work_has_no_replicas_as_the_loop_is_what_takes_time() -> None:
    b = pl.GraphBuilder("little")
    b.output("y", b.op("Relu", b.input("x", "float32", (4,))))
    plan = pl.plan(b.build(), ["ort"], max_in_flight=4, objective="throughput")
    assert plan.device_names == ("ort",)


def test_such_a_plan_runs_is_saved_and_serves_other_lengths(tmp_path: Path) -> None:
    b = pl.GraphBuilder("rows")
    last = b.input("x", "float32", ("n", SIDE))
    for _ in range(20):
        last = b.op("MatMul", last, np.eye(SIDE, dtype=np.float32))
    b.output("y", last)
    plan = pl.plan(b.build(), ["ort"], bounds={"n": 256}, max_in_flight=4, objective="throughput")
    assert plan.variants == 4
    plan.save(tmp_path / "a.plan")
    for one in (plan, pl.load_plan(tmp_path / "a.plan")):
        fed = [{"x": np.full((n, SIDE), n, np.float32)} for n in (1, 256, 7, 31, 2, 5)]
        with pl.BlockingSession(one) as session, session.stream(fed) as results:
            for given, item in zip(fed, results, strict=True):
                np.testing.assert_array_equal(item["y"], given["x"])


counts = {"items": 0}
BYTES = {"bytes": 64}


@pl.operator(pl.TensorSpec("float32", ()), inputs=[pl.TensorSpec("float32", (SIDE, SIDE))])
def count_items(y: Any) -> Any:
    counts["items"] += 1
    return y.max()


def test_functions_with_state_are_in_order_on_automatic_replicas() -> None:
    plan = pl.plan(pipeline(then=count_items), ["ort", "cpu"], max_in_flight=4, bounds=BYTES)
    assert plan.has_automatic_replicas
    assert plan.ordered_functions == {f"{__name__}.count_items": "it keeps state in 'counts'"}
    assert plan.overlapping_functions == (f"{__name__}.decoded",)
    counts["items"] = 0
    with pl.BlockingSession(plan) as session:
        fed = [{"file": np.zeros(length, np.uint8)} for length in LENGTHS if length <= 64]
        found = [float(item["found"]) for item in session.stream(fed)]
    assert found == [length for length in LENGTHS if length <= 64]
    assert counts["items"] == len(found)


def test_functions_that_replicas_may_run_at_once_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_logged", set())
    plan = pl.plan(pipeline(), ["ort", "cpu"], max_in_flight=4, bounds=BYTES)
    names = ", ".join(f"{__name__}.{one}" for one in ("decoded", "largest"))
    assert f"{plan.variants} items at once may call {names}" in plan.report().partition("in  ")[0]
    seen: list[Any] = []
    for _ in range(2):
        with caplog.at_level("WARNING", "plait"), pl.BlockingSession(plan, on_event=seen.append):
            pass
    assert [one for one in seen if isinstance(one, FunctionsOverlap)] == 2 * [
        FunctionsOverlap(tuple(names.split(", ")), plan.variants)
    ]
    assert caplog.text.count(f"items at once may call {names}; ordered=True has") == 1
