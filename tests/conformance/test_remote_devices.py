"""The tests that every device must pass, for remote ones: on a host in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from every_device import Subject
from fake_cluster import FakeEngine
from patience import WAIT_S
from plait.devices import Device
from plait.scheduler.ray.actors import ActorPlacement
from plait.scheduler.ray.remote.device import RayDevice
from plait.scheduler.ray.remote.hosts import RemoteHost

from .test_device_events import *  # noqa: F403
from .test_device_protocol import *  # noqa: F403


@dataclass(frozen=True)
class RemoteSubject(Subject):
    """A device on a host."""

    kind_there: str = "cpu"
    hosts: list[RemoteHost] = field(default_factory=list, compare=False)

    def make(self) -> RayDevice:
        self.hosts.append(RemoteHost("fake", FakeEngine(), ActorPlacement()))
        return RayDevice(self.hosts[-1], self.kind_there)

    @contextmanager
    def opened(self, device: Device | None = None) -> Iterator[Device]:
        made = device or self.make()
        assert isinstance(made, RayDevice)
        try:
            with super().opened(made):
                yield made
        finally:
            made._host.close()
            self.hosts.remove(made._host)


@pytest.fixture(scope="module", params=["cpu"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return RemoteSubject(f"ray:fake/{request.param}", "ray", kind_there=request.param)


@pytest.fixture(autouse=True)
def _hosts_are_through(subject: Subject, device: Device) -> Iterator[None]:
    """Close the hosts of a test, and let the other one free what is not used any more."""
    assert isinstance(subject, RemoteSubject)
    yield
    for host in subject.hosts[1:]:
        host.close()
    del subject.hosts[1:]
    deadline = time.monotonic() + WAIT_S
    while _arenas_of(subject.hosts[0]) and time.monotonic() < deadline:
        threading.Event().wait(0.001)


def _arenas_of(host: RemoteHost) -> list[Any]:
    engine = host._engine
    assert isinstance(engine, FakeEngine)
    objects = engine.actors[-1].made._devices._objects
    return [made for made in list(objects.values()) if hasattr(made, "staging")]


@pytest.fixture(scope="module")
def device(subject: Subject) -> Iterator[Device]:
    with subject.opened() as opened:
        yield opened
