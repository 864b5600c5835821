"""Does anything work at all? Each step has a process of its own: a GPU that broke stays broken."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio
from gpu.in_torch import torch_for
from gpu.loaded import WAIT_S, Loaded, floats, loaded, place
from gpu.question import Row, answer, fact
from gpu.target import Target, Unsuitable
from plait.devices.cuda.libraries import load_library
from plait.devices.cuda.nvrtc import compile_cubin
from plait.devices.memory import Arena, SharedArena, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import Array, TensorSpec

SOURCE = 'extern "C" __global__ void one(float* x) { x[0] = 1.0f; }'
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8")
MIB = 1 << 20


def cupy_alone(target: Target) -> Iterator[Row]:
    """CuPy without plait: a kernel and a product."""
    cupy = target.cupy()
    x = cupy.zeros(1, cupy.float32)
    cupy.RawKernel(SOURCE, "one")((1,), (1,), (x,))
    yield fact("CuPy: a kernel computes", float(x[0]) == 1.0, True)
    ones = cupy.ones((64, 64), cupy.float32)
    yield fact("CuPy: a product is right", float((ones @ ones)[0, 0]) == 64.0, True)


def libraries(target: Target) -> Iterator[Row]:
    """The libraries of CUDA that are loaded."""
    if not target.has_cupy:
        raise Unsuitable("asked of CUDA devices")
    for name in ("nvrtc", "cublas", "cublasLt", "cudnn"):
        library = load_library(name)
        yield Row(name, "none" if library is None else Path(library._name).name)


def cold_threads(target: Target) -> Iterator[Row]:
    """Calls of the driver on threads that have done nothing with CUDA."""
    cupy = target.cupy()
    x, stream = cupy.zeros(1, cupy.float32), cupy.cuda.Stream(non_blocking=True)
    function = cupy.RawModule(code=SOURCE).get_function("one").kernel.ptr
    cell = ctypes.c_uint64(x.data.ptr)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(cell))

    def launch(prepare: Callable[[Any], object]) -> str:
        with cupy.cuda.Device(0) as device, stream:
            prepare(device)
            arguments = ctypes.addressof(pointers)
            cupy.cuda.driver.launchKernel(
                function, *(1,) * 6, 0, stream.ptr, arguments, 0
            )  # fmt: skip
        return "works"

    told = "201 is taken for granted, and why devices are made current"
    yield Row("a launch where the device was entered", _on_a_thread(launch, id), note=told)
    used = _on_a_thread(launch, lambda device: device.use())
    yield Row("a launch where the device is in use", used, expected="works")
    stream.synchronize()


def one_kernel(target: Target) -> Iterator[Row]:
    """A generated kernel by itself."""
    graph = _unary("Relu", (1000,))
    x = floats(1000)
    with target.opened() as device, loaded(device, graph) as run:
        yield fact("a kernel computes", np.array_equal(run.run({"x": x})["y"], x.clip(0)), True)


def kernels_in_a_row(target: Target) -> Iterator[Row]:
    """Ten kernels, each way to launch them."""
    b = pl.GraphBuilder("row")
    last, x = b.input("x", "float32", (64, 256)), floats(64, 256)
    for _ in range(10):
        last = b.op("Softmax", last)
    b.output("y", last)
    graph = b.build()
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])["y"]
    for name, options in target.ways.items():
        with target.opened(**options) as device, loaded(device, graph) as run:
            found = run.run({"x": x})["y"]
            yield Row(f"{name}: difference", _difference(found, wanted), at_most=1e-5)


def products(target: Target) -> Iterator[Row]:
    """Products in each dtype: of whole numbers, so that all of them are exact."""
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        op = "MatMulInteger" if dtype == "int8" else "MatMul"
        for title, stack in (("matrices", ()), ("stacks", (4,))):
            shapes = (*stack, 64, 128), (*stack, 128, 32)
            a, c = (rng.integers(-2, 3, shape).astype(dtype_of(dtype)) for shape in shapes)
            b = pl.GraphBuilder("product")
            b.output("y", b.op(op, b.input("a", dtype, a.shape), b.input("c", dtype, c.shape)))
            with target.opened() as device, loaded(device, b.build()) as run:
                found = run.run({"a": a, "c": c})["y"]
            exact = (a.astype(np.float64) @ c.astype(np.float64)).astype(found.dtype)
            yield fact(f"{dtype}: {title} are right", np.array_equal(found, exact), True)


def other_threads(target: Target) -> Iterator[Row]:
    """Programs submitted, and dropped, by threads that have done nothing with the device."""
    unraisable = list[str]()
    sys.unraisablehook = lambda given: unraisable.append(str(given.exc_value))
    with target.opened() as device:
        with loaded(device, _unary("Relu", (1000,))) as run:
            held = [run]
            del run  # the list alone keeps the program
            told = _on_a_thread(_submitted, held)
            yield Row("a program is submitted by another thread", told, expected="works")
            yield Row("and dropped by another one", _on_a_thread(_dropped, held), expected="works")
        device.arena(device.capabilities.memory, 1).close()  # the device lives on
    yield Row("errors where programs are dropped", len(unraisable), at_most=0)


def page_locking(target: Target) -> Iterator[Row]:
    """Host memory that is page-locked, and how fast it is copied."""
    makes: tuple[tuple[str, Callable[[int], Arena], int], ...] = (
        ("host memory", host_arena, target.size(256 * MIB, 4096)),
        ("a page of it", host_arena, 4096),
        ("shared memory", SharedArena, target.size(64 * MIB, 4096)),
    )
    with target.opened() as device:
        for title, make, nbytes in makes:
            arenas = [make(nbytes)]
            spec = TensorSpec("uint8", (nbytes,))
            start = time.perf_counter()
            here = device.view(arenas[0], 0, spec)
            locked_ms = (time.perf_counter() - start) * 1e3
            there = place(device, {"x": spec}, arenas)["x"]
            device.copy(there, here).wait(WAIT_S)
            start = time.perf_counter()
            device.copy(there, here).wait(WAIT_S)
            rate = nbytes / (time.perf_counter() - start) / 1e9
            staged = getattr(here, "staging", None) is not None
            yield fact(f"{title}: copied by way of staging", staged, False)
            yield Row(f"{title}: viewed for the first time", locked_ms, "ms")
            yield Row(f"{title}: uploaded", rate, "GB/s")
            for arena in arenas:
                arena.close()


def sessions(target: Target) -> Iterator[Row]:
    """A session that streams 200 items, four in flight."""
    b = pl.GraphBuilder("session")
    weights = b.constant(np.eye(256, dtype=np.float32))
    b.output("y", b.op("Softmax", b.op("MatMul", b.input("x", "float32", (64, 256)), weights)))
    plan = pl.plan(b.build(), [target.make(), "cpu"], pin={"*": target.name}, max_in_flight=4)
    feeds = [floats(64, 256, seed=seed) for seed in range(target.size(200, 6))]
    wanted = [np.exp(x - x.max(1, keepdims=True)) for x in feeds]
    worst = 0.0

    async def stream() -> None:
        nonlocal worst
        async with pl.Session(plan) as session, session.stream({"x": x} for x in feeds) as results:
            async for item in results:
                exact = wanted[item.index] / wanted[item.index].sum(1, keepdims=True)
                worst = max(worst, _difference(item["y"], exact))

    start = time.perf_counter()
    trio.run(stream)
    yield Row("difference of all items", worst, at_most=1e-4)
    yield Row("all of them, and opening", time.perf_counter() - start, "s")


def arrays_on_the_gpu(target: Target) -> Iterator[Row]:
    """Arrays of CuPy and PyTorch: the first thing that the session's thread does is a launch."""
    cupy = target.cupy()
    found = _negated(target, cupy.arange(1000, dtype=cupy.float32))
    wanted = -np.arange(1000, dtype=np.float32)
    right = np.array_equal(cupy.asnumpy(cupy.from_dlpack(found)), wanted)
    yield fact("CuPy's arrays go in and out", right, True)
    torch, _ = torch_for(target)
    found = _negated(target, torch.arange(1000, dtype=torch.float32, device="cuda"))
    right = np.array_equal(torch.from_dlpack(found).cpu().numpy(), wanted)
    yield fact("PyTorch's tensors go in and out", right, True)


