"""The metrics of a stream, read back as Prometheus would."""

from __future__ import annotations

from typing import Any

import pytest
import trio

pytest.importorskip("prometheus_client", reason="pip install prometheus-client")

import prometheus_metrics as example
from plait.scheduler.runtime.events import DeviceLost, DeviceRestored, ItemDone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(**labels: Any) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_all_items_of_a_stream_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(example.main, 20, None)
    found = samples(capsys.readouterr().out)
    assert found["plait_items_total", labelled(outcome="done")] == 20
    assert found["plait_latency_seconds_count", labelled()] == 20
    assert found["plait_latency_seconds_sum", labelled()] > 0
    assert found["plait_in_flight", labelled()] == 0
    assert found["plait_device_up", labelled(device="cpu")] == 1
    assert found["plait_memory_bytes", labelled(memory="host")] > 0


def test_failures_and_lost_devices_are_told_apart() -> None:
    registry = CollectorRegistry()
    metrics = example.Metrics(registry)
    metrics.observe(ItemDone(0.001, ValueError("no")))
    metrics.observe(DeviceLost("worker:0", OSError("gone")))
    lost = samples(generate_latest(registry).decode())
    assert lost["plait_items_total", labelled(outcome="failed")] == 1
    assert lost["plait_device_up", labelled(device="worker:0")] == 0
    metrics.observe(DeviceRestored("worker:0", 2))
    back = samples(generate_latest(registry).decode())
    assert back["plait_device_up", labelled(device="worker:0")] == 1
    assert back["plait_devices_lost_total", labelled(device="worker:0")] == 1
