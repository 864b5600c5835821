"""The devices that must all behave alike, and what a test can do to each kind of them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn
from unittest.mock import Mock

import plait as pl
import pytest
from bound import Bound
from cuda_core_double import CudaCoreDouble
from cupy_double import CupyDouble
from double_worker import worker_on
from patience import WAIT_S
from plait import devices
from plait.devices import Device, Program
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.worker import CudaWorkerDevice
from plait.devices.event import Event
from plait.devices.memory import View
from plait.devices.opencl.device import OpenClDevice
from plait.devices.openvino.device import OpenVinoDevice, OpenVinoProgram
from plait.devices.ort.device import OrtDevice, ProviderDevice
from plait.devices.ort.program import OrtProgram
from plait.devices.ort.providers import parse_place
from plait.devices.sim.clock import VirtualClock
from plait.devices.sim.device import Faults, SimDevice, SimModel
from plait.devices.streams.program import QueuedProgram
from plait.devices.streams.queues import LANES
from plait.graph.core.ir import Graph
from pocl import pocl_device
from python_functions import fail, fail_on_gpu, wait_at, wait_at_on_gpu


class Failing(NamedTuple):
    """A program whose node ``"bad"``, the second of two, raises ``ValueError("injected")``.

    Attributes
    ----------
    device : Device
        Open.
    graph : Graph
    injecting : callable
        The context to submit the program in.
    """

    device: Device
    graph: Graph
    injecting: Callable[[], AbstractContextManager[None]] = nullcontext


class Functions(NamedTuple):
    """One that raises, and one that waits at a named pipe."""

    fail: Callable[..., Any]
    wait: Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """A kind of device under test; as it stands, one that runs Python functions.

    Attributes
    ----------
    label : str
    kind : str
        Its name in tables of what is expected.
    cancels : bool
        Whether work can be cancelled that has not started.
    """

    label: str
    kind: str
    cancels: bool = True

    @property
    def functions(self) -> Functions:
        """Python functions that run there, if any do."""
        return Functions(fail, wait_at)

    def make(self) -> Device:
        """Return a new device, not open."""
        return devices.find(self.label)

    def make_for_session(self) -> Device:
        """Return a new device that gets on with its work though nobody waits for events."""
        return self.make()

    @contextmanager
    def opened(self, device: Device | None = None) -> Iterator[Device]:
        """Open a device, a new one if none is given; skip the test where there is none."""
        device = device or self.make()
        with self.skipped_if_missing():
            device.open()
        try:
            yield device
        finally:
            device.close()

    @contextmanager
    def skipped_if_missing(self) -> Iterator[None]:
        """Skip the test where this machine lacks the device."""
        try:
            yield
        except pl.DeviceUnavailableError as error:
            pytest.skip(f"no {self.label}: {error.what}")

    @contextmanager
    def hold(self, device: Device) -> Iterator[None]:
        """Let nothing start that is submitted meanwhile."""
        with tempfile.TemporaryDirectory() as folder:
            gate = os.path.join(folder, "gate")
            os.mkfifo(gate)
            opener = os.open(gate, os.O_RDWR)  # for writing alone it would wait for a reader
            with Bound(device, _doubled_then(self.functions.wait, gate=gate)) as blocker:
                event = blocker.submit()
                try:
                    yield
                finally:
                    os.write(opener, b".")
                    event.wait(WAIT_S)
                    os.close(opener)

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        """Open a device, to which a program is submitted that fails."""
        with self.opened() as device:
            yield Failing(device, _doubled_then(self.functions.fail))


class SimSubject(Subject):
    """A simulated device; its clock moves when somebody waits for an event."""

    def make(self) -> SimDevice:
        return SimDevice(self.label, clock=VirtualClock())

    def make_for_session(self) -> SimDevice:
        return SimDevice(self.label)

    @contextmanager
    def hold(self, device: Device) -> Iterator[None]:
        with Bound(device, _doubled_then("Relu")) as blocker:
            event = blocker.submit()
            yield
            event.wait(WAIT_S)

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        model = SimModel(faults=Faults(fail_nodes={"bad": ValueError("injected")}))
        with self.opened(SimDevice(self.label, model, VirtualClock())) as device:
            yield Failing(device, _doubled_then("Relu"))


class CudaSubject(Subject):
    """A real GPU: nothing holds up what was submitted."""

    def hold(self, device: Device) -> NoReturn:
        pytest.skip("a real GPU cannot be held up")

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        launcher = _Launcher()
        with self.opened(CudaDevice("cuda:0", launch=launcher, compiler=None)) as device:
            yield Failing(device, _doubled_then("Relu"), partial(launcher.failing_at, 1))


class CompiledSubject(Subject):
    """Compiled kernels; the device cannot be made without their compiler."""

    def make(self) -> Device:
        with self.skipped_if_missing():
            return super().make()
        raise AssertionError  # skipped


class OrtSubject(Subject):
    """ONNX Runtime, which runs no Python functions: its lane is held up, its programs broken."""

    def make(self) -> OrtDevice:
        return OrtDevice(self.label)

    @contextmanager
    def hold(self, device: Device) -> Iterator[None]:
        assert isinstance(device, OrtDevice)
        gate, event = threading.Event(), Event()
        device._lane.put(event, partial(gate.wait, WAIT_S))
        try:
            yield
        finally:
            gate.set()
            event.wait(WAIT_S)

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        with self.opened(_BrokenOrt(self.label)) as device:
            yield Failing(device, _doubled_then("Relu"))


class OpenVinoSubject(OrtSubject):
    """OpenVINO by way of ONNX Runtime, on the processor."""

    def make(self) -> ProviderDevice:
        return _provided(ProviderDevice, self.label)

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        with self.opened(_provided(_BrokenOpenVino, self.label)) as device:
            yield Failing(device, _doubled_then("Relu"))


class OpenVinoDeviceSubject(OrtSubject):
    """OpenVINO's own runtime."""

    def make(self) -> OpenVinoDevice:
        return OpenVinoDevice(self.label)

    @contextmanager
    def opened(self, device: Device | None = None) -> Iterator[Device]:
        with self.skipped_if_missing():  # it is imported when something is compiled
            _ = self.make().capabilities
        with super().opened(device) as found:
            yield found

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        with self.opened(_BrokenOpenVinoDevice(self.label)) as device:
            yield Failing(device, _doubled_then("Relu"))


