"""Measuring devices."""

from __future__ import annotations

import pytest
from plait.devices.cpu import CpuDevice
from plait.devices.sim import SimDevice, SimModel
from plait.scheduler.costs import measure as measuring
from plait.scheduler.costs.measure import measure


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MATRIX_SIDES", (64, 16))
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