def opening(target: Target) -> Iterator[Row]:
    """What it takes to open a device and to close it."""
    spent = []
    for _ in range(target.size(5, 2)):
        start = time.perf_counter()
        with target.opened():
            opened = time.perf_counter()
        spent.append((opened - start, time.perf_counter() - opened))
    for title, (open_s, close_s) in (("first", spent[0]), ("last", spent[-1])):
        yield Row(f"opened, the {title} time", open_s * 1e3, "ms")
        yield Row(f"closed, the {title} time", close_s * 1e3, "ms")


def compiling(target: Target) -> Iterator[Row]:
    """What it takes to have kernels compiled, and to find them again."""
    if not target.has_cupy:
        raise Unsuitable("NVRTC compiles for CUDA")
    b = pl.GraphBuilder("kernels")
    for n in range(16):
        x = b.input(f"x{n}", "float32", (64 + n, 64 + n))
        b.output(f"y{n}", b.op("Softmax", b.op("MatMul", x, x)))
    graph = b.build()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PLAIT_KERNEL_CACHE"] = folder
        for title in ("by NVRTC", "from the folder"):
            compile_cubin.cache_clear()
            with target.opened(cublas=None) as device:
                start = time.perf_counter()
                with loaded(device, graph):
                    yield Row(f"32 kernels, {title}", time.perf_counter() - start, "s")


def _submitted(held: list[Loaded]) -> str:
    held[0].submit().wait(WAIT_S)
    return "works"


def _dropped(held: list[Loaded]) -> str:
    held.clear()
    gc.collect()
    return "works"


def _unary(op: str, shape: tuple[int, ...]) -> Graph:
    b = pl.GraphBuilder("unary")
    b.output("y", b.op(op, b.input("x", "float32", shape)))
    return b.build()


def _negated(target: Target, x: Any) -> Any:
    """Return -x, computed in a session of a new thread."""
    graph, on = _unary("Neg", (1000,)), target.name
    plan = pl.plan(graph, [target.make()], inputs_on=on, outputs_on=on)

    async def run() -> Any:
        async with pl.Session(plan) as session:
            return (await session.run({"x": x}))["y"]

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(trio.run(run)))
    thread.start()
    thread.join()
    return results[0]


def _on_a_thread(call: Callable[[Any], str], given: Any) -> str:
    """Return what a call returns on a new thread, or what it raises."""
    told = list[str]()

    def run() -> None:
        try:
            told.append(call(given))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return told[0]


def _difference(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


STEPS = (
    *(cupy_alone, libraries, cold_threads, one_kernel, kernels_in_a_row, products, other_threads),
    *(page_locking, sessions, arrays_on_the_gpu, opening, compiling),
)

if __name__ == "__main__":
    answer(*STEPS, apart=True)
