"""Errors of a CUDA device when something is missing or goes wrong, on a fake GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import plait as pl
import pytest
from cupy_double import CupyDouble, OutOfMemoryError
from fake_cuda_errors import (
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    UNKNOWN,
    CUDADriverError,
    CUDARuntimeError,
)
from patience import WAIT_S
from plait import devices
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.driver import device_error, list_gpus, list_workers
from plait.devices.cuda.queues import CudaBackend
from plait.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    KernelError,
)
from plait.devices.kernels.registry import _kernels, kernel
from plait.graph.values.extras import get_install_command

from .rig import Rig, chain, some_items


def test_without_cupy_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailableError, match="CuPy is not installed") as raised:
        CudaDevice().open()
    assert raised.value.fix is not None
    assert get_install_command("cuda") in raised.value.fix
    assert list_gpus() == ("cuda:0",)
    assert list_workers() == ()
    told = f"CuPy is not installed; {raised.value.fix}"
    assert devices.probe("cuda:0") == devices.DeviceStatus("cuda:0", False, told)


def test_a_cupy_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "cupy":
                raise ImportError("libnvrtc.so.13: cannot open shared object file\nmore")

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken()])
    with pytest.raises(DeviceUnavailableError, match=r"does not load: libnvrtc.so.13: .* file\n"):
        CudaDevice().capabilities  # noqa: B018


def test_without_a_driver_the_message_says_so(double: CupyDouble) -> None:
    def fail() -> int:
        raise CUDARuntimeError(35)

    double.cuda.runtime.getDeviceCount = fail
    with pytest.raises(DeviceUnavailableError, match=r"does not start: .*InsufficientDriver"):
        double.device().open()
    assert list_gpus(double) == ("cuda:0",)
    assert list_workers(double) == ()


def test_without_a_device_the_message_says_so(double: CupyDouble) -> None:
    double.devices = 0
    with pytest.raises(DeviceUnavailableError, match="there is no CUDA device"):
        double.device().capabilities  # noqa: B018


def test_an_index_too_high_lists_what_there_is(double: CupyDouble) -> None:
    double.devices = 2
    with pytest.raises(DeviceUnavailableError, match="no device 'cuda:2': CUDA finds 2") as raised:
        double.device("cuda:2").open()
    assert raised.value.fix == "use cuda:0, cuda:1"
    assert list_gpus(double) == ("cuda:0", "cuda:1")
    assert list_workers(double) == ("worker:cuda:0", "worker:cuda:1")


@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cuda:1.5"])
def test_a_name_without_a_number_is_no_device(name: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="is not a CUDA device"):
        CudaDevice(name)


def test_a_gpu_that_does_not_start_is_unavailable(double: CupyDouble) -> None:
    double.cuda.Stream = lambda non_blocking: (_ for _ in ()).throw(CUDARuntimeError(INVALID_VALUE))
    with pytest.raises(DeviceUnavailableError, match=r"'cuda:0' does not start: .*Invalid"):
        double.device().open()


def test_a_gpu_that_was_broken_in_this_process_is_lost_to_who_opens_it(double: CupyDouble) -> None:
    graph = chain("Relu")
    double.gpu.break_next()
    with pytest.raises(DeviceLostError):
        pl.run(graph, some_items(graph, 1)[0], double.device())
    with pytest.raises(DeviceLostError, match=r"(?s)'cuda:0' is lost: .*start a new process"):
        double.device().open()

    def answer() -> int:  # any call may
        raise CUDARuntimeError(ILLEGAL_ADDRESS)

    double.cuda.runtime.getDeviceCount = answer
    with pytest.raises(DeviceLostError, match="'cuda:0' is lost"):
        double.device().open()


def test_after_an_illegal_access_all_work_fails_with_the_first_error(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig:
        double.gpu.break_next()
        with double.gpu.paused():
            stream = rig.stream(some_items(rig.graph, 2))
        held = [*stream.computed, *(event for out in stream.downloaded for event in out)]
        later = [rig.compute(), rig.compute([stream.computed[0]])]
        for event in (*held, *later):
            with pytest.raises(DeviceLostError, match="is lost: cudaErrorIllegalAddress") as raised:
                event.wait(WAIT_S)
            assert isinstance(raised.value.__cause__, CUDARuntimeError)
        assert len({id(event.error) for event in (*held, *later)}) == 1


def test_a_device_that_breaks_while_it_opens_fails_what_is_put(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(backend: CudaBackend) -> None:
        raise CUDARuntimeError(ILLEGAL_ADDRESS)

    monkeypatch.setattr(CudaBackend, "attach", fail)
    device = double.device()
    with Rig(device, chain("Relu")) as rig:
        with pytest.raises(DeviceLostError, match="illegal memory access"):
            rig.compute().wait(WAIT_S)
        assert device.failure is not None


def test_a_lost_device_closes(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig:
        double.gpu.break_next()
        event = rig.compute()
    assert isinstance(event.error, DeviceLostError)


def test_too_little_memory_is_a_memory_error() -> None:
    double = CupyDouble(memory_bytes=10_000)
    device = double.device()
    device.open()
    with pytest.raises(DeviceMemoryError, match="has too little memory") as raised:
        device.arena("cuda:0", 10_001)
    assert isinstance(raised.value.__cause__, CUDARuntimeError)
    device.arena("cuda:0", 9_000).close()  # the device lives on
    device.close()


@pytest.fixture
def failing() -> Iterator[list[Exception]]:
    """A kernel of Relu for cuda that raises, on its first run, what the test puts in the list."""
    errors: list[Exception] = []

    @kernel("Relu", device="cuda")
    def relu(xp: Any, inputs: Any, outputs: Any, attributes: Any) -> None:
        if errors:
            raise errors.pop()
        xp.maximum(inputs[0], 0, out=outputs[0])

    yield errors
    del _kernels["Relu", "cuda"]


@pytest.fixture
def eager(double: CupyDouble) -> Iterator[CudaDevice]:
    """A device whose kernels' own Python runs when they are submitted, as on a real GPU."""
    device = double.device(launch=None)
    yield device
    device.close()


