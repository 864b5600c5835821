"""Errors of an OpenCL device when pyopencl, a driver or a device is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from plait import devices
from plait.devices.errors import DeviceLostError, DeviceMemoryError, KernelError
from plait.devices.errors import DeviceUnavailableError as Unavailable
from plait.devices.opencl.device import OpenClDevice
from plait.devices.opencl.driver import device_error, find_device, list_devices, list_names
from plait.graph.values.extras import get_install_command


class ClError(Exception):
    """As pyopencl's errors: a code, and words."""

    def __init__(self, code: int, words: str = "it failed") -> None:
        super().__init__(words)
        self.code = code


def platform(name: str, *found: str) -> Any:
    def get_devices() -> list[str]:
        if not found:
            raise ClError(-1, "DEVICE_NOT_FOUND")
        return list(found)

    return SimpleNamespace(name=name, get_devices=get_devices)


def module(*platforms: Any, error: Exception | None = None) -> Any:
    """Return what stands in for pyopencl."""

    def get_platforms() -> list[Any]:
        if error is not None:
            raise error
        return list(platforms)

    return SimpleNamespace(Error=ClError, get_platforms=get_platforms)


def test_without_pyopencl_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(Unavailable, match="pyopencl is not installed") as raised:
        OpenClDevice().open()
    assert raised.value.fix is not None
    assert get_install_command("opencl") in raised.value.fix
    assert list_names() == ("opencl:0",)
    status = devices.probe("opencl:0")
    told = f"pyopencl is not installed; {get_install_command('opencl')}"
    assert status == devices.DeviceStatus("opencl:0", False, told)


def test_a_pyopencl_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pyopencl":
                raise ImportError("libOpenCL.so.1: cannot open shared object file\nmore")

    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken()])
    with pytest.raises(Unavailable, match=r"does not load: libOpenCL.so.1: .* file\n"):
        OpenClDevice().capabilities  # noqa: B018


@pytest.mark.parametrize("cl", [module(error=ClError(-1001)), module(), module(platform("none"))])
def test_without_a_device_the_message_says_how_to_get_one(cl: Any) -> None:
    with pytest.raises(Unavailable, match="there is no OpenCL device") as raised:
        find_device(cl, "opencl:0")
    assert raised.value.fix is not None
    assert "PoCL" in raised.value.fix


def test_an_opencl_that_does_not_start_says_why() -> None:
    with pytest.raises(Unavailable, match="does not start: OUT_OF_HOST_MEMORY"):
        list_devices(module(error=ClError(-6, "OUT_OF_HOST_MEMORY")))


def test_devices_are_numbered_through_all_platforms_but_checkers_last() -> None:
    cl = module(platform("Oclgrind", "simulator"), platform("A", "a", "b"), platform("B", "c"))
    found = [find_device(cl, f"opencl:{number}") for number in range(4)]
    assert found == ["a", "b", "c", "simulator"]
    assert find_device(cl, "opencl") == "a"


def test_a_number_that_is_too_high_is_answered_with_those_there_are() -> None:
    with pytest.raises(Unavailable, match="OpenCL finds 2") as raised:
        find_device(module(platform("A", "a", "b")), "opencl:2")
    assert raised.value.fix == "use opencl:0, opencl:1"


def test_a_name_without_a_number_is_refused() -> None:
    with pytest.raises(Unavailable, match="'opencl:fast' is not an OpenCL device"):
        find_device(module(platform("A", "a")), "opencl:fast")


@pytest.mark.parametrize("code", [-4, -6, -61])
def test_too_little_memory_leaves_the_device_alive(code: int) -> None:
    error = device_error(module(), ClError(code, "first\nsecond"), "opencl:0")
    assert isinstance(error, DeviceMemoryError)
    assert "first" in error.what
    assert "second" not in error.what


@pytest.mark.parametrize("code", [-2, -14])
def test_failed_work_means_that_the_device_is_lost(code: int) -> None:
    assert isinstance(device_error(module(), ClError(code), "opencl:0"), DeviceLostError)


def test_the_node_that_was_queued_is_named() -> None:
    raised = KernelError("it failed", at="node 'relu'")
    raised.__cause__ = cause = ClError(-4)
    error = device_error(module(), raised, "opencl:0")
    assert isinstance(error, DeviceMemoryError)
    assert error.at == "node 'relu'"
    assert error.__cause__ is cause
    other = KernelError("it failed", at="node 'relu'")
    assert device_error(module(), other, "opencl:0") is other


def test_other_errors_name_the_device() -> None:
    error = device_error(module(), ValueError("strange"), "opencl:1")
    assert error.what == "strange"
    assert error.at == "device 'opencl:1'"
