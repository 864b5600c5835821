"""Simulated devices for tests of faults, what observers saw, and plans over both."""

from __future__ import annotations

from typing import Any

import plait as pl
import trio
from plait.devices import Device
from plait.devices.sim import SimDevice
from plait.scheduler.runtime.events import DeviceRestored, SessionEvent

from .fault_graphs import answer, feeds, halves


class Observed:
    """The events of a session."""

    def __init__(self) -> None:
        self.seen: list[SessionEvent] = []
        self.restored = trio.Event()

    def __call__(self, event: SessionEvent) -> None:
        self.seen.append(event)
        if isinstance(event, DeviceRestored):
            self.restored.set()

    @property
    def kinds(self) -> list[str]:
        names = [type(event).__name__ for event in self.seen]
        return [name for name in names if name != "ItemDone"]


class Mayfly(SimDevice):
    """Is lost with the pieces of work of these numbers."""

    def __init__(self, deaths: set[int]) -> None:
        super().__init__("sim:a")
        self.deaths = deaths

    def _put(self, *arguments: Any) -> Any:
        if self._accepted in self.deaths:
            self.lose()
        return super()._put(*arguments)


class Stubborn(SimDevice):
    """Cannot be opened again so many times, once it was lost."""

    def __init__(self, refusals: int, name: str = "sim:a") -> None:
        super().__init__(name)
        self.refusals = refusals
        self.asked = 0

    def open(self, cores: int | None = None) -> None:
        if self.failure is not None:
            self.asked += 1
            if self.asked <= self.refusals:
                raise pl.DeviceUnavailableError("not yet")
        super().open(cores)


def planned(sim: Device, *, alone: bool = False, max_in_flight: int = 1) -> pl.Plan:
    """Put the first node of two on a device, the second on the cpu unless it is `alone`."""
    devices: list[Device | str] = [sim] if alone else [sim, "cpu"]
    pins = {"first": "sim:a"} if alone else {"first": "sim:a", "second": "cpu"}
    return pl.plan(halves(), devices, pin=pins, max_in_flight=max_in_flight)


async def right(session: pl.Session, value: int) -> bool:
    return bool((await session.run(feeds(value)))["y"].tolist() == answer(value))