def _provided(made: type[ProviderDevice], name: str) -> ProviderDevice:
    place = parse_place(name)
    assert place is not None
    return made(name, place)


class _Breaking:
    """Fails where a node is called ``"bad"``, in the words of ONNX Runtime."""

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        program = super().compile(subgraph, views, measure=measure)  # type: ignore[misc]
        assert isinstance(program, OrtProgram)
        if any(node.name == "bad" for node in subgraph.nodes):
            program._run = _fail_as_ort
        return program


class _BrokenOrt(_Breaking, OrtDevice): ...


class _BrokenOpenVino(_Breaking, ProviderDevice): ...


class _BrokenOpenVinoDevice(OpenVinoDevice):
    def compile_on(self, *arguments: Any, measure: bool = False) -> Program:
        program = super().compile_on(*arguments, measure=measure)
        assert isinstance(program, OpenVinoProgram)
        if any(node.name == "bad" for node in program.graph.nodes):
            program._request = Mock(start_async=Mock(side_effect=RuntimeError("injected")))
        return program


def _fail_as_ort(*arguments: object) -> NoReturn:
    raise RuntimeError("while running Relu node. Name:'bad' Status Message: injected")


class GpuWorkerSubject(Subject):
    """A worker on a fake GPU, whose memory it opens."""

    @property
    def functions(self) -> Functions:
        return Functions(fail_on_gpu, wait_at_on_gpu)

    def make(self) -> CudaWorkerDevice:
        return worker_on(CupyDouble(shares=True))

    @contextmanager
    def opened(self, device: Device | None = None) -> Iterator[Device]:
        made = device or self.make()
        assert isinstance(made, CudaWorkerDevice)
        with super().opened(made):
            yield made
        _gpu(made._gpu).check_freed()


@dataclass(frozen=True)
class DoubleSubject(Subject):
    """A CUDA device on a fake GPU, which runs its streams in the order that a seed says."""

    seed: int = 0

    def make(self) -> CudaDevice:
        return self._on(CupyDouble(self.seed))

    def _on(self, double: CupyDouble, **options: Any) -> CudaDevice:
        return double.device(**options)

    @contextmanager
    def opened(self, device: Device | None = None) -> Iterator[Device]:
        made = device or self.make()
        assert isinstance(made, CudaDevice)
        with super().opened(made):
            yield made
        _gpu(made).check_freed()

    @contextmanager
    def hold(self, device: Device) -> Iterator[None]:
        with _gpu(device).paused():
            yield

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        double = CupyDouble(self.seed)
        launcher = _Launcher(double.launch)
        with self.opened(self._on(double, launch=launcher)) as device:
            yield Failing(device, _doubled_then("Relu"), partial(launcher.failing_at, 1))


class ShareSubject(DoubleSubject):
    """A share of a fake GPU."""

    def _on(self, double: CupyDouble, **options: Any) -> CudaDevice:
        return double.device("cuda:0/25-50", core=CudaCoreDouble(double), **options)


