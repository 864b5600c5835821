"""A double of the part of CuPy that plait uses, on a GPU that does not exist.

Arrays live in the fake GPU's memory. Host code can look at their shapes and make views, but not at
what they hold. Kernels are the real ones, run when the fake GPU gets to them: those for any array
module by numpy, generated ones by PoCL.

Contexts are CUDA's: each thread has a device, number 0 at first, and a context only once it was
given one, by `Device.use` or by any call of the runtime. Entering a device that is the thread's
already does nothing (CuPy 14.2, `Device.__enter__`), so that a call of the driver, which looks for
the context, may find none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
from fake_arrays import LACKING, FakeArray, borrow
from fake_cublas import FakeCublas
from fake_cuda_errors import INVALID_HANDLE, PEER_ACCESS_ALREADY_ENABLED, CUDARuntimeError
from fake_driver import Current, FakeDriver, Module
from fake_gpu import FakeGpu, Recording
from plait.devices.cuda.device import CudaDevice


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):  # noqa: N818 - CuPy's name
    pass


class CupyDouble:
    """Stands in for the module `cupy`; the fake GPU is in `gpu`.

    Parameters
    ----------
    seed : int, default 0
        Chooses the order in which streams run.
    memory_bytes : int
    devices : int, default 1
        How many CUDA devices there are; `gpu` is all of them.
    direct : bool, default True
        Whether each of them can access the memory of the others.
    shares : bool, default False
        Whether other processes can open its memory: see `double_worker`.

    Attributes
    ----------
    accesses : list of (int, int)
        The devices that access was enabled for, and to whose memory.
    contexts : set of int
        The devices that were used, which takes memory on them and time.
    """

    def __init__(
        self,
        seed: int = 0,
        memory_bytes: int = 1 << 28,
        devices: int = 1,
        *,
        direct: bool = True,
        shares: bool = False,
    ) -> None:
        self.direct = direct
        self.accesses: list[tuple[int, int]] = []
        self.gpu = FakeGpu(seed, memory_bytes, shares=shares)
        self.null_stream: int | None = None
        self.events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
        self._pool: dict[int, list[Memory]] = {}
        self.devices = devices
        self.__version__ = "14.0.1"
        self.contexts: set[int] = set()
        self.current = Current(self.contexts)
        self.gpu.current_device = lambda: self.current.device
        self.ndarray = self._ndarray
        driver = FakeDriver(self.gpu, self.current)
        self.cuda = SimpleNamespace(
            Device=lambda index: Device(self, index),
            Stream=Streams(self),
            Event=lambda block=False, disable_timing=False: Event(self, not disable_timing),
            Memory=lambda nbytes: Memory(self, nbytes),
            UnownedMemory=lambda ptr, size, owner: UnownedMemory(self, ptr, size, owner),
            MemoryPointer=MemoryPointer,
            alloc_pinned_memory=self._alloc_pinned,
            get_elapsed_time=_elapsed_ms,
            get_current_stream=lambda device: SimpleNamespace(ptr=self._callers_stream()),
            runtime=self._runtime(),
            driver=driver,
            function=SimpleNamespace(Module=lambda: Module(driver)),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            compiler=SimpleNamespace(CompileException=CompileException),
        )

    def device(self, name: str = "cuda:0", **options: Any) -> CudaDevice:
        """Return a CUDA device on the fake GPU, with CuPy's kernels only unless told otherwise."""
        with_defaults = {"compiler": None, "launch": self.launch, **options}
        return CudaDevice(name, cupy=self, **with_defaults)

    def generating(self, name: str = "cuda:0", **options: Any) -> CudaDevice:
        """Return a CUDA device with generated kernels and cuBLAS, without cuDNN."""
        cublas = {"cublas": lambda: FakeCublas(self.gpu)}
        libraries = {"compiler": _uncompiled, "cudnn": None, **cublas}
        return self.device(name, **libraries | options)

    def launch(self, step: Callable[[], Any]) -> None:
        """Queue a bound kernel on the current stream."""
        self.gpu.launch(self._current_stream(), step)

    def __getattr__(self, name: str) -> Any:
        if name in LACKING or name.startswith("__"):
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        return borrow(self.gpu, np, name, self._settle)

    def _current_stream(self) -> int:
        assert self.current.streams, "queued on the null stream"
        return self.current.streams[-1]

    # Arrays of callers

    def from_dlpack(self, given: Any) -> FakeArray:
        """Return the array of a capsule, or an array of this GPU's, on the same memory."""
        if isinstance(given, FakeArray):
            return given
        assert self._current_stream()
        return self._array_at(given.array)

    def asarray(self, value: Any, *given: Any, **keywords: Any) -> Any:
        """Make an array, also from the description of another library."""
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            return borrow(self.gpu, np, "asarray", self._settle)(value, *given, **keywords)
        assert interface["stream"] is None, "CuPy would wait on the host"
        return self._array_at(value.array)

    def ascontiguousarray(self, array: Any) -> Any:
        if getattr(array, "data", None) is None or self.gpu.is_executing:
            return borrow(self.gpu, np, "ascontiguousarray", self._settle)(array)
        copy = self._ndarray(array.shape, array.dtype, MemoryPointer(Memory(self, array.nbytes), 0))
        # As CuPy's: the kernel knows addresses and keeps neither array alive.
        read = self._reader(array)
        address, nbytes = copy.data.ptr, copy.nbytes
        shape, dtype = array.shape, array.dtype
        self.launch(
            lambda: np.copyto(self.gpu.cells(address, nbytes).view(dtype).reshape(shape), read())
        )
        return copy

    def _reader(self, array: FakeArray) -> Callable[[], np.ndarray[Any, Any]]:
        """Return what reads an array by its address, with its strides, when it is called."""
        memory = array.data.mem
        base, nbytes = memory.ptr, memory.cells.nbytes
        offset = array._cells.ctypes.data - memory.cells.ctypes.data
        layout = {"shape": array.shape, "dtype": array.dtype, "strides": array._cells.strides}
        return lambda: np.ndarray(buffer=self.gpu.cells(base, nbytes), offset=offset, **layout)

    def empty(self, shape: Any, dtype: Any = float) -> FakeArray:
        """Return an array of the pool, which gives again what was freed, whoever still reads it."""
        nbytes = max(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize, 1)
        freed = self._pool.get(nbytes)
        memory = freed.pop() if freed else Memory(self, nbytes)
        array = self._ndarray(shape, dtype, MemoryPointer(memory, 0))
        weakref.finalize(array, self._free, memory).atexit = False
        return array

    def _free(self, memory: Memory) -> None:
        self._pool.setdefault(memory.size, []).append(memory)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=self._free_blocks)

    def _free_blocks(self, stream: Stream | None = None) -> None:
        """Free the pool's blocks; none were freed on a stream of plait's."""
        if stream is None:
            self._pool.clear()

    def _array_at(self, foreign: Any) -> FakeArray:
        return FakeArray(self.gpu, foreign.cells, self._settle, foreign)

    def _callers_stream(self) -> int:
        return (0, *self.current.streams)[-1]

    def _record(self, event: int, stream: int) -> None:
        if stream == 0:
            if self.null_stream is None:
                self.null_stream = self.gpu.new_stream(0)
            stream = self.null_stream
        if self.gpu.device_of(stream) != self.events[event].device:
            raise CUDARuntimeError(INVALID_HANDLE)
        self.gpu.record(stream, self.events[event].recording)

    def _attributes(self, ptr: int) -> SimpleNamespace:
        return SimpleNamespace(device=self.gpu.owner(ptr))

    def _settle(self) -> None:
        """Let the current stream finish before host code computes with what lies on the GPU."""
        if not self.gpu.is_executing:
            self.gpu.drain(self._current_stream())

    def _ndarray(self, shape: Any, dtype: Any, memptr: MemoryPointer) -> FakeArray:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert memptr.ptr % np.dtype(dtype).itemsize == 0, "misaligned"
        assert memptr.offset + nbytes <= memptr.mem.size, "over the end of the memory"
        cells = np.ndarray(shape, dtype, buffer=memptr.mem.cells, offset=memptr.offset)
        return FakeArray(self.gpu, cells, self._settle, memptr)

    def _alloc_pinned(self, nbytes: int) -> Any:
        raw = np.zeros(nbytes + 8192, np.uint8)  # pages of its own
        start = -raw.ctypes.data % 4096
        buffer = raw[start : start + nbytes]
        address = buffer.ctypes.data
        self.gpu.locked[address] = nbytes
        weakref.finalize(raw, self.gpu.unlock, address).atexit = False
        return buffer

    def _register(self, address: int, nbytes: int, flags: int) -> None:
        self.gpu.lock(address, nbytes)

    def _can_access(self, device: int, peer: int) -> int:
        return int(self.direct and device != peer)

    def _enable_access(self, peer: int) -> None:
        access = self.current.device, peer
        if access in self.accesses:
            raise CUDARuntimeError(PEER_ACCESS_ALREADY_ENABLED)
        self.accesses.append(access)

    def _runtime(self) -> SimpleNamespace:
        gpu, in_context = self.gpu, self.current.in_context
        return SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: self.devices,
            getDeviceProperties=lambda index: {
                "totalGlobalMem": gpu.memory_bytes,
                "name": b"fake GPU",
            },
            driverGetVersion=lambda: 13000,
            memGetInfo=in_context(gpu.memory_info),
            memcpyAsync=in_context(gpu.copy),
            memcpyPeerAsync=in_context(gpu.copy_peer),
            eventRecord=in_context(self._record),
            pointerGetAttributes=in_context(self._attributes),
            deviceCanAccessPeer=self._can_access,
            deviceEnablePeerAccess=in_context(self._enable_access),
            memsetAsync=in_context(gpu.memset),
            hostRegister=in_context(self._register),
            hostUnregister=in_context(gpu.unlock),
            deviceSynchronize=in_context(gpu.drain),
            ipcGetMemHandle=in_context(gpu.get_handle),
            ipcOpenMemHandle=lambda handle: gpu.open_handle(handle, self.current.touch()),
            ipcCloseMemHandle=in_context(gpu.close_handle),
        )


