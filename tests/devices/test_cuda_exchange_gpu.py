"""Arrays that callers hand over and take on a real GPU: CuPy's, and PyTorch's where it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.cuda.device import CudaDevice
from plait.devices.errors import DeviceUnavailableError
from plait.scheduler.plans.plan import Plan

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

N = 1 << 22


@pytest.fixture
def plan() -> Iterator[Plan]:
    b = pl.GraphBuilder("double")
    x = b.input("x", "float32", (N,))
    b.output("y", b.op("Add", x, x))
    try:
        device = CudaDevice("cuda:0")
        yield pl.plan(b.build(), [device], inputs_on="cuda:0", outputs_on="cuda:0", max_in_flight=2)
    except DeviceUnavailableError as error:
        pytest.skip(f"no CUDA device: {error.what}")


def busy(cupy: Any) -> None:
    """Keep the current stream at work for a while, so that who does not wait is too early."""
    square = cupy.ones((4096, 4096), cupy.float32)
    for _ in range(20):
        square = square @ square * 1e-4


async def test_cupys_arrays_are_read_behind_its_stream_and_results_before_they_go(
    plan: Plan,
) -> None:
    cupy = pytest.importorskip("cupy")
    sums = []
    async with pl.Session(plan) as session:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for index in range(6):
                x = cupy.zeros(N, cupy.float32)
                busy(cupy)
                x += index
                y = (await session.run({"x": x}))["y"]
                assert isinstance(y, cupy.ndarray)
                busy(cupy)
                sums.append(y.sum())
                del x, y
            stream.synchronize()
    assert [float(one) for one in sums] == [2.0 * index * N for index in range(6)]


async def test_results_that_are_not_copied_may_be_read_until_they_are_released(plan: Plan) -> None:
    cupy = pytest.importorskip("cupy")
    feeds = [{"x": np.full(N, index, np.float32)} for index in range(6)]
    sums = []
    async with pl.Session(plan) as session:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            async with session.stream(feeds, copy=False) as results:
                async for item in results:
                    busy(cupy)
                    sums.append(item["y"].sum())
            stream.synchronize()
    assert [float(one) for one in sums] == [2.0 * index * N for index in range(6)]


async def test_an_array_that_only_describes_itself_is_read_behind_its_stream(plan: Plan) -> None:
    cupy = pytest.importorskip("cupy")

    class Described:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    async with pl.Session(plan) as session:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.zeros(N, cupy.float32)
            busy(cupy)
            x += 3
            described = Described(x)
            assert described.__cuda_array_interface__["stream"] == stream.ptr
            y = (await session.run({"x": described}))["y"]
    assert float(y.sum()) == 6.0 * N


async def test_pytorchs_tensors_go_in_and_out(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    async with pl.Session(plan) as session:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(N, device="cuda:0")
            square = torch.ones((4096, 4096), device="cuda:0")
            for _ in range(20):
                square = square @ square * 1e-4
            x += 4
            y = torch.from_dlpack((await session.run({"x": x}))["y"])
            strided = torch.ones((N, 2), device="cuda:0")[:, 0]
            z = torch.from_dlpack((await session.run({"x": strided}))["y"])
            assert (float(y.sum()), float(z.sum())) == (8.0 * N, 2.0 * N)
            with pytest.raises(pl.FeedError):
                await session.run({"x": x.requires_grad_()})
