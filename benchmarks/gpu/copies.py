"""How fast are copies between host and device, both ways at once too, and does a call block?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from gpu.loaded import WAIT_S, Times, place, repeated
from gpu.question import Row, answer
from gpu.target import Target
from plait.devices import Device
from plait.devices.event import Event
from plait.devices.memory import Arena
from plait.graph.values.tensor import TensorSpec

SIZES = {"4 KiB": 1 << 12, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
LARGE = 1 << 26
AT_ONCE = 8


def planned(target: Target) -> Iterator[Row]:
    """Copies as plans make them, from and to page-locked memory."""
    with target.opened() as device:
        for title, nbytes in SIZES.items():
            yield from _one_size(device, title, target.size(nbytes, 64), target.size(0.3, 0.001))


def _one_size(device: Device, title: str, nbytes: int, at_least_s: float) -> Iterator[Row]:
    arenas: list[Arena] = []
    specs = dict.fromkeys(("up", "down"), TensorSpec("uint8", (nbytes,)))
    there, here = place(device, specs, arenas), place(device, specs, arenas, on_host=True)

    def up() -> Event:
        return device.copy(there["up"], here["up"])

    def down() -> Event:
        return device.copy(here["down"], there["down"])

    times = {"to the device": repeated(up, at_least_s), "to the host": repeated(down, at_least_s)}
    for way, found in times.items():
        yield Row(f"{title} {way}", nbytes / found.total_s / 1e9, "GB/s")
        yield Row(f"{title} {way}: the call returns after", found.host_s * 1e6, "µs")
    start = time.perf_counter()
    for event in [copy() for _ in range(AT_ONCE) for copy in (up, down)]:
        event.wait(WAIT_S)
    both_s = (time.perf_counter() - start) / AT_ONCE
    yield Row(f"{title} both ways at once", 2 * nbytes / both_s / 1e9, "GB/s")
    yield Row(f"{title} both ways, times as fast", _sum_s(times) / both_s, "x")
    for arena in arenas:
        arena.close()


def _sum_s(times: dict[str, Times]) -> float:
    return sum(found.total_s for found in times.values())


def pageable(target: Target) -> Iterator[Row]:
    """Copies from memory that is not page-locked: what plans avoid."""
    cupy = target.cupy()
    source = np.ones(LARGE, np.uint8)
    there = cupy.cuda.Memory(LARGE)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spent = []
        for _ in range(5):
            start = time.perf_counter()
            cupy.cuda.runtime.memcpyAsync(there.ptr, source.ctypes.data, LARGE, 1, stream.ptr)
            returned = time.perf_counter()
            stream.synchronize()
            spent.append((returned - start, time.perf_counter() - start))
    call_s, total_s = np.median(spent, axis=0)
    yield Row("64 MiB to the device, pageable", LARGE / float(total_s) / 1e9, "GB/s")
    yield Row("64 MiB pageable: the call returns after", float(call_s) * 1e6, "µs")


if __name__ == "__main__":
    answer(planned, pageable)
