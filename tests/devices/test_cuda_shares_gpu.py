"""Tests that need a GPU: shares have multiprocessors of their own, and one memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import plait as pl
import pytest
from plait.devices.cuda.binding import Recorder
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.modules import Arguments
from plait.devices.cuda.nvrtc import compile_cubin
from plait.devices.cuda.shares import get_stream_maker
from plait.devices.errors import DeviceUnavailableError
from to_and_fro import check_stream, plan_to_and_fro

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

NAMES = "cuda:0/0-25", "cuda:0/25-50", "cuda:0/50-100"
MARK = """
extern "C" __global__ void mark(int* seen) {
    unsigned number;
    asm("mov.u32 %0, %%smid;" : "=r"(number));
    seen[number] = 1;
    for (long long until = clock64() + 100000; clock64() < until;) {}
}
"""
BLOCKS, MOST = 4096, 1024
SLACK_NS = 100_000
"""How far the host's clock may be off that events are mapped onto."""


@pytest.fixture
def shares() -> Iterator[list[CudaDevice]]:
    with ExitStack() as stack:
        devices = [stack.enter_context(closing(CudaDevice(name))) for name in NAMES]
        try:
            for device in devices:
                device.open()
        except DeviceUnavailableError as error:
            pytest.skip(f"no shares: {error.what}")
        yield devices


@pytest.mark.parametrize("recorded", [False, True])
def test_kernels_of_shares_run_on_multiprocessors_of_their_own(
    shares: list[CudaDevice], recorded: bool
) -> None:
    """Ask the multiprocessors for their numbers, from a kernel of many more blocks than fit."""
    found = [_multiprocessors(device, recorded) for device in shares]
    for device, numbers in zip(shares, found, strict=True):
        assert device._share is not None
        assert len(numbers) == device._share.multiprocessors
    assert sum(map(len, found)) == len(set[int]().union(*found)) == shares[0]._share.total  # type: ignore[union-attr]


def _multiprocessors(device: CudaDevice, recorded: bool) -> set[int]:
    assert device._open is not None
    assert device._share is not None
    cupy, core = device._open.cupy, device._core
    with device._open.queues.current():
        module = cupy.cuda.function.Module()
        arch = f"sm_{cupy.cuda.Device(0).compute_capability}"
        module.load(compile_cubin(MARK, arch))
        seen = cupy.zeros(MOST, cupy.int32)
        cupy.cuda.runtime.deviceSynchronize()
        arguments = Arguments([seen.data.ptr])
        mark, make_stream = (
            module.get_function("mark"),
            get_stream_maker(cupy, core, 0, device._share),
        )
        shape = BLOCKS, 1, 1, 64, 1, 1, 0

        def launch(stream: int) -> None:
            cupy.cuda.driver.launchKernel(mark.ptr, *shape, stream, arguments.address, 0)

        stream = make_stream()
        if recorded:
            # Launched on a stream of the whole GPU: what counts is where it was recorded.
            graph = Recorder(make_stream).record(lambda at: [partial(launch, at)])
            stream = cupy.cuda.Stream(non_blocking=True)
            graph.launch(stream)
        else:
            launch(stream.ptr)
        stream.synchronize()
        return set(np.flatnonzero(cupy.asnumpy(seen)).tolist())


def test_a_stream_over_shares_is_that_of_the_cpu() -> None:
    """To and fro several times, without a copy in between."""
    try:
        plan = plan_to_and_fro(NAMES)
    except DeviceUnavailableError as error:
        pytest.skip(f"no shares: {error.what}")
    assert len([step for step in plan.steps if ": " in step.name]) == 2
    check_stream(plan)


@pytest.mark.usefixtures("shares")
def test_products_and_cupys_kernels_run_on_shares() -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (64, 64))
    product = b.op("MatMul", x, np.eye(64, dtype=np.float32))
    b.output("y", b.op("Einsum", b.op("Relu", product), equation="ij->i"))
    graph = b.build()
    fed = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for name in NAMES:
        found = pl.run(graph, {"x": fed}, [name])["y"]
        np.testing.assert_allclose(found, fed.sum(1))


@pytest.mark.usefixtures("shares")
def test_times_of_kernels_on_shares_lie_within_their_items() -> None:
    """Events of a share's streams, and those that its clock is set by, have one timeline."""
    b = pl.GraphBuilder()
    h = b.input("x", "float32", (1 << 20,))
    for number in range(4):
        h = b.op("Exp", b.op("Neg", h, name=f"neg{number}"), name=f"exp{number}")
    b.output("y", h)
    pins = {f"*{number}": NAMES[number % 2] for number in range(4)}
    plan = pl.plan(b.build(), NAMES, pin=pins)
    with pl.BlockingSession(plan, measure=True) as session:
        for _ in range(4):
            session.run({"x": np.zeros(1 << 20, np.float32)})
        for record in session.profile().records:
            spans = sorted(record.spans(), key=lambda span: span.started_ns)
            assert len(spans) == len(plan.steps)
            assert all(span.started_ns < span.ended_ns for span in spans)
            # A chain, on which no step begins before the one that it waits for has ended.
            ends = [span.ended_ns for span in spans]
            assert all(
                later.started_ns > end - SLACK_NS
                for end, later in zip(ends, spans[1:], strict=False)
            )


@pytest.mark.usefixtures("shares")
def test_shares_that_were_closed_leave_nothing_behind() -> None:
    import cupy

    def free_after_a_life() -> int:
        with closing(CudaDevice(NAMES[0])) as device:
            device.open()
        del device
        gc.collect()
        return int(cupy.cuda.runtime.memGetInfo()[0])

    before = [free_after_a_life() for _ in range(3)][-1]
    after = [free_after_a_life() for _ in range(20)][-1]
    assert after >= before - (1 << 20)
