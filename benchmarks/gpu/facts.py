"""Is CuPy what plait takes it for? Launches, hidden allocations, threads, other libraries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from gpu.in_torch import torch_for
from gpu.question import Row, answer, fact
from gpu.target import Target

CALLS = 300
SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'


def launches(target: Target) -> Iterator[Row]:
    """The host's time for one launch, by what launches."""
    cupy = target.cupy()
    x = cupy.ones(256, cupy.float32)
    raw = cupy.RawKernel(SOURCE, "twice")
    elementwise = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * 2", "twice_each")
    expected_us = {"RawKernel": 10.0, "ElementwiseKernel": 15.0, "ufunc": 25.0}
    with cupy.cuda.Stream(non_blocking=True) as stream:
        calls: dict[str, Callable[[], object]] = {
            "RawKernel": partial(raw, (1,), (256,), (x,)),
            "ElementwiseKernel": partial(elementwise, x, x),
            "ufunc": partial(cupy.multiply, x, 2, out=x),
        }
        for name, call in calls.items():
            spent = _host_us(call, stream)
            yield Row(f"{name}: a launch", spent, "µs", at_most=expected_us[name])
        stream.begin_capture()
        for _ in range(10):
            raw((1,), (256,), (x,))
        graph = stream.end_capture()
        spent = _host_us(partial(graph.launch, stream), stream)
        yield Row("a CUDA graph of 10 kernels: a launch", spent, "µs", at_most=15)


def hidden_allocations(target: Target) -> Iterator[Row]:
    """What allocates though it is given where to write."""
    cupy = target.cupy()
    n = 256
    a, b, c = (cupy.ones((n, n), cupy.float32) for _ in range(3))
    stack = cupy.ones((2, n, n), cupy.float32)
    halves = cupy.ones((2, n, n), cupy.float16)
    view = cupy.ndarray((n, n), cupy.float32, memptr=a.data)  # the same bytes, another object
    rows, column = cupy.arange(n), cupy.empty(n, cupy.float32)
    stacked, halved, joined = (
        cupy.empty_like(stack),
        cupy.empty_like(halves),
        cupy.empty((2 * n, n), a.dtype),
    )
    calls: dict[str, tuple[bool, Callable[[], object]]] = {
        "add": (False, partial(cupy.add, a, b, out=c)),
        "add, in place": (False, partial(cupy.add, a, b, out=a)),
        "add, onto another view of its input": (True, partial(cupy.add, a, b, out=view)),
        "matmul": (False, partial(cupy.matmul, a, b, out=c)),
        "matmul of a stack": (False, partial(cupy.matmul, stack, stack, out=stacked)),
        "matmul of a stack of float16": (True, partial(cupy.matmul, halves, halves, out=halved)),
        "sum over rows": (True, partial(cupy.sum, a, axis=1, out=column)),
        "take": (False, partial(cupy.take, a, rows, axis=0, out=c)),
        "concatenate": (False, partial(cupy.concatenate, (a, b), out=joined)),
        "copyto": (False, partial(cupy.copyto, c, a)),
    }
    pool, asked = cupy.cuda.MemoryPool(), list[int]()

    def counted(nbytes: int) -> Any:
        asked.append(nbytes)
        return pool.malloc(nbytes)

    for name, (expected, call) in calls.items():
        call()
        asked.clear()
        with cupy.cuda.using_allocator(counted):
            call()
        yield fact(f"{name} allocates", bool(asked), expected)


def threads(target: Target) -> Iterator[Row]:
    """What belongs to a thread: the current stream, and the handle of cuBLAS."""
    cupy = target.cupy()
    device = cupy.cuda.Device()
    seen: list[tuple[int, int]] = []

    def look() -> None:
        with device:
            seen.append((cupy.cuda.get_current_stream().ptr, cupy.cuda.get_cublas_handle()))

    with cupy.cuda.Stream(non_blocking=True):
        look()
        other = threading.Thread(target=look)
        other.start()
        other.join()
    (stream, handle), (other_stream, other_handle) = seen
    yield fact("another thread has the same current stream", stream == other_stream, False)
    yield fact("another thread has the same handle of cuBLAS", handle == other_handle, False)


def other_libraries(target: Target) -> Iterator[Row]:
    """Arrays and streams to and from PyTorch."""
    cupy = target.cupy()
    torch, _ = torch_for(target)
    arena = cupy.cuda.Memory(1 << 20)
    ours = cupy.ndarray((100,), cupy.float32, memptr=cupy.cuda.MemoryPointer(arena, 512))
    ours.fill(3)
    cupy.cuda.runtime.deviceSynchronize()
    theirs = torch.from_dlpack(ours)
    yield fact(
        "torch takes a view of an arena without copying", theirs.data_ptr() == ours.data.ptr, True
    )
    back = cupy.from_dlpack(torch.ones(8, device=theirs.device))
    yield fact("CuPy takes a tensor of torch", float(back.sum()) == 8.0, True)
    stream = torch.cuda.Stream()
    taken = cupy.cuda.Stream.from_external(stream)
    yield fact("CuPy takes a stream of torch", taken.ptr == stream.cuda_stream, True)


def marks(target: Target) -> Iterator[Row]:
    """Ranges for NVIDIA's profilers, without one."""
    nvtx = target.cupy().cuda.nvtx
    ranges = 10_000
    start = time.perf_counter()
    for _ in range(ranges):
        nvtx.RangePush("a node")
        nvtx.RangePop()
    yield Row("an NVTX range", (time.perf_counter() - start) / ranges * 1e6, "µs", at_most=1)


def _host_us(call: Callable[[], object], stream: Any) -> float:
    """Return the median of what a call takes while the queue is short."""
    spent = []
    for index in range(CALLS + 10):
        start = time.perf_counter()
        call()
        if index >= 10:
            spent.append((time.perf_counter() - start) * 1e6)
        if index % 20 == 0:
            stream.synchronize()
    stream.synchronize()
    return float(np.median(spent))


if __name__ == "__main__":
    answer(launches, hidden_allocations, threads, other_libraries, marks)
