"""The CUDA driver's launches of generated kernels, which PoCL runs on the fake GPU's memory."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from fake_cuda_errors import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_FOUND,
    CUDADriverError,
)
from fake_gpu import FakeGpu

_addresses = itertools.count(0x1000, 16)
P = ParamSpec("P")
R = TypeVar("R")


class Current(threading.local):
    """What a thread works on.

    Parameters
    ----------
    contexts : set of int
        The devices that have a context, which takes memory on them and time; of all threads.

    Attributes
    ----------
    device : int
        The runtime's.
    context : int or None
        The device whose context calls of the driver find; None on a cold thread.
    streams : list of int
        The last one is CuPy's current stream.
    """

    def __init__(self, contexts: set[int]) -> None:
        self.contexts = contexts
        self.device = 0
        self.context: int | None = None
        self.streams: list[int] = []

    def use(self, device: int) -> None:
        """Do what cudaSetDevice does."""
        self.device = device
        self.touch()

    def touch(self) -> int:
        """Make the device's context current, as all calls of the runtime do; return the device."""
        self.context = self.device
        self.contexts.add(self.device)
        return self.device

    def in_context(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return a call of the runtime, which makes a context current."""

        @wraps(call)
        def touching(*given: P.args, **named: P.kwargs) -> R:
            self.touch()
            return call(*given, **named)

        return touching


class Module:
    """A program; what stands for its cubin is the source."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self._program: Any = None
        self.device = 0

    def load(self, cubin: bytes) -> None:
        self.device = self._driver.current.touch()  # as CuPy does, though it is the driver's
        weakref.finalize(self, self._driver.unload, self.device).atexit = False
        # Here, as below: processes of workers, of which few launch kernels, start in half the time.
        from generated_code import compiled
        from plait.devices.codegen.dialect import CUDA, OPENCL

        source = cubin.decode()
        assert source.startswith(CUDA)
        self._program = compiled(OPENCL + source.removeprefix(CUDA))

    def get_function(self, name: str) -> Function:
        import pyopencl as cl

        if name not in self._program.kernel_names.split(";"):
            raise CUDADriverError(NOT_FOUND)
        return self._driver.add(Function(self, cl.Kernel(self._program, name)))


class Function:
    """A kernel of a module that it keeps loaded."""

    def __init__(self, module: Module, kernel: Any) -> None:
        self.module = module
        self.kernel = kernel
        self.ptr = next(_addresses)


class FakeDriver:
    """Launches what modules hold.

    Attributes
    ----------
    launches : int
        How many kernels were launched, captured ones once.
    unloaded : list of (int, int or None)
        The devices of modules that were unloaded, and whose context was current then.
    """

    CUDADriverError = CUDADriverError

    def __init__(self, gpu: FakeGpu, current: Current) -> None:
        self.launches = 0
        self.unloaded: list[tuple[int, int | None]] = []
        self._gpu = gpu
        self.current = current
        self._functions: dict[int, Any] = {}

    def unload(self, device: int) -> None:
        self.unloaded.append((device, self.current.context))

    def add(self, function: Function) -> Function:
        self._functions[function.ptr] = function.kernel, function.module.device
        return function

    def launchKernel(  # noqa: N802 - CuPy's name
        self,
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> None:
        """Queue a kernel; its parameters are read now, the memory when it runs."""
        import pyopencl as cl
        from generated_code import context

        kernel, device = self._functions[function]
        if self.current.context is None:
            raise CUDADriverError(INVALID_CONTEXT)
        if not device == self.current.context == self._gpu.device_of(stream):
            raise CUDADriverError(INVALID_HANDLE)
        threads = kernel.get_work_group_info(
            cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, context().devices[0]
        )
        assert (block_x, block_y, block_z) == tuple(threads), "not what it was compiled for"
        if grid_x < 1 or (grid_y, grid_z) != (1, 1) or shared_bytes or extra:
            raise CUDADriverError(INVALID_VALUE)
        pointers = (ctypes.c_void_p * kernel.num_args).from_address(parameters)
        addresses = [ctypes.c_uint64.from_address(pointer or 0).value for pointer in pointers]
        self.launches += 1
        self._gpu.launch(stream, partial(self._run, kernel, grid_x, block_x, addresses))

    def _run(self, kernel: Any, groups: int, threads: int, addresses: list[int]) -> None:
        import pyopencl as cl
        from generated_code import context

        places = [self._gpu.memory(address) for address in addresses]
        memories = {id(cells): cells for cells, _ in places}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        buffers = {
            key: cl.Buffer(context(), flags, hostbuf=cells) for key, cells in memories.items()
        }
        for index, (cells, offset) in enumerate(places):
            kernel.set_arg(index, _region(buffers[id(cells)], offset, cells.nbytes))
        queue = cl.CommandQueue(context())
        cl.enqueue_nd_range_kernel(queue, kernel, (groups * threads,), (threads,))
        for key, cells in memories.items():
            mapped = cells.shape, cells.dtype
            cl.enqueue_map_buffer(queue, buffers[key], cl.map_flags.READ, 0, *mapped)
        queue.finish()


def _region(buffer: Any, offset: int, nbytes: int) -> Any:
    """Return what lies from an offset on; an empty tensor may lie at the end."""
    import pyopencl as cl
    from generated_code import context

    if offset == nbytes:
        return cl.Buffer(context(), cl.mem_flags.READ_WRITE, 1)
    return buffer.get_sub_region(offset, nbytes - offset)
