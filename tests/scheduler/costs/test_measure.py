"""Measuring devices: by a clock that they move themselves, so that no figure is left to chance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plait.devices.cpu import CpuDevice
from plait.devices.device import Support
from plait.devices.event import Event
from plait.devices.host import count_cores
from plait.devices.kinds import guess
from plait.devices.model import DeviceModel
from plait.devices.opencl.device import OpenClDevice
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call
from plait.scheduler.costs import measure as measuring
from plait.scheduler.costs.measure import measure
from pocl import pocl_device
from timed_device import LIKE, RestlessDevice, TimedDevice


@pytest.mark.parametrize("disturbed", [[1.0], [1.0, 3.0, 50.0], [1.0, 1.0, 900.0]])
def test_figures_are_those_of_the_device_whatever_else_the_machine_does(
    disturbed: list[float],
) -> None:
    device = TimedDevice(disturbed)
    costs = measure({"timed": device}, clock=device.clock)
    model = costs.model("timed")
    assert model.launch_s == pytest.approx(LIKE.launch_s, rel=0.2)
    assert model.submit_s == pytest.approx(LIKE.submit_s, rel=0.05)
    assert model.bytes_per_s == pytest.approx(LIKE.bytes_per_s, rel=0.2)
    assert model.flops_per_s == pytest.approx(LIKE.flops_per_s, rel=0.2)
    assert not model.is_guess
    assert set(costs.links) == {("host", "shared"), ("shared", "host")}
    for link in costs.links.values():
        assert link.bytes_per_s == pytest.approx(LIKE.copy_bytes_per_s, rel=0.05)
        assert link.latency_s == pytest.approx(LIKE.copy_latency_s, rel=0.05)
    assert costs.memories == {"timed": "host"}


def test_one_slow_run_keeps_no_larger_product_from_being_tried() -> None:
    for disturbed in ([1.0], [1.0, 900.0]):
        device = TimedDevice(disturbed)
        measure({"timed": device}, clock=device.clock)
        assert "1 MatMul float32[96, 96]" in device.runs


class SharedCore(TimedDevice):
    """A device on a core that other programs take away every few milliseconds, for some time."""

    SLICE_S = 4e-3

    def __init__(self, load: int, model: DeviceModel = LIKE) -> None:
        super().__init__(model=model)
        self._others_s = (load - 1) * self.SLICE_S
        self._left_s = self.SLICE_S

    def _take(self, seconds: float) -> Event:
        while seconds > self._left_s:
            self._now += self._left_s + self._others_s
            seconds -= self._left_s
            self._left_s = self.SLICE_S * self._dice.uniform(0.5, 1.0)
        self._left_s -= seconds
        # Nor do caches and clocks stay as they were.
        return super()._take(seconds * self._dice.uniform(1.0, 1.15))


FAST = replace(LIKE, flops_per_s=5e10, bytes_per_s=8e9, copy_bytes_per_s=6e9)


@pytest.mark.parametrize("model", [LIKE, FAST], ids=["slow", "fast"])
@pytest.mark.parametrize("load", [2, 4, 16])
def test_a_loaded_machine_gives_the_same_figures_within_half(load: int, model: DeviceModel) -> None:
    quiet, loaded = TimedDevice(model=model), SharedCore(load, model)
    expected = measure({"timed": quiet}, clock=quiet.clock)
    found = measure({"timed": loaded}, clock=loaded.clock)
    for name in ("launch_s", "submit_s", "bytes_per_s", "flops_per_s"):
        ratio = getattr(found.model("timed"), name) / getattr(expected.model("timed"), name)
        assert 1 / 1.5 < ratio < 1.5, name
    for ends, link in expected.links.items():
        ratio = found.links[ends].copy_s(1 << 20) / link.copy_s(1 << 20)
        assert 1 / 1.5 < ratio < 1.5, ends


def test_what_cannot_be_measured_is_said_and_stays_what_is_built_in() -> None:
    device, notes = RestlessDevice(), list[str]()
    model = measure({"timed": device}, clock=device.clock, note=notes.append).model("timed")
    built_in = guess("timed")
    (note,) = notes
    assert note.startswith("timed: ")
    for name in ("launch_s", "submit_s", "bytes_per_s", "flops_per_s"):
        if name in note:
            assert getattr(model, name) == getattr(built_in, name)
    assert "flops_per_s" in note


def test_nothing_is_extrapolated_from_runs_that_cost_hardly_more_than_nothing() -> None:
    endless = replace(LIKE, flops_per_s=1e18, bytes_per_s=1e18)
    device, notes = TimedDevice(model=endless), list[str]()
    model = measure({"timed": device}, clock=device.clock, note=notes.append).model("timed")
    assert model.flops_per_s == guess("timed").flops_per_s
    assert "bytes_per_s, flops_per_s could not be measured" in notes[0]


def test_what_is_slow_is_not_tried_on_more() -> None:
    device = TimedDevice(model=DeviceModel(flops_per_s=1e7, bytes_per_s=2e7))
    measure({"timed": device}, clock=device.clock)
    assert "1 MatMul float32[16, 16]" in device.runs
    assert "1 MatMul float32[32, 32]" not in device.runs


def test_runs_of_different_sizes_take_turns() -> None:
    device = TimedDevice(model=replace(LIKE, flops_per_s=1e13, bytes_per_s=1e12))
    measure({"timed": device}, clock=device.clock)
    turns = device.runs[-4 * measuring.REPEATS :]
    assert turns == turns[:4] * measuring.REPEATS
    assert len(set(turns[:4])) == 4


class ElementwiseDevice(TimedDevice):
    """One that has no products."""

    def supports(self, node: Node, call: Call) -> Support:
        return Support(node.op != "MatMul", "so it is")


class FusingDevice(TimedDevice):
    """One that makes one kernel of elementwise nodes in a row."""

    def launches(self, graph: Graph) -> int:
        return len(graph.nodes) if graph.nodes[0].op == "MatMul" else 1


@pytest.mark.parametrize("kind", [ElementwiseDevice, FusingDevice])
def test_a_kernel_is_launched_for_each_node_that_is_counted(kind: type[TimedDevice]) -> None:
    device = kind()
    model = measure({"timed": device}, clock=device.clock).model("timed")
    assert model.launch_s == pytest.approx(LIKE.launch_s, rel=0.2)


def test_a_device_gets_the_cores_that_a_session_gives_it() -> None:
    device = TimedDevice()
    measure({"timed": device}, clock=device.clock)
    assert device.cores == max(1, count_cores() - 1)


def test_a_simulated_device_stays_as_it_is_modelled() -> None:
    model = SimModel(flops_per_s=123.0)
    assert measure({"sim:a": SimDevice("sim:a", model)}).model("sim:a") is model


@pytest.mark.parametrize("name", ["cpu", "opencl:0"])
def test_real_devices_are_measured_and_closed_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(measuring, "MATRIX_SIDES", (16, 64))
    monkeypatch.setattr(measuring, "STREAM_ELEMENTS", (1 << 14,))
    monkeypatch.setattr(measuring, "COPY_BYTES", (1 << 10, 1 << 16))
    monkeypatch.setattr(measuring, "AGREEING", float("inf"))  # on busy machines, too
    device = CpuDevice() if name == "cpu" else OpenClDevice(device=pocl_device())
    model = measure({name: device}).model(name)
    figures = model.flops_per_s, model.bytes_per_s, model.launch_s
    assert all(0 < figure < float("inf") for figure in figures)
    assert not model.is_guess
