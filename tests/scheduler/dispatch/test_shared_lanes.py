"""Devices of one set of replicas on one thread: who shares, and whose turn it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.host import HostDevice
from plait.scheduler.dispatch import core_shares
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.plans.variants import make_variant
from plait.scheduler.runtime.faults.open_devices import OpenDevices
from plait.scheduler.simulation.lanes import make_work, merge_lanes

pytest.importorskip("onnxruntime")
PINS = {"*/*": "ort:0..1", "*": "cpu:0..1"}
SETS = [("cpu:0", "ort:0"), ("cpu:1", "ort:1")]


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_shares, "count_cores", lambda: 2)


def planned(devices: list[Any] | None = None, **options: Any) -> pl.Plan:
    """Return a plan whose items go from cpu to ort and back."""
    b = pl.GraphBuilder("there and back")
    hidden = b.op("Exp", b.input("x", "float32", (64,)), name="first")
    b.output("y", b.op("Neg", b.op("Abs", hidden, name="net/abs"), name="last"))
    options = {"pin": PINS, "passes": (), "max_in_flight": 4, **options}
    return pl.plan(b.build(), devices or ["cpu:0..1", "ort:0..1"], **options)


@pytest.mark.parametrize(("cores", "shares"), [(1, True), (2, True), (3, False)])
def test_sets_that_keep_all_cores_busy_have_one_thread_each(
    cores: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_shares, "count_cores", lambda: cores)
    plan = planned()
    assert list(dict.fromkeys(core_shares.find_shared_lanes(plan).values())) == (
        SETS if shares else []
    )
    devices = OpenDevices(plan)
    opened: dict[str, Any] = {name: devices.open(name) for name in plan.every_device}
    try:
        assert len({opened[name]._lane for name in plan.every_device}) == (2 if shares else 4)
        assert all((opened[one]._lane is opened[other]._lane) == shares for one, other in SETS)
    finally:
        for close in devices.closings():
            close()


def test_who_is_alone_or_apart_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {"net/abs": "ort:0..1", "*": "cpu"}
    assert not core_shares.find_shared_lanes(planned(["cpu", "ort:0..1"], pin=pins)), (
        "one cpu for both"
    )
    assert not core_shares.find_shared_lanes(planned(["ort:0..1"], pin={})), (
        "one device in each set"
    )
    workers = {"net/abs": "worker:0..1", "*": "cpu:0..1"}
    apart = planned(["cpu:0..1", "worker:0..1"], pin=workers)
    assert not core_shares.find_shared_lanes(apart), "workers are other processes"
    monkeypatch.setattr(HostDevice, "options", {"affinity": (0,)}, raising=False)
    bound = planned()
    for device in bound.prototypes.values():
        device.__dict__.pop("options")
    assert not core_shares.find_shared_lanes(bound), "bound to cores, each to its own"


def test_a_variant_is_one_lane_with_the_older_items_first() -> None:
    plan = planned()
    lanes = merge_lanes(make_work(make_variant(plan, index)) for index in range(2))
    assert [lane.name for lane in lanes] == ["cpu:0 and ort:0", "cpu:1 and ort:1"]
    simulation = pl.simulate(plan, items=12)
    for index in range(2):
        begun = [
            (span.started_ns, span.ended_ns, item)
            for item, record in enumerate(simulation.records)
            for span in record.spans()
            if span.step.device.endswith(f":{index}")
        ]
        assert len(begun) == 6 * 3
        for one, other in pairwise(sorted(begun)):
            assert one[1] <= other[0], "one thing at a time"
            assert one[2] <= other[2], "an item that began is over before the next begins"


def test_what_one_device_keeps_another_waiting_for_is_no_ones_overhead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: False)  # items go to lanes
    plan = planned()
    with pl.BlockingSession(plan) as session:
        feeds = ({"x": np.full(64, n, np.float32)} for n in range(40))
        results = [item["y"][0] for item in session.stream(feeds)]
        profile = session.profile()
    np.testing.assert_allclose(results, -np.exp(np.arange(40, dtype=np.float32)), rtol=1e-6)
    lanes = {span.step.lane for record in profile.records for span in record.spans()}
    assert lanes == {"cpu:0 and ort:0", "cpu:1 and ort:1"}
    assert set(profile.busy_s) == {"cpu:0", "cpu:1", "ort:0", "ort:1"}, "each device by itself"
