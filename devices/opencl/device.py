"""OpenCL devices through pyopencl: generated kernels, uploads and downloads on three queues.

No call of a plan blocks the host: `queued.queues` orders work between queues on the device, and the
threads of `queued.waiter` report completed events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.operators.bounded_call import calls_function
from ...graph.values.tensor import Array, TensorSpec
from ..codegen import registry as generators
from ..constants import ConstantStore
from ..device import Capabilities, OnDone, Program, Support
from ..event import Event
from ..kinds import OPENCL
from ..memory import HOST, SHARED, Arena, View, host_view
from ..model import DeviceModel
from ..program import BoundProgram
from ..streams.device import QueuedDevice
from ..streams.program import QueuedProgram, mark_steps
from ..streams.queues import DOWNLOAD, UPLOAD, Queues
from ..streams.waiter import StreamJob
from .driver import ClDevice, PyOpenCl, find_device, load_pyopencl, unavailable_error
from .memory import OpenClArena, read_alignment
from .program import OpenClBinder
from .streams import OpenClBackend, open_queues

ON_PROCESSOR = 2
"""The bit of a device's type for a processor (CL_DEVICE_TYPE_CPU)."""

CPU_FLOPS, CPU_BYTES = 0.25, 0.5
"""Per compute unit, a core, and cycle. Kernels are written for graphics cards: PoCL on an EPYC does
0.93 Gflop/s of 2 x 2.6 GHz, 2.5 GB/s. Measured 2026-11."""

GPU_FLOPS, GPU_BYTES = 32, 4
"""Per compute unit and cycle: a quarter of the peak of AMD's 64 lanes, an eighth of Nvidia's 128,
twice that of Intel's 8; and the usual bandwidth of a card per unit."""

UNIFIED_BYTES_PER_S = 30e9
"""Of a graphics processor that shares the memory of the host."""


def estimate_model(device: ClDevice) -> DeviceModel:
    """Return the model expected from the type, units, clock and memory of `device`.

    It gives orders of magnitude: the units of different makers are not alike.
    """
    cycles_per_s = max(device.max_compute_units, 1) * max(device.max_clock_frequency, 1) * 1e6
    model = replace(OPENCL, memory_bytes=int(device.global_mem_size))
    if device.type & ON_PROCESSOR:
        return replace(
            model,
            flops_per_s=cycles_per_s * CPU_FLOPS,
            bytes_per_s=cycles_per_s * CPU_BYTES,
            submit_s=100e-6,
        )
    widest = cycles_per_s * GPU_BYTES
    return replace(
        model,
        flops_per_s=cycles_per_s * GPU_FLOPS,
        bytes_per_s=min(widest, UNIFIED_BYTES_PER_S) if device.host_unified_memory else widest,
    )


class _Found(NamedTuple):
    cl: PyOpenCl
    device: ClDevice


class _Opened(NamedTuple):
    cl: PyOpenCl
    context: object
    setup: object
    queues: Queues
    binder: OpenClBinder
    constants: ConstantStore


