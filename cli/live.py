"""The live view of a stream in the terminal: present rate, devices, queues and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from ..graph.core.printing import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scheduler.profile import Record
    from ..scheduler.runtime.session import Session
    from ..scheduler.runtime.status import Status

INTERVAL_S = 0.25
RATE_S = 2.0
"""Period over which rates and shares are averaged."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The data of one frame."""

    status: Status
    per_second: float
    """Items that ended recently."""
    latency_s: float | None
    """Their median latency, from admission to result, if any."""
    busy: dict[str, float]
    """The share of time in which each device worked on them."""


def make_moment(status: Status, records: Sequence[Record], ended: int, elapsed_s: float) -> Moment:
    """Add to `status` that `ended` items took `elapsed_s` seconds; some of them have `records`."""
    known = len(records) / ended if records else 1.0
    busy_ns = dict.fromkeys(status.devices, 0)
    for record in records:
        for span in record.spans():
            busy_ns[span.step.device] = busy_ns.get(span.step.device, 0) + (
                span.ended_ns - span.started_ns
            )
    latencies = sorted(record.landed_ns - record.admitted_ns for record in records)
    return Moment(
        status,
        ended / elapsed_s,
        latencies[len(latencies) // 2] / 1e9 if latencies else None,
        {name: min(ns / 1e9 / elapsed_s / known, 1.0) for name, ns in busy_ns.items()},
    )


def render_frame(shown: Moment, count: int, elapsed_s: float) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = shown.status
    latency = "-" if shown.latency_s is None else f"{shown.latency_s * 1e3:.2f} ms"
    dropped = f", {status.dropped} dropped" if status.dropped else ""
    head = Text(
        f"{status.done} of {count} items, {status.failed} failed{dropped}, "
        f"{status.in_flight} in flight; "
        f"{shown.per_second:.1f} items/s, latency {latency}; {elapsed_s:.0f} s"
    )
    devices = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("device", "busy", "", "at work", "waiting"):
        devices.add_column(column, justify="left" if column in ("device", "") else "right")
    for name, one in status.devices.items():
        share = shown.busy.get(name, 0.0)
        bar = ProgressBar(total=1.0, completed=share, width=24)
        devices.add_row(name, f"{share:.0%}", bar, str(one.at_work), str(one.waiting))
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in status.memory.items())
    return Group(head, devices, Text(f"memory: {memory or 'none yet'}"))


class LiveView:
    """Shows a session on stderr while its stream runs.

    The `session` is open; `count` is the total number of items.
    """

    def __init__(self, session: Session, count: int) -> None:
        self._session, self._count = session, count
        self._begin = time.perf_counter()
        self._shown: list[tuple[float, int]] = [(self._begin, 0)]

    async def run(self) -> None:
        """Show frames until cancelled; the last one stays."""
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        with Live(console=console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self._picture(), refresh=True)
                    await trio.sleep(INTERVAL_S)
            finally:
                live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        status, records = self._session.status(), self._session.profile().records
        now = time.perf_counter()
        since, done = self._shown[0]
        ended = status.done - done
        latest = records[max(len(records) - ended, 0) :]
        shown = make_moment(status, latest, ended, now - since)
        self._shown.append((now, status.done))
        while now - self._shown[0][0] > RATE_S and len(self._shown) > 1:
            self._shown.pop(0)
        return render_frame(shown, self._count, now - self._begin)