class GeneratingSubject(DoubleSubject):
    """A CUDA device on a fake GPU, with generated kernels and CUDA graphs."""

    def make(self) -> CudaDevice:
        pocl_device()
        return CupyDouble(self.seed).generating()

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        pocl_device()
        double = CupyDouble(self.seed)
        launcher = _Launcher(double.cuda.driver.launchKernel)
        double.cuda.driver.launchKernel = launcher
        with self.opened(double.generating(graphs=False)) as device:  # both nodes are one kernel
            yield Failing(device, _doubled_then("Relu"), partial(launcher.failing_at, 0))


class OpenClSubject(Subject):
    """PoCL: what is submitted waits for an event that the host makes happen."""

    def make(self) -> OpenClDevice:
        return OpenClDevice(self.label, device=pocl_device())

    @contextmanager
    def hold(self, device: Device) -> Iterator[None]:
        assert isinstance(device, OpenClDevice)
        opened = device._get_open()
        gate = opened.cl.UserEvent(opened.context)
        for lane in LANES:
            opened.queues.stream(lane).wait_event(gate)
        try:
            yield
        finally:
            gate.set_status(opened.cl.command_execution_status.COMPLETE)

    @contextmanager
    def failing(self) -> Iterator[Failing]:
        with self.opened(_BrokenOpenCl(self.label, device=pocl_device())) as device:
            yield Failing(device, _doubled_then("Relu"))


class _BrokenOpenCl(OpenClDevice):
    """Fails to queue a node that is called ``"bad"``."""

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        program = super().compile(subgraph, views, measure=measure)
        assert isinstance(program, QueuedProgram)
        for index, node in enumerate(program.run._nodes):
            if node.name == "bad":
                program.run._steps[index] = _fail_to_queue
        return program


def _fail_to_queue() -> NoReturn:
    raise ValueError("injected")


class _Launcher:
    """Puts bound kernels onto a stream, but for one that it is told to fail."""

    def __init__(self, launch: Callable[..., object] | None = None) -> None:
        self._launch = launch or (lambda step: step())
        self._before_failing: int | None = None

    def __call__(self, *given: Any) -> object:
        if self._before_failing == 0:
            raise ValueError("injected")
        if self._before_failing is not None:
            self._before_failing -= 1
        return self._launch(*given)

    @contextmanager
    def failing_at(self, number: int) -> Iterator[None]:
        self._before_failing = number
        yield
        self._before_failing = None


def _gpu(device: Device) -> Any:
    assert isinstance(device, CudaDevice)
    assert isinstance(device._cupy, CupyDouble)
    return device._cupy.gpu


def _doubled_then(bad: str | Callable[..., Any], **attributes: Any) -> Graph:
    """Return y = bad(x + x)."""
    b = pl.GraphBuilder("doubled")
    x = b.input("x", "float32", (4,))
    doubled = b.op("Add", x, x, name="good")
    if isinstance(bad, str):
        b.output("y", b.op(bad, doubled, name="bad"))
    else:
        b.output("y", b.call(bad, doubled, name="bad", **attributes))
    return b.build()


SUBJECTS = (
    Subject("cpu", "cpu"),
    Subject("worker:0", "worker"),
    SimSubject("sim:test", "sim"),
    CompiledSubject("compiled", "compiled"),
    OrtSubject("ort", "ort"),
    OpenVinoSubject("ort:openvino", "openvino"),
    OpenVinoDeviceSubject("openvino", "openvino"),
    Subject("formal", "formal"),
    # Two orders of precedence among the streams that are each other's opposite, and a random one.
    *(DoubleSubject(f"cuda:0-double-{seed}", "double", False, seed) for seed in (0, 5)),
    ShareSubject("cuda:0-share", "double", False, 7),
    GeneratingSubject("cuda:0-generated", "generated", False, 6),
    OpenClSubject("opencl:0", "opencl", cancels=False),
    CudaSubject("cuda:0", "cuda", cancels=False),
    GpuWorkerSubject("worker:cuda:0-double", "double worker"),
)
ONCE = tuple(
    subject
    for subject in SUBJECTS
    if getattr(subject, "seed", 0) == 0
    and subject.kind not in ("ort", "openvino", "formal")
    and not isinstance(subject, GpuWorkerSubject)
)
"""Each kind of device that runs plait's kernels, once: for what no order of streams can change.

ONNX Runtime's kernels and definitions have tests of their own: tests/devices/{ort,formal}. Workers
on GPUs have the kernels of these.
"""


def parameters(subjects: tuple[Subject, ...]) -> list[Any]:
    """Return what `pytest.mark.parametrize` takes."""
    return [
        pytest.param(
            subject,
            id=subject.label,
            # CuPy warns, on import, of things that are none of our business.
            marks=[pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
            if subject.kind == "cuda"
            else (),
        )
        for subject in subjects
    ]