def test_a_kernel_that_raises_fails_its_program_alone(
    eager: CudaDevice, failing: list[Exception]
) -> None:
    with Rig(eager, chain("Add", "Relu")) as rig:
        failing.append(ValueError("odd shape"))
        event = rig.compute()
        behind = rig.compute([event])
        with pytest.raises(KernelError, match="ValueError: odd shape") as raised:
            event.wait(WAIT_S)
        assert "relu1" in str(raised.value)
        with pytest.raises(KernelError):
            behind.wait(WAIT_S)
        assert behind.error is event.error
        rig.compute().wait(WAIT_S)


def test_what_was_queued_before_a_kernel_raised_ends_before_its_event(double: CupyDouble) -> None:
    steps: list[Any] = []

    def launch(step: Any) -> None:
        steps.append(step)
        if len(steps) == 4:  # two were launched to compile them
            raise ValueError("late")
        double.launch(step)

    device = double.device(launch=launch)
    with Rig(device, chain("Add", "Relu")) as rig:
        with double.gpu.paused():
            event = rig.compute()
            assert event.native is not None  # recorded behind the first kernel
        with pytest.raises(KernelError, match="late"):
            event.wait(WAIT_S)
    steps.clear()


def test_a_kernel_without_memory_is_a_memory_error(
    eager: CudaDevice, failing: list[Exception]
) -> None:
    with Rig(eager, chain("Add", "Relu")) as rig:
        failing.append(OutOfMemoryError("Out of memory allocating 9 bytes"))
        with pytest.raises(DeviceMemoryError, match="allocating 9 bytes") as raised:
            rig.compute().wait(WAIT_S)
        assert "relu1" in str(raised.value)
        rig.compute().wait(WAIT_S)


def test_a_kernel_that_cannot_run_is_found_when_it_is_compiled(
    eager: CudaDevice, failing: list[Exception]
) -> None:
    failing.append(TypeError("no such loop"))
    with pytest.raises(KernelError, match="TypeError: no such loop") as raised:
        Rig(eager, chain("Add", "Relu"))
    assert "relu1" in str(raised.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("full"), DeviceMemoryError),
        (CUDARuntimeError(2), DeviceMemoryError),
        (CUDARuntimeError(INVALID_VALUE), DeviceError),
        (CUDARuntimeError(719), DeviceLostError),
        (CUDARuntimeError(INVALID_HANDLE), DeviceError),
        (CUDADriverError(INVALID_CONTEXT), DeviceError),
        (CUDADriverError(UNKNOWN), DeviceError),
        (RuntimeError("odd"), DeviceError),
    ],
)
def test_errors_of_cupy_become_errors_of_devices(error: Exception, kind: type[DeviceError]) -> None:
    translated = device_error(error, CupyDouble(), "cuda:0")
    assert type(translated) is kind
    assert "cuda:0" in str(translated)
    assert translated.__cause__ is error


@pytest.mark.parametrize("code", [UNKNOWN, INVALID_HANDLE])
def test_an_error_after_which_the_device_answers_no_more_has_broken_it(code: int) -> None:
    double = CupyDouble()
    double.gpu.break_next(UNKNOWN)
    with double.cuda.Device(0) as current:
        current.use()
        stream = double.cuda.Stream(non_blocking=True)
        double.gpu.launch(stream.ptr, lambda: None)
        with pytest.raises(CUDARuntimeError):
            stream.synchronize()
    assert type(device_error(CUDARuntimeError(code), double, "cuda:0")) is DeviceLostError


def test_a_refused_launch_stays_a_kernel_error() -> None:
    error = KernelError("refused", at="node 'n'")
    error.__cause__ = CUDARuntimeError(INVALID_VALUE)
    assert device_error(error, CupyDouble(), "cuda:0") is error
