"""A stream's figures for Prometheus: what ended, how long it took, how full queues and memory are.

A session tells an observer of every item that ends and every device that comes or goes; gauges are
read from its status now and then. Without a port the figures are printed once at the end, in the
text format that Prometheus reads; with one they can be fetched from this machine meanwhile.

    pip install prometheus-client
    python examples/prometheus_metrics.py
    python examples/prometheus_metrics.py --port 9100 --items 100000
"""

from __future__ import annotations

import argparse

import numpy as np
import plait as pl
import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import start_http_server as serve

LATENCIES_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 1.0)


class Metrics:
    """The metrics of a session; `observe` is its observer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.items = Counter("plait_items", "Items that ended", ["outcome"], registry=registry)
        self.latency = Histogram(
            "plait_latency_seconds",
            "From an item's admission to its results",
            buckets=LATENCIES_S,
            registry=registry,
        )
        self.replays = Counter("plait_replays", "Items run again", ["device"], registry=registry)
        self.lost = Counter("plait_devices_lost", "Devices lost", ["device"], registry=registry)
        self.up = Gauge("plait_device_up", "1 while a device runs", ["device"], registry=registry)
        self.in_flight = Gauge("plait_in_flight", "Items under way", registry=registry)
        self.waiting = Gauge(
            "plait_waiting_steps", "Steps that wait for a device", ["device"], registry=registry
        )
        self.memory = Gauge(
            "plait_memory_bytes", "Bytes of open plans", ["memory"], registry=registry
        )

    def observe(self, event: pl.events.SessionEvent) -> None:
        """Count an event; this is called on the session's loop and returns at once."""
        match event:
            case pl.events.ItemDone(latency_s=latency_s, error=None):
                self.items.labels("done").inc()
                self.latency.observe(latency_s)
            case pl.events.ItemDone():
                self.items.labels("failed").inc()
            case pl.events.DeviceLost(device=device):
                self.lost.labels(device).inc()
                self.up.labels(device).set(0)
            case pl.events.DeviceRestored(device=device):
                self.up.labels(device).set(1)
            case pl.events.ItemReplayed(device=device):
                self.replays.labels(device).inc()

    def read(self, session: pl.Session) -> None:
        """Read the gauges."""
        status = session.status()
        self.in_flight.set(status.in_flight)
        for name, device in status.devices.items():
            self.waiting.labels(name).set(device.waiting)
        for name, nbytes in status.memory.items():
            self.memory.labels(name).set(nbytes)

    async def read_forever(self, session: pl.Session, every_s: float = 1.0) -> None:
        """Read the gauges every now and then, until cancelled."""
        for name in session.plan.every_device:
            self.up.labels(name).set(1)
        while True:
            self.read(session)
            await trio.sleep(every_s)


def model() -> pl.Graph:
    """Return a graph that fails for nobody: two matrices and a bend."""
    b = pl.GraphBuilder("measured")
    x = b.input("x", "float32", (64, 64))
    b.output("y", x.mat_mul(x, name="product").tanh(name="bend"))
    return b.build()


async def main(items: int, port: int | None) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    if port is not None:
        serve(port, addr="127.0.0.1", registry=registry)
    plan = pl.plan(model(), ["cpu"], max_in_flight=4)
    feeds = {"x": np.ones((64, 64), np.float32)}
    async with (
        pl.Session(plan, on_event=metrics.observe) as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(metrics.read_forever, session)
        async with session.stream(feeds for _ in range(items)) as results:
            async for item in results:
                _ = item["y"]
        metrics.read(session)
        nursery.cancel_scope.cancel()
    if port is None:
        print(generate_latest(registry).decode(), end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    trio.run(main, arguments.items, arguments.port)
