"""What becomes of a GPU on which a kernel wrote where it must not? Nothing else runs here after it.

CUDA keeps such an error until the process ends: a device must say so, and must not wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import plait as pl
from gpu.loaded import WAIT_S, loaded
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.devices import Restartable
from plait.devices.errors import DeviceLostError

NOT_READY = 600
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


def _by_cupy(cupy: Any) -> Iterator[Row]:
    kernel = cupy.RawKernel(WILD, "wild")
    stream = cupy.cuda.Stream(non_blocking=True)
    event = cupy.cuda.Event(disable_timing=True)
    with stream:
        kernel((1,), (32,), (cupy.uint64(16),))
        event.record(stream)
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
    answer(illegal_writes)
