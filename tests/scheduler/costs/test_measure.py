"""Measuring devices."""

from __future__ import annotations

import pytest
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.devices.sim import SimDevice, SimModel
from plait.graph.ir import Graph
from plait.scheduler.costs import measure as measuring
from plait.scheduler.costs.measure import measure


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MATRIX_SIDES", (16, 64))
    monkeypatch.setattr(measuring, "STREAM_ELEMENTS", (1 << 14,))
    monkeypatch.setattr(measuring, "COPY_BYTES", (1 << 10, 1 << 16))


def test_the_cpu_is_measured_and_closed_again() -> None:
    device = CpuDevice()
    costs = measure({"cpu": device})
    model = costs.model("cpu")
    assert 1e6 < model.flops_per_s < 1e13
    assert 1e6 < model.bytes_per_s < 1e13
    assert 0 < model.launch_s < 1e-2
    assert set(costs.links) == {("host", "shared"), ("shared", "host")}
    assert costs.memories == {"cpu": "host"}


def test_a_simulated_device_stays_as_it_is_modelled() -> None:
    model = SimModel(flops_per_s=123.0)
    assert measure({"sim:a": SimDevice("sim:a", model)}).model("sim:a") is model


def test_what_is_slow_is_not_tried_on_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "STREAM_ELEMENTS", (1 << 10, 1 << 14, 1 << 18))
    tried = []

    def slow(device: Device, graph: Graph) -> float:
        elements = graph.tensors[graph.inputs[0]].size
        tried.append((graph.nodes[0].op, elements))
        return elements * 2e-6

    monkeypatch.setattr(measuring, "_time", slow)
    model = measure({"cpu": CpuDevice()}).model("cpu")
    assert ("Relu", 1 << 14) in tried
    assert ("Relu", 1 << 18) not in tried
    assert model.bytes_per_s == pytest.approx(4e6, rel=0.01)
