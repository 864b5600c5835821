"""What is saved when arrays are on the GPU already, CuPy's or PyTorch's, and results stay there?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import trio
from gpu.in_torch import torch_for
from gpu.loaded import floats
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.graph.core.ir import Graph

CELLS = 1 << 24
WARM = 3


class Library(NamedTuple):
    """What makes an array on the GPU, and reads a result of plait's."""

    name: str
    made: Callable[[Any], Any]
    read: Callable[[Any], Any]


def negated(cells: int) -> Graph:
    b = pl.GraphBuilder("negated")
    b.output("y", b.op("Neg", b.input("x", "float32", (cells,))))
    return b.build()


def cupys(target: Target) -> Iterator[Row]:
    """Arrays of CuPy."""
    cupy = target.cupy()
    yield from _compared(target, Library("CuPy", cupy.asarray, cupy.asnumpy))


def torchs(target: Target) -> Iterator[Row]:
    """Tensors of PyTorch."""
    target.cupy()  # on other devices no arrays are handed over
    torch, device = torch_for(target)

    def made(values: Any) -> Any:
        return torch.from_numpy(values).to(device)

    def read(result: Any) -> Any:
        return torch.from_dlpack(result).cpu().numpy()

    yield from _compared(target, Library("torch", made, read))


def _compared(target: Target, library: Library) -> Iterator[Row]:
    x = floats(target.size(CELLS, 64))
    device, rounds = target.make(), target.size(20, 2)
    around = pl.plan(negated(x.size), [device])
    there = pl.plan(negated(x.size), [device], inputs_on=device.name, outputs_on=device.name)
    by_host = trio.run(_run, around, x, np.asarray, rounds)
    on_gpu = trio.run(_run, there, library.made(x), library.read, rounds)
    by_library = f"{library.name}: {x.nbytes / 2**20:.0f} MiB"
    yield Row(f"{by_library} from and to the host", by_host.seconds * 1e3, "ms")
    yield Row(f"{by_library} from and to the GPU", on_gpu.seconds * 1e3, "ms")
    yield Row(f"{by_library}, times as fast", by_host.seconds / on_gpu.seconds, "x", at_least=1)
    same = np.array_equal(on_gpu.values, -x) and np.array_equal(by_host.values, -x)
    yield fact(f"{by_library}: the results are right", same, True)


class _Ran(NamedTuple):
    seconds: float
    values: np.ndarray[Any, Any]


async def _run(plan: pl.Plan, x: Any, read: Callable[[Any], Any], rounds: int) -> _Ran:
    """Return the median seconds of an item, and what the last result holds."""
    spent = []
    async with pl.Session(plan) as session:
        for _ in range(WARM + rounds):
            start = time.perf_counter()
            result = (await session.run({"x": x}))["y"]
            spent.append(time.perf_counter() - start)
        values = read(result)
    return _Ran(statistics.median(spent[WARM:]), values)


if __name__ == "__main__":
    answer(cupys, torchs)
