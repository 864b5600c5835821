"""CUDA devices through CuPy: kernels, uploads and downloads on three streams.

Nothing inside a plan waits on the host: `queues.py` keeps the order between streams on the GPU,
and the threads of `waiter.py` tell when events have happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .. import program as programs
from ..constants import ConstantStore
from ..device import Capabilities, OnDone, Program, Support
from ..errors import DeviceError, DeviceLostError
from ..event import Event
from ..memory import HOST, SHARED, Arena, View
from ..program import BoundProgram
from .driver import CuPy, cuda_names, device_index, find_device, unavailable
from .memory import ALIGNMENT, CudaArena, HostPins, HostView
from .program import CudaProgram, Launch, Warmer, bind, marked
from .queues import COMPUTE, DOWNLOAD, UPLOAD, Queues, closed
from .support import why_not
from .waiter import Job

__all__ = ["CudaDevice", "cuda_names"]

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
"""cudaMemcpyKind."""


class StagedDownload(Event):
    """A download whose last part, out of staging, is done by the host: no stream can see it end."""

    __slots__ = ()


class _Opened(NamedTuple):
    """What there is only while a device is open."""

    cupy: CuPy
    queues: Queues
    pins: HostPins
    warmer: Warmer
    constants: ConstantStore


class CudaDevice:
    """An NVIDIA GPU.

    Parameters
    ----------
    name : str
        ``"cuda:N"``; N is CuPy's number of the device.
    cupy : module, optional
        What to use for CuPy; imported when the device is first looked at, if left out.
    launch : callable, optional
        How a bound kernel gets onto the current stream; it is called, if left out.

    Notes
    -----
    Programs that measure, and all copies once there is such a program, have the GPU's own times,
    mapped onto the host's clock. Other work is timed from its submission until it is known to be
    complete.

    What was submitted cannot be cancelled: it is queued on the GPU already.
    """

    def __init__(
        self, name: str = "cuda:0", *, cupy: CuPy | None = None, launch: Launch | None = None
    ) -> None:
        self.name = name
        self._index = device_index(name)
        self._memory = f"cuda:{self._index}"
        self._cupy = cupy
        self._launch = launch
        self._capabilities: Capabilities | None = None
        self._life = threading.Lock()  # one open or close at a time
        self._open: _Opened | None = None
        self._times_copies = False
        self.life = 0
        self.mourners: list[Callable[[], object]] = []

    @property
    def capabilities(self) -> Capabilities:
        """What it is like; looks for the device when first asked."""
        if self._capabilities is None:
            cupy = self._find()
            try:
                with cupy.cuda.Device(self._index):
                    _, total = cupy.cuda.runtime.memGetInfo()
            except Exception as error:
                raise unavailable(error, self.name) from error
            self._capabilities = Capabilities(
                memory=self._memory,
                accesses=frozenset({self._memory}),
                alignment=ALIGNMENT,
                memory_bytes=int(total),
                native_waits=True,
                software=f"cupy {cupy.__version__}",
            )
        return self._capabilities

    @property
    def loss(self) -> DeviceLostError | None:
        """The error that broke the device."""
        opened = self._open
        return None if opened is None else opened.queues.loss

    @property
    def revives(self) -> bool:
        """False: after such an error the device works again for other processes only."""
        return False

    def kill(self, event: Event, reason: str) -> bool:
        """Do nothing, and say so: what a GPU runs cannot be ended."""
        return False

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether there is a kernel that CuPy can run; needs no device."""
        support = programs.supports(node, "cuda", runs_python=False)
        reason = why_not(node, call) if support.ok else None
        return support if reason is None else Support(False, reason)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the kernel's scratch buffers."""
        return programs.scratch(node, "cuda", call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Make the streams and start the threads that wait for them."""
        with self._life:
            if self._open is not None:
                return
            cupy = self._find()
            try:
                queues = Queues(cupy, self._index, self.name)
            except Exception as error:
                raise unavailable(error, self.name) from error
            self._times_copies = False
            self.life += 1
            self._open = _Opened(
                cupy,
                queues,
                HostPins(cupy),
                Warmer(cupy, self._memory, self._launch),
                ConstantStore(self, self._memory, ALIGNMENT, self._upload),
            )

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate on the GPU."""
        assert memory == self._memory, memory
        opened = self._opened()
        with opened.queues.current():
            return CudaArena(memory, nbytes, opened.cupy)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of the GPU's memory, or of host memory, which becomes page-locked."""
        if isinstance(arena, CudaArena):
            assert arena.memory == self._memory, arena.memory
            return arena.view(offset, spec)
        assert arena.memory in (HOST, SHARED), arena.memory
        opened = self._opened()
        with opened.queues.current():
            return opened.pins.view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Upload constants, bind kernels, and have CuPy compile them."""
        cupy, queues, _, warmer, store = self._opened()
        with queues.current() as stream:
            constants, held = store.place(subgraph.constants)
            steps = bind(cupy, subgraph, views, constants, self._launch)
            warmer.warm(subgraph, [node for node, _ in steps], constants, stream)
            stream.synchronize()  # kernels may have computed while they were bound
        if measure:
            self._times_copies = True
            steps = marked(steps, queues.mark)
        run = BoundProgram(self.name, subgraph, steps, measure=False)
        return CudaProgram(subgraph, run, measure, held)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue on the compute stream."""
        assert isinstance(program, CudaProgram)
        job = Job(Event(on_done), tuple(waits), held=program)
        if program.measures:
            job.marks = dict.fromkeys(node.name for node in program.graph.nodes)
        return self._opened().queues.put(COMPUTE, job, program.run, timed=program.measures)

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue on the stream of that direction."""
        if isinstance(source, HostView):
            return self._copy_in(target, source, tuple(waits), on_done)
        assert isinstance(target, HostView)
        return self._copy_out(target, source, tuple(waits), on_done)

    def close(self) -> None:
        """Finish what is queued, end the threads, release streams and page-locked memory."""
        with self._life:
            opened = self._open
            if opened is not None:
                opened.queues.close()
                opened.pins.close()
                self._open = None

    def _find(self) -> CuPy:
        self._cupy = find_device(self.name, self._index, self._cupy)
        return self._cupy

    def _opened(self) -> _Opened:
        if self._open is None:
            raise closed(self.name)
        return self._open

    def _copy_in(
        self, target: View, source: HostView, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        if source.staging is not None:
            _wait_landed(waits)
            np.copyto(source.staging, source.array)
        job = Job(Event(on_done), waits, held=(target, source))
        address = target.array.data.ptr, source.address
        return self._memcpy(UPLOAD, job, *address, source.spec.nbytes, HOST_TO_DEVICE)

    def _copy_out(
        self, target: HostView, source: View, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        job = Job(Event(on_done), waits, held=(target, source))
        if target.staging is not None:
            job.event = StagedDownload(on_done)
            job.land = partial(np.copyto, target.array, target.staging)
        address = target.address, source.array.data.ptr
        return self._memcpy(DOWNLOAD, job, *address, source.spec.nbytes, DEVICE_TO_HOST)

    def _memcpy(
        self, lane: str, job: Job, target: int, source: int, nbytes: int, kind: int
    ) -> Event:
        cupy, queues, *_ = self._opened()
        stream = queues.stream(lane).ptr
        copy = partial(cupy.cuda.runtime.memcpyAsync, target, source, nbytes, kind, stream)
        return queues.put(lane, job, copy, timed=self._times_copies)

    def _upload(self, view: View, array: Array) -> None:
        """Copy a constant to the GPU and wait for it: nothing need keep the source then."""
        cupy, queues, *_ = self._opened()
        source, stream = np.ascontiguousarray(array), queues.stream(COMPUTE)
        address = view.array.data.ptr, source.ctypes.data
        cupy.cuda.runtime.memcpyAsync(*address, source.nbytes, HOST_TO_DEVICE, stream.ptr)
        stream.synchronize()


def _wait_landed(waits: Sequence[Event]) -> None:
    """Block until downloads have left their staging: what comes next reads the host's memory."""
    for wait in waits:
        if isinstance(wait, StagedDownload) and not wait.done:
            with suppress(DeviceError):  # the upload fails with it, too
                wait.wait()