def _uncompiled(source: str, arch: str) -> bytes:
    assert arch == "sm_90"
    return source.encode()


class Device:
    compute_capability = "90"

    def __init__(self, double: CupyDouble, index: int) -> None:
        assert 0 <= index < double.devices
        self.id = index
        self._current = double.current
        self._before: list[int] = []

    def use(self) -> None:
        self._current.use(self.id)

    def __enter__(self) -> Device:
        self._before.append(self._current.device)
        if self.id != self._current.device:
            self.use()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._current.use(self._before.pop())


class Streams:
    """CuPy's class of streams."""

    def __init__(self, double: CupyDouble) -> None:
        self._double = double

    def __call__(self, non_blocking: bool = False) -> Stream:
        assert non_blocking, "a blocking stream waits for the null stream"
        device = self._double.current.touch()
        return Stream(self._double, device, self._double.gpu.new_stream(device))

    def from_external(self, stream: Any) -> Stream:
        version, ptr = stream.__cuda_stream__()
        assert version == 0
        return Stream(self._double, self._double.gpu.device_of(ptr), ptr)


class Stream:
    def __init__(self, double: CupyDouble, device: int, ptr: int) -> None:
        self._double = double
        self.device = device
        self.ptr = ptr

    def wait_event(self, event: Event) -> None:
        self._double.current.touch()
        self._double.gpu.wait(self.ptr, event.recording)

    def launch_host_func(self, callback: Callable[[Any], object], argument: Any) -> None:
        self._double.current.touch()
        self._double.gpu.call_on_host(self.ptr, partial(callback, argument))

    def synchronize(self) -> None:
        self._double.current.touch()
        self._double.gpu.drain(self.ptr)

    def begin_capture(self) -> None:
        self._double.current.touch()
        self._double.gpu.begin_capture(self.ptr)

    def end_capture(self) -> Graph:
        return Graph(self._double, self._double.gpu.end_capture(self.ptr))

    def __enter__(self) -> Stream:
        assert self.device == self._double.current.device
        self._double.current.streams.append(self.ptr)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._double.current.streams.pop()


