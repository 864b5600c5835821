"""What does it cost to launch kernels, as a CUDA graph and one by one? Is nothing allocated?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
from gpu.loaded import WAIT_S, loaded
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.graph.core.ir import Graph

KERNELS = 10
ALONE = 200


def softmaxes(rows: int, columns: int) -> Graph:
    """Return nodes in a row of which each is a kernel: they cannot be fused."""
    b = pl.GraphBuilder("softmaxes")
    last = b.input("x", "float32", (rows, columns))
    for _ in range(KERNELS):
        last = b.op("Softmax", last)
    b.output("y", last)
    return b.build()


def submissions(target: Target) -> Iterator[Row]:
    """Submissions of ten small kernels."""
    graph = softmaxes(*target.size((64, 256), (2, 8)))
    found = {}
    for way, options in target.ways.items():
        with target.opened(**options) as device, loaded(device, graph) as run:
            found[way] = times = run.times(at_least_s=target.size(0.5, 0.01))
            alone = []
            for _ in range(target.size(ALONE, 3)):
                start = time.perf_counter()
                run.submit().wait(WAIT_S)
                alone.append(time.perf_counter() - start)
        yield Row(f"{way}: the host's time for {KERNELS} kernels", times.host_s * 1e6, "µs")
        yield Row(f"{way}: {KERNELS} kernels, again and again", times.total_s * 1e6, "µs")
        yield Row(f"{way}: {KERNELS} kernels and waiting", float(np.median(alone)) * 1e6, "µs")
    if "CUDA graphs" in found:
        ratio = found["CUDA graphs"].host_s / found["one by one"].host_s
        yield Row("the host's time with graphs, of that without", ratio, "x", at_most=1)


def allocations(target: Target) -> Iterator[Row]:
    """Allocations in the steady state."""
    cupy = target.cupy()
    b = pl.GraphBuilder("dense")
    product = b.op("MatMul", b.input("x", "float32", (512, 512)), np.eye(512, dtype=np.float32))
    b.output("y", b.op("Softmax", b.op("Gelu", product)))
    asked, pool = [], cupy.cuda.MemoryPool()

    def counted(nbytes: int) -> Any:
        asked.append(nbytes)
        return pool.malloc(nbytes)

    with target.opened() as device, loaded(device, b.build()) as run:
        run.submit().wait(WAIT_S)
        free, _ = cupy.cuda.runtime.memGetInfo()
        with cupy.cuda.using_allocator(counted):
            for _ in range(1000):
                run.submit()
            run.submit().wait(WAIT_S)
        drift = free - cupy.cuda.runtime.memGetInfo()[0]
    yield Row("calls of CuPy's allocator in 1,000 runs", len(asked), at_most=0)
    yield fact("the GPU's free memory shrinks meanwhile", drift > 0, False)


if __name__ == "__main__":
    answer(submissions, allocations)
