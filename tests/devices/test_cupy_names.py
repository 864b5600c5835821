"""The double of CuPy has nothing that CuPy lacks; needs CuPy, but no GPU.

Where there is no GPU, the device for CUDA meets nothing but the double: a name or a parameter that
the double alone has would go unnoticed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import cupy_double
import fake_arrays
import pytest
from cupy_double import CupyDouble
from fake_driver import FakeDriver, Function, Module
from plait.devices.cuda import driver
from plait.devices.cuda.driver import count_devices, device_error
from plait.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
)
from signatures import Taken, taken

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CuPy's, about what it finds on the machine
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install '.[cuda]'")

CUDA_CLASSES = (
    (cupy_double.Device, cupy.cuda.Device, {"compute_capability", "id"}),
    (cupy_double.Event, cupy.cuda.Event, set[str]()),
    (cupy_double.Graph, cupy.cuda.graph.Graph, set[str]()),
    (cupy_double.Memory, cupy.cuda.Memory, {"ptr"}),
    (cupy_double.MemoryPointer, cupy.cuda.MemoryPointer, {"mem", "ptr"}),
    (cupy_double.Stream, cupy.cuda.Stream, set[str]()),
    (cupy_double.Streams, cupy.cuda.Stream, set[str]()),
    (Function, cupy.cuda.function.Function, {"ptr"}),
    (Module, cupy.cuda.function.Module, set[str]()),
    (fake_arrays.FakeArray, cupy.ndarray, {"data", "dtype", "nbytes", "shape", "strides"}),
)
"""What stands for what, and what is read of it that the double sets when it is made."""
OF_TESTS = {"device", "generating", "launch"}
"""What the double has for those who use it in tests."""


def check_takes(name: str, fake: Any, real: Any) -> None:
    """Check that CuPy's function takes whatever the double's takes."""
    mine, its = taken(fake), taken(real)
    assert mine.required >= its.required, f"{name} must be given {its.names}"
    if not its.is_open:
        assert len(mine.names) <= len(its.names), f"{name} takes {its.names} only"
        assert set(mine.names[mine.required :]) <= set(its.names), f"{name} takes {its.names}"


def offered(namespace: Any = None, prefix: str = "cuda") -> Iterator[tuple[str, Any]]:
    """Yield what the double has of `cupy.cuda`, by name."""
    for name, value in vars(namespace or CupyDouble().cuda).items():
        path = f"{prefix}.{name}"
        if isinstance(value, SimpleNamespace):
            yield from offered(value, path)
        elif isinstance(value, FakeDriver):
            yield f"{path}.launchKernel", value.launchKernel
            yield f"{path}.CUDADriverError", value.CUDADriverError
        else:
            yield path, value


def of_module() -> Iterator[tuple[str, Any]]:
    """Yield what the double has in place of functions of numpy's, by name."""
    double = CupyDouble()
    for name in vars(CupyDouble):
        if not name.startswith("_") and name not in OF_TESTS:
            yield name, getattr(double, name)


def is_error(fake: Any) -> bool:
    return isinstance(fake, type) and issubclass(fake, Exception)


OFFERED = dict(offered()) | dict(of_module())


def test_the_real_signatures_are_read_right() -> None:
    copy = ("dst", "src", "size", "kind", "stream")
    assert taken(cupy.cuda.runtime.memcpyAsync) == Taken(copy, 5, False)
    assert taken(cupy.cuda.Device) == Taken(("device",), 0, False)
    assert taken(cupy.cuda.Graph.launch) == Taken(("stream",), 0, False)
    assert taken(cupy.cuda.Event) == Taken(("block", "disable_timing", "interprocess"), 0, False)


@pytest.mark.parametrize("path", [path for path, fake in OFFERED.items() if not is_error(fake)])
def test_a_function_takes_what_the_doubles_takes(path: str) -> None:
    check_takes(path, OFFERED[path], attrgetter(path)(cupy))


def test_errors_are_exceptions_that_have_a_status() -> None:
    for path, fake in OFFERED.items():
        if is_error(fake):
            assert issubclass(attrgetter(path)(cupy), Exception), path
    assert cupy.cuda.runtime.CUDARuntimeError(700).status == 700


@pytest.mark.parametrize(("fake", "its", "attributes"), CUDA_CLASSES)
def test_objects_have_what_the_doubles_have(fake: type, its: type, attributes: set[str]) -> None:
    public = {name for name in vars(fake) if not name.startswith("_")}
    assert [name for name in public | attributes if not hasattr(its, name)] == []
    for name in public:
        if inspect.isfunction(vars(fake)[name]):
            check_takes(f"{its.__name__}.{name}", getattr(fake, name), getattr(its, name))


def test_arrays_are_made_on_memory_by_name_and_can_be_referred_to_weakly() -> None:
    assert "shape, dtype=float, memptr=None" in cupy.ndarray.__doc__
    assert cupy.ndarray.__weakrefoffset__
    assert hasattr(cupy.cuda.Stream.null, "ptr")
    assert hasattr(cupy.cuda.runtime.PointerAttributes, "device")


def of_driver(status: int) -> Any:
    """Return an error of the driver; to be made in full it needs one."""
    error: Any = cupy.cuda.driver.CUDADriverError.__new__(cupy.cuda.driver.CUDADriverError)
    error.status = status
    return error


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (cupy.cuda.memory.OutOfMemoryError(1 << 40, 0), DeviceMemoryError),
        (cupy.cuda.runtime.CUDARuntimeError(2), DeviceMemoryError),
        (cupy.cuda.runtime.CUDARuntimeError(700), DeviceLostError),
        (of_driver(719), DeviceLostError),
        (cupy.cuda.runtime.CUDARuntimeError(1), DeviceError),
        (of_driver(222), DeviceError),
    ],
)
def test_errors_of_cupy_are_told_apart(
    error: Exception, meaning: type[DeviceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_is_broken", lambda *_: False)  # asks a device, and here is none
    assert type(device_error(error, cupy, "cuda:0")) is meaning


def test_a_machine_without_a_driver_has_no_device_and_says_why() -> None:
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        with pytest.raises(DeviceUnavailableError, match="CUDA does not start"):
            count_devices(cupy)