class OpenClDevice(QueuedDevice[_Opened]):
    """A GPU or processor with an OpenCL driver.

    Parameters
    ----------
    name : str
        ``"opencl:N"``; devices are numbered over all platforms.
    device : pyopencl.Device, optional
        The device; found by its number at first use if left out.

    Notes
    -----
    While there is a program that measures, all work has the device's own times, mapped onto the
    host's clock. Otherwise it is timed from its submission until its completion is seen.

    Submitted work cannot be cancelled: it is queued on the device already.
    """

    def __init__(self, name: str = "opencl:0", *, device: ClDevice | None = None) -> None:
        super().__init__(name)
        self._given = device
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The device's properties; the first access looks for the device."""
        if self._capabilities is None:
            _, device = self._find()
            self._capabilities = Capabilities(
                memory=self.name,
                accesses=frozenset({self.name}),
                alignment=read_alignment(device),
                memory_bytes=int(device.global_mem_size),
                native_waits=True,
                software=f"{device.platform.name} {device.driver_version}",
            )
        return self._capabilities

    @property
    def model(self) -> DeviceModel:
        """The model assumed until the device is measured; the first access looks for the device."""
        return estimate_model(self._find().device)

    def hardware(self) -> str:
        device = self._find().device
        units = f"{device.max_compute_units} units of {device.max_clock_frequency} MHz"
        return f"{device.name.strip()}, {units}, {self.capabilities.software}"

    def spare(self) -> OpenClDevice:
        """Return another, closed device on the same hardware."""
        return OpenClDevice(self.name, device=self._find().device)

    def supports(self, node: Node, call: Call) -> Support:
        if calls_function(node):
            return Support(False, "Python functions do not run on 'opencl' devices")
        reason = generators.find_refusal(node, call)
        # Asked last, since the answer needs the driver.
        if reason is None and generators.computes_float64(node, call) and not self._has_float64():
            reason = "the device has no float64"
        return Support(reason is None, reason or "has a generated kernel")

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return generators.scratch(node, call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Make a context and queues, and threads that wait for events; `cores` has no effect."""
        with self._life:
            if self._open is None:
                cl, device = self._find()
                try:
                    self._open = self._start(cl, device)
                except cl.Error as error:
                    raise unavailable_error(error, self.name) from error
                self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate `nbytes` on the device and touch all of them; `memory` must be the device's."""
        assert memory == self.name, memory
        cl, context, setup, queues, *_ = self._get_open()
        with queues.current():
            return OpenClArena(memory, nbytes, self.capabilities.alignment, cl, context, setup)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        if isinstance(arena, OpenClArena):
            assert arena.memory == self.name, arena.memory
            with self._get_open().queues.current():
                return arena.view(offset, spec)
        assert arena.memory in (HOST, SHARED), arena.memory
        return host_view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Upload constants, build the kernels of `subgraph` at once, and bind them to `views`.

        With `measure`, nodes are timed.
        """
        opened = self._get_open()
        queues = opened.queues
        with queues.current() as stream:
            constants, held = opened.constants.place(subgraph.constants)
            steps, traps = opened.binder.bind(stream, self.name, subgraph, views, constants)
        if measure:
            steps = mark_steps(steps, queues.mark)
        run = BoundProgram(self.name, subgraph, steps, measure=False)
        return queues.add(QueuedProgram(subgraph, run, measure, held, traps))

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        queues = self._get_open().queues
        lane = UPLOAD if isinstance(target.arena, OpenClArena) else DOWNLOAD
        job = StreamJob(Event(on_done), tuple(waits), held=(target, source))
        copy = partial(queues.stream(lane).copy, _find_cells(target), _find_cells(source))
        if not all(isinstance(view.arena, OpenClArena) for view in (target, source)):
            copy = partial(copy, is_blocking=False)  # only a copy to or from the host may block
        work = copy if source.spec.nbytes else _skip
        return queues.put(lane, job, work)

    def close(self) -> None:
        """Finish queued work, end the threads, release the queues."""
        with self._life:
            opened = self._open
            if opened is not None:
                opened.queues.close()
                self._open = None

    def _find(self) -> _Found:
        cl = load_pyopencl()
        if self._given is None:
            self._given = find_device(cl, self.name)
        return _Found(cl, self._given)

    def _has_float64(self) -> bool:
        return "cl_khr_fp64" in self._find().device.extensions.split()

    def _start(self, cl: PyOpenCl, device: ClDevice) -> _Opened:
        context = cl.Context([device])
        backend = OpenClBackend(cl, context, self.name)
        binder = OpenClBinder(cl, context, device, backend.setup)
        constants = ConstantStore(self, self.name, self.capabilities.alignment, self._upload)
        queues = open_queues(cl, context, backend, self.name)  # last: it starts threads
        return _Opened(cl, context, backend.setup, queues, binder, constants)

    def _upload(self, view: View, array: Array) -> None:
        """Copy the constant `array` to `view` and wait, so that the source may be freed."""
        opened = self._get_open()
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        # OpenCL rejects copies of no bytes.
        if source.nbytes:
            opened.cl.enqueue_copy(opened.setup, view.array, source, is_blocking=True)


def _find_cells(view: View) -> object:
    """Return the operand of a copy for `view`: a buffer, or the host's bytes."""
    if isinstance(view.arena, OpenClArena):
        return view.array
    return view.arena.buffer[view.offset : view.offset + view.spec.nbytes]


def _skip() -> None:
    """Copy no bytes."""