class Graph:
    """What was captured, to be queued again and again; memory it uses must still be there."""

    def __init__(self, double: CupyDouble, operations: tuple[Callable[[], Any], ...]) -> None:
        self._gpu = double.gpu
        self._current = double.current
        self._operations = operations
        self._is_uploaded = False

    def upload(self, stream: Stream) -> None:
        self._is_uploaded = True

    def launch(self, stream: Stream) -> None:
        assert self._is_uploaded, "uploaded when the first item comes"
        self._current.touch()
        self._gpu.graphs_launched += 1
        for operation in self._operations:
            self._gpu.queue(stream.ptr, operation)


class Event:
    def __init__(self, double: CupyDouble, timing: bool) -> None:
        self._gpu = double.gpu
        self._current = double.current
        self.device = double.current.touch()
        self.recording = Recording(timing)
        self.ptr = id(self)
        double.events[self.ptr] = self

    def record(self, stream: Stream) -> None:
        if stream.device != self.device:
            raise CUDARuntimeError(INVALID_HANDLE)
        self._current.touch()
        self._gpu.record(stream.ptr, self.recording)

    @property
    def done(self) -> bool:
        return self._gpu.poll(self.recording)

    def synchronize(self) -> None:
        self._gpu.synchronize(self.recording)


def _elapsed_ms(earlier: Event, later: Event) -> float:
    """One microsecond for each operation that the fake GPU ran in between."""
    for event in (earlier, later):
        reached = event.recording.reached == event.recording.recorded > 0
        if not event.recording.timing or not reached:
            raise CUDARuntimeError(INVALID_HANDLE)
    assert earlier.recording.tick <= later.recording.tick, "the later one came first"
    return (later.recording.tick - earlier.recording.tick) / 1000


class Capsule:
    """What `__dlpack__` returns."""

    def __init__(self, array: Any) -> None:
        self.array = array


class Memory:
    def __init__(self, double: CupyDouble, nbytes: int) -> None:
        self.size = nbytes
        self.device = double.current.touch()
        self.ptr, self.cells = double.gpu.allocate(nbytes, self.device)
        weakref.finalize(self, double.gpu.free, self.ptr).atexit = False


class UnownedMemory:
    """Another process's memory, which its owner keeps open."""

    def __init__(self, double: CupyDouble, ptr: int, size: int, owner: object) -> None:
        self.size, self.ptr, self.owner = size, ptr, owner
        self.device = double.current.touch()
        self.cells = double.gpu.cells(ptr, size)


class MemoryPointer:
    def __init__(self, mem: Memory | UnownedMemory, offset: int) -> None:
        self.mem, self.offset = mem, offset
        self.ptr = mem.ptr + offset
