from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import pytest
from plait import devices
from plait.devices import registry
from plait.devices.cpu import CpuDevice
from plait.devices.device import Capabilities, Device, Program
from plait.devices.errors import DeviceError, DeviceUnavailableError
from plait.devices.memory import SHARED, View
from plait.graph.core.ir import Graph


class WrongDevice(CpuDevice):
    """Adds up what it finds in its output."""

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        wrong = dict(views) | {"x": views["y"]}
        return super().compile(subgraph, wrong, measure=measure)


class MissingDevice(CpuDevice):
    """Cannot be opened."""

    def open(self, cores: int | None = None) -> None:
        raise DeviceUnavailableError("no driver", fix="install one")


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", copy(registry._registered))


def test_the_cpu_is_found_by_name() -> None:
    device: Device = devices.find("cpu")
    assert device.name == "cpu"


def test_a_kind_makes_devices_of_any_instance_name() -> None:
    devices.register("fake", CpuDevice)
    assert devices.find("fake:7").name == "fake:7"
    assert devices.find("fake:rack:7").name == "fake:rack:7"


def test_an_exact_name_wins_over_its_kind() -> None:
    devices.register("fake", CpuDevice)
    devices.register("fake:wrong", WrongDevice)
    assert isinstance(devices.find("fake:wrong"), WrongDevice)
    assert not isinstance(devices.find("fake:0"), WrongDevice)


def test_an_unknown_device_brings_up_the_known_ones() -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        devices.find("tpu:0")
    known = ", ".join((*registry._registered, "ray"))
    assert str(caught.value) == (
        f"there is no device 'tpu:0'\n  fix: known kinds and names: {known}"
    )


def test_a_device_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(DeviceUnavailableError, match="fix: did you mean 'compiled'\\?"):
        devices.find("compile")


def test_without_any_device_none_is_listed() -> None:
    for name in list(registry._registered):
        devices.unregister(name)
    with pytest.raises(DeviceUnavailableError, match="known kinds and names: ray"):
        devices.find("cpu")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(DeviceError) as caught:
        devices.register("cpu", CpuDevice)
    assert str(caught.value) == (
        "device 'cpu' is registered already\n  fix: unregister('cpu') first"
    )


def test_an_unregistered_device_is_gone() -> None:
    devices.register("fake", CpuDevice)
    devices.unregister("fake")
    assert "fake" not in devices.names()
    with pytest.raises(DeviceUnavailableError):
        devices.find("fake")


def test_what_is_not_registered_cannot_be_unregistered() -> None:
    with pytest.raises(DeviceUnavailableError):
        devices.unregister("tpu")


def test_a_kind_is_listed_by_its_name_or_its_instances() -> None:
    devices.register("fake", CpuDevice)
    devices.register("many", CpuDevice, instances=lambda: ("many:0", "many:1"))
    devices.register("none", CpuDevice, instances=lambda: ())
    assert devices.names()[-3:] == ("fake", "many:0", "many:1")


def test_a_device_that_works_passes_its_self_check() -> None:
    status = devices.probe("cpu")
    assert (status.name, status.found, status.reason) == ("cpu", True, "self-check passed")
    assert status.memory_bytes == CpuDevice().capabilities.memory_bytes


def test_a_self_check_gives_its_memory_back() -> None:
    """That no descriptor is left is asserted after every test."""

    class SharingDevice(CpuDevice):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.capabilities = Capabilities(memory=SHARED, accesses=frozenset({SHARED}))

    devices.register("sharing", SharingDevice)
    assert devices.probe("sharing").found


def test_a_device_that_computes_wrongly_fails_its_self_check() -> None:
    devices.register("wrong", WrongDevice)
    status = devices.probe("wrong")
    there = np.arange(4, dtype=np.float32)
    assert not status.found
    assert status.reason.startswith(f"self-check failed: {there} + {there} came back as ")


def test_a_device_that_cannot_be_opened_says_why() -> None:
    devices.register("missing", MissingDevice)
    status = devices.probe("missing")
    assert (status.found, status.reason) == (False, "no driver; install one")


def test_a_device_that_is_unknown_says_so() -> None:
    status = devices.probe("tpu:0")
    assert not status.found
    assert status.reason.startswith("there is no device 'tpu:0'; known kinds and names: cpu, ")


def test_a_factory_that_raises_is_no_crash() -> None:
    def broken(name: str) -> Device:
        raise ZeroDivisionError("inside")

    registry.register("broken", broken)
    with pytest.raises(DeviceUnavailableError, match="cannot be made: ZeroDivisionError: inside"):
        registry.find("broken")
    assert not registry.probe("broken").found


@pytest.mark.parametrize("name", ["", None, 3, ":0", b"cpu"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(DeviceError, match="is not the name of a device") as caught:
        devices.register(name, CpuDevice)
    assert caught.value.fix


def test_what_makes_no_devices_is_refused() -> None:
    with pytest.raises(DeviceError, match="the factory of 'fake' is None"):
        devices.register("fake", None)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"the instances of 'fake' is \('fake:0',\)"):
        devices.register("fake", CpuDevice, instances=("fake:0",))  # type: ignore[arg-type]
    assert "fake" not in devices.names()
    with pytest.raises(DeviceError, match="None is not the name of a device"):
        devices.find(None)  # type: ignore[arg-type]


def test_a_look_at_a_device_that_raises_anything_says_what() -> None:
    class OpenFails(CpuDevice):
        def open(self, cores: int | None = None) -> None:
            raise AttributeError("module 'signal' has no attribute 'pthread_sigmask'")

    class CloseFails(CpuDevice):
        def close(self) -> None:
            super().close()
            raise RuntimeError("it is stuck")

    devices.register("opens", OpenFails)
    devices.register("closes", CloseFails)
    assert devices.probe("opens").reason.startswith("AttributeError: module 'signal'")
    assert devices.probe("closes").reason == "self-check failed: it is stuck"
