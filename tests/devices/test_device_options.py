"""Options of devices: threads, and the cores that they are bound to. Rows T19, T20 of the seeds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait import devices
from plait.devices import blas
from plait.devices.cpu import CpuDevice
from plait.devices.device import Configured
from plait.devices.lane import ThreadLane
from plait.devices.options import affinity, threads, to_texts
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.session import Session
from python_functions import blas_threads, cores_here
from small_graphs import doubling

BINDS = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot bind threads to cores"
)
X = {"x": np.ones(2, np.float32)}


def calling(function: Any) -> pl.Graph:
    b = pl.GraphBuilder("calling")
    b.output("y", b.call(function, b.input("x", "float32", (2,))))
    return b.build()


def last_core() -> int:
    return max(os.sched_getaffinity(0))


@BINDS
@pytest.mark.parametrize("name", ["cpu", "worker:0"])
def test_work_is_bound_to_the_cores_and_nothing_else_is(name: str) -> None:
    before = os.sched_getaffinity(0)
    device = pl.device(name, affinity=[last_core()])
    found = pl.run(calling(cores_here), X, devices=[device])["y"]
    assert found.tolist() == [1, last_core()]
    assert os.sched_getaffinity(0) == before
    free = pl.run(calling(cores_here), X, devices=[name])["y"]
    assert free[0] == len(before)


@BINDS
def test_a_lane_that_is_bound_runs_nothing_elsewhere() -> None:
    free, bound = ThreadLane("free"), ThreadLane("bound", (last_core(),))
    for lane in (free, bound):
        lane.open()
    event = devices.event.Event()
    assert not bound.run_inline(event, lambda: None)
    assert free.run_inline(event, lambda: None)
    for lane in (free, bound):
        lane.close()


def test_a_worker_has_its_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in blas.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    device = pl.device("worker:0", threads=3)
    assert pl.run(calling(blas_threads), X, devices=[device])["y"][0] == 3


def test_the_threads_of_the_cpu_come_before_its_share_of_the_cores() -> None:
    device = pl.device("cpu", threads=3)
    device.open(1)
    assert blas._wanted[device] == 3
    device.close()
    assert device not in blas._wanted


def test_onnx_runtime_is_told_both(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    graph = doubling()
    device = OrtDevice(threads=3, affinity=(0, 1))
    device.open(1)
    session: Session = device._sessions.of(graph, device._threads_for(graph, 1))
    chosen = session.inference.get_session_options()
    assert chosen.intra_op_num_threads == 3
    entry = chosen.get_session_config_entry("session.intra_op_thread_affinities")
    assert entry == "1,2;1,2"
    device.close()


@pytest.mark.parametrize(
    ("value", "wanted"), [([0], (0,)), ((0, 0), (0,)), ("0", (0,)), ("0-0", (0,)), ({0}, (0,))]
)
@BINDS
def test_cores_are_numbers_or_their_text(
    value: object, wanted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert affinity(value) == wanted
    assert affinity("0-2") == affinity("2, 0,1") == (0, 1, 2)
    assert affinity(to_texts({"affinity": (0, 2)})["affinity"]) == (0, 2)


def test_threads_are_a_number_or_its_text() -> None:
    assert threads(2) == threads("2") == 2


@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("thread", 2, "did you mean 'threads'?"),
        ("colour", 2, "its options: threads, affinity"),
        *(("threads", value, "it takes a whole number from 1 to") for value in (0, "x", 1.5, True)),
        *(("affinity", value, "it takes ") for value in ([], "", "1-", 3, ["0"], [10**9], {0: 0})),
    ],
)  # fmt: skip
def test_what_an_option_does_not_take_is_told_with_what_it_does(
    option: str, value: object, fix: str
) -> None:
    with pytest.raises(pl.DeviceError) as raised:
        pl.device("cpu", **{option: value})
    assert f"'{option}'" in raised.value.what
    assert raised.value.fix is not None
    assert raised.value.fix.startswith(fix)


def test_a_device_without_options_says_so() -> None:
    with pytest.raises(pl.DeviceError, match="device 'formal' has no option 'threads'") as raised:
        pl.device("formal", threads=2)
    assert raised.value.fix == "its options: none"


def test_a_saved_plan_makes_its_devices_with_the_same_options(tmp_path: Path) -> None:
    path = tmp_path / "doubling.plan"
    plan = pl.plan(doubling(), [pl.device("cpu", threads=2), "formal"])
    plan.save(path)
    loaded = pl.load_plan(path)
    device = loaded.prototypes["cpu"]
    assert isinstance(device, Configured)
    assert dict(device.options) == {"threads": 2}
    assert pl.run(loaded, {"x": np.ones(4, np.float32)})["y"].shape == (4,)
    given = pl.load_plan(path, devices=[pl.device("cpu")]).prototypes["cpu"]
    assert isinstance(given, Configured)
    assert dict(given.options) == {}


def test_options_may_depend_on_the_name() -> None:
    class Npu(CpuDevice):
        def __init__(self, name: str, *, level: int = 0) -> None:
            super().__init__(name)
            self.options = {"level": level}

    devices.register("npu", Npu, options=lambda name: {"level": threads} if ":" in name else {})
    try:
        assert pl.device("npu:1", level=4).options == {"level": 4}  # type: ignore[attr-defined]
        with pytest.raises(pl.DeviceError, match="has no option 'level'"):
            pl.device("npu", level=4)
    finally:
        devices.unregister("npu")


def test_a_device_of_ones_own_declares_options() -> None:
    class Npu(CpuDevice):
        def __init__(self, name: str, *, level: int = 0) -> None:
            super().__init__(name)
            self.options = {"level": level}

    devices.register("npu", Npu, options={"level": threads})
    try:
        made = pl.device("npu:1", level="4")
        assert isinstance(made, Npu)
        assert made.options == {"level": 4}
        with pytest.raises(pl.DeviceError, match="has no option 'levle'"):
            pl.device("npu:1", levle=4)
    finally:
        devices.unregister("npu")
