"""What becomes of a GPU on which a kernel wrote where it must not, or whose process is killed?

CUDA keeps such an error until the process ends: a device must say so, and must not wait for ever.
So each experiment has a process of its own, and another one must find the GPU as it was.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio
from gpu.loaded import WAIT_S, floats, loaded
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.devices import Restartable
from plait.devices.errors import DeviceLostError

NOT_READY = 600
ITEMS, BREAKS_AT = 60, 20
SIDE = 1024
WILD = 'extern "C" __global__ void wild(float* p) { p[threadIdx.x] = 1.0f; }'


def illegal_writes(target: Target) -> Iterator[Row]:
    """A write to an address that is none, and all that comes after it."""
    cupy = target.cupy()
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (1000,))))
    device = target.make()
    assert isinstance(device, Restartable)
    device.open()
    try:
        with loaded(device, b.build()) as run:
            run.submit().wait(WAIT_S)
            yield from _by_cupy(cupy)
            start = time.perf_counter()
            try:
                run.submit().wait(WAIT_S)
                lost = False
            except DeviceLostError:
                lost = True
            yield Row("until plait says that the device is lost", time.perf_counter() - start, "s")
            yield fact("plait says that the device is lost", lost, True)
            yield fact("and keeps saying so", device.failure is not None, True)
    finally:
        device.close()
    yield fact("the broken device closes", True, True)


def sessions_without_another_device(target: Target) -> Iterator[Row]:
    """A write to an address that is none, amid a stream that has this device alone."""
    cupy = target.cupy()
    errors, _ = _streamed([target.make()], lambda: _write_wildly(cupy))
    lost = [isinstance(error, DeviceLostError) for error in errors[BREAKS_AT:]]
    yield Row("alone: items that end", len(errors), at_least=ITEMS)
    yield fact("alone: items before it end well", not any(errors[: BREAKS_AT // 2]), True)
    yield fact("alone: items after it fail with DeviceLostError", all(lost), True)
    yield from _afterwards(target)


def sessions_beside_the_cpu(target: Target) -> Iterator[Row]:
    """The same amid a stream that can go on without the device."""
    cupy = target.cupy()
    errors, results = _streamed([target.make(), "cpu"], lambda: _write_wildly(cupy))
    yield Row("beside the cpu: items that fail", sum(map(bool, errors)), at_most=0)
    yield Row("beside the cpu: largest difference", _worst(results), at_most=1e-3)
    yield from _afterwards(target)


def killed_processes(target: Target) -> Iterator[Row]:
    """A process killed in the middle of its kernels, while a session here goes on."""
    target.cupy()
    command = [sys.executable, "-c", f"from gpu import broken; broken.work({target.name!r})"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it is at work
        errors, results = _streamed([target.make()], other.kill)
    yield fact("the other process was killed at work", other.returncode < 0, True)
    yield Row("meanwhile: items that fail", sum(map(bool, errors)), at_most=0)
    yield Row("meanwhile: largest difference", _worst(results), at_most=1e-3)
    yield from _afterwards(target)


def work(name: str) -> None:
    """Be a process that has kernels on a device all the time."""
    graph = _products(20)
    with Target.named(name).opened() as device, loaded(device, graph) as run:
        run.run({"x": floats(SIDE, SIDE)})
        print("at work", flush=True)
        while True:
            for _ in range(50):
                last = run.submit()
            last.wait(WAIT_S)


def use(name: str) -> None:
    """Be a process that finds a device fit for use, or fails."""
    target = Target.named(name)
    errors, results = _streamed([target.make()], lambda: None)
    assert not any(errors)
    assert _worst(results) <= 1e-3


def _afterwards(target: Target) -> Iterator[Row]:
    command = [sys.executable, "-c", f"from gpu import broken; broken.use({target.name!r})"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=False)
    yield fact(
        "a new process opens a session, and its results are right", not done.returncode, True
    )


def _products(count: int) -> pl.Graph:
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (SIDE, SIDE))
    weights = b.constant(np.eye(SIDE, dtype=np.float32) * np.float32(0.5))
    for _ in range(count):
        last = b.op("MatMul", last, weights)
    b.output("y", last)
    return b.build()


def _streamed(
    devices: list[Any], disturb: Callable[[], object]
) -> tuple[list[BaseException | None], list[Any]]:
    """Return errors and results of a stream amid which something happens."""
    plan = pl.plan(_products(4), devices, strategy="preference", max_in_flight=4)
    feeds, errors, results = floats(SIDE, SIDE), list[BaseException | None](), list[Any]()

    def frames() -> Iterator[dict[str, Any]]:
        for number in range(ITEMS):
            if number == BREAKS_AT:
                disturb()
            yield {"x": feeds + np.float32(number)}

    async def run() -> None:
        async with pl.Session(plan) as session, session.stream(frames()) as stream:
            async for item in stream:
                errors.append(item.error)
                results.append(None if item.error else (item.index, item["y"] * 16 - feeds))

    trio.run(run)
    return errors, results


def _worst(results: list[Any]) -> float:
    """Return the largest difference of results, which are the items' numbers."""
    return max(float(np.abs(found - number).max()) for number, found in filter(None, results))


def _write_wildly(cupy: Any) -> Any:
    """Launch a kernel that writes to an address that is none; return an event behind it."""
    kernel = cupy.RawKernel(WILD, "wild")
    stream = cupy.cuda.Stream(non_blocking=True)
    event = cupy.cuda.Event(disable_timing=True)
    with stream:
        kernel((1,), (32,), (cupy.uint64(16),))
        event.record(stream)
    return event


def _by_cupy(cupy: Any) -> Iterator[Row]:
    event = _write_wildly(cupy)
    try:
        event.synchronize()
        raised = False
    except cupy.cuda.runtime.CUDARuntimeError:
        raised = True
    yield fact("event.synchronize raises", raised, True)
    yield fact("event.done becomes true", _is_done(event), False, "so it must not be polled")
    try:
        code = cupy.cuda.runtime.eventQuery(event.ptr)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        code = error.status
    yield fact("eventQuery tells an error from work under way", code not in (0, NOT_READY), True)


def _is_done(event: Any) -> bool:
    for _ in range(100):
        if event.done:
            return True
        time.sleep(0.001)
    return False


if __name__ == "__main__":
    answer(
        illegal_writes,
        sessions_without_another_device,
        sessions_beside_the_cpu,
        killed_processes,
        apart=True,
    )
