"""One device, or replicas of it, for a stream: as predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.ort import device as ort_device
from plait.graph.ir import Graph
from plait.scheduler.dispatch import core_shares
from plait.scheduler.planner import scaling_out
from plait.scheduler.plans import replicas
from plait.scheduler.simulation import lanes

pytest.importorskip("onnxruntime")
SIDE = 256


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (core_shares, replicas, lanes, ort_device):
        monkeypatch.setattr(module, "core_count", lambda: 4)


def products(length: int = 20, **more: Any) -> Graph:
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (SIDE, SIDE))
    for index in range(length):
        last = b.op("MatMul", last, np.eye(SIDE, dtype=np.float32), name=f"product {index}")
    b.output("y", last)
    return b.build()


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
