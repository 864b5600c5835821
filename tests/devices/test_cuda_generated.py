"""Generated kernels and CUDA graphs on a fake GPU, whose launches PoCL computes."""

from __future__ import annotations

import gc
import threading
from contextlib import closing
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from bound import Bound
from cupy_double import CupyDouble, Stream
from fake_cuda_errors import CUDARuntimeError
from fake_cudnn import FakeCudnn
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.cuda.device import CudaDevice
from plait.devices.errors import DeviceError, DeviceUnavailableError, KernelError
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import Array
from pocl import pocl_device
from random_graphs import expected as wanted
from random_graphs import feeds, graphs

from .rig import Rig, chain, some_items


@pytest.fixture(autouse=True)
def _needs_pocl() -> None:
    pocl_device()


def mixed() -> Graph:
    """Return a graph of fused kernels, a product, a copy of bytes, and a kernel of CuPy's."""
    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", (4, 6))
    bias = b.constant(np.arange(6, dtype=np.float32), "bias")
    shifted = b.op("Relu", b.op("Add", x, bias), name="shifted")
    flat = b.op("Reshape", shifted, np.array([24]))
    b.output("flat", flat)
    product = b.op("MatMul", shifted, b.constant(np.eye(6, dtype=np.float32) * 2, "two"))
    b.output("signs", b.op("Sign", b.op("Sub", product, x), name="signs"))
    b.output("sums", b.op("Einsum", product, equation="ij->i", name="sums"))
    return b.build()


def expected(item: dict[str, Array]) -> dict[str, Array]:
    x = item["x"]
    shifted = np.maximum(x + np.arange(6, dtype=np.float32), 0)
    product = shifted * 2
    return {
        "flat": shifted.ravel(), "signs": np.sign(product - x), "sums": product.sum(1)
    }  # fmt: skip


def check(results: list[dict[str, Array]], items: list[dict[str, Array]]) -> None:
    for found, item in zip(results, items, strict=True):
        for name, values in expected(item).items():
            np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.parametrize("graphs", [True, False], ids=["as graphs", "one by one"])
@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_right_in_any_order_of_streams(seed: int, graphs: bool) -> None:
    double, graph = CupyDouble(seed), mixed()
    items = some_items(graph, 3)
    with Rig(double.generating(graphs=graphs), graph) as rig:
        with double.gpu.paused():
            stream = rig.stream(items)
        check(stream.results(), items)


def test_a_stream_that_does_not_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "wait_event", lambda self, event: None)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            test_results_are_right_in_any_order_of_streams(seed, True)


def elementwise() -> Graph:
    b = pl.GraphBuilder("elementwise")
    x = b.input("x", "float32", (300,))
    doubled = b.op("Add", x, x, name="doubled")
    b.output("flat", b.op("Reshape", doubled, np.array([30, 10]), name="flat"))
    b.output("y", b.op("Transpose", b.op("Reshape", doubled, np.array([10, 30])), name="y"))
    return b.build()


@pytest.mark.parametrize("length", [64, "n"])
def test_what_computes_a_node_is_said_as_far_as_it_is_known(
    double: CupyDouble, length: int | str
) -> None:
    b = pl.GraphBuilder("all kinds")
    x = b.input("x", "float16", (1, 8, 512, length))
    weights, ones = np.ones((8, 8, 3, 3), np.float16), np.ones((1, 8, 512, 512), np.float16)
    b.output("a", b.op("Conv", x, weights, pads=[1, 1, 1, 1]))
    b.output("b", b.op("MatMul", ones, x))
    b.output("c", b.op("Attention", x, x, x, scale=0.1))
    b.output("d", b.op("Relu", x))
    b.output("e", b.op("Einsum", x, equation="abcd->dcba"))
    device, graph = double.generating(cudnn=lambda: FakeCudnn(double.gpu)), b.build()
    found = {node.op: device.supports(node, graph.call(node)).reason for node in graph.nodes}
    unless, kernel = "computes it, unless something else is faster", "has a generated kernel"
    libraries = {
        "Conv": f"cuDNN {unless}", "MatMul": "cuBLAS computes it", "Attention": f"cuBLAS {unless}"
    }  # fmt: skip
    known = libraries if length == 64 else dict.fromkeys(libraries, kernel)
    assert found == {**known, "Relu": kernel, "Einsum": "CuPy has a kernel"}


def test_a_program_is_launched_as_one_graph(double: CupyDouble) -> None:
    with Rig(double.generating(), elementwise()) as rig:
        launched = double.cuda.driver.launches
        x = np.arange(300, dtype=np.float32)
        for _ in range(3):
            assert np.array_equal(rig.run({"x": x})["y"], 2 * x.reshape(10, 30).T)
        assert double.gpu.graphs_launched == 3
        assert double.cuda.driver.launches == launched, "launched one by one"


@pytest.mark.parametrize(("graphs", "measure"), [(False, False), (True, True)])
def test_without_graphs_kernels_are_launched_one_by_one(
    double: CupyDouble, graphs: bool, measure: bool
) -> None:
    with Rig(double.generating(graphs=graphs), elementwise(), measure=measure) as rig:
        before = double.cuda.driver.launches
        rig.compute().wait(WAIT_S)
        assert double.gpu.graphs_launched == 0
        assert double.cuda.driver.launches - before == 2


def test_measured_nodes_have_times_and_fused_ones_one_together(double: CupyDouble) -> None:
    graph = mixed()
    with Rig(double.generating(), graph, measure=True) as rig:
        event = rig.compute()
        event.wait(WAIT_S)
    assert event.node_ns is not None
    times = dict(zip((node.name for node in graph.nodes), event.node_ns, strict=True))
    assert all(times[name] > 0 for name in ("shifted", "signs", "sums"))
    assert sum(times.values()) <= event.ended_ns - event.started_ns
    assert [time > 0 for time in times.values()].count(False) == 2  # Add and Sub are fused


def test_programs_of_one_graph_share_what_is_compiled(double: CupyDouble) -> None:
    sources: list[str] = []

    def compiler(source: str, arch: str) -> bytes:
        sources.append(source)
        return source.encode()

    with Rig(double.generating(compiler=compiler), elementwise()) as rig:
        more = [rig.device.compile(rig.graph, rig.views) for _ in range(3)]
        assert len(sources) == 1
        more.clear()
        rig.program = None
        gc.collect()
        rig.device.compile(rig.graph, rig.views)
        assert len(sources) == 2, "kept though nobody uses it"


def test_kernels_are_compiled_side_by_side_and_once(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.devices.cuda.modules.KERNELS_PER_PROGRAM", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both, sources = threading.Barrier(2), list[str]()

    def compiler(source: str, arch: str) -> bytes:
        both.wait(WAIT_S)
        sources.append(source)
        return source.encode()

    x = np.arange(300, dtype=np.float32)
    with Rig(double.generating(compiler=compiler), elementwise()) as rig:
        assert len(sources) == 2
        assert rig.run({"x": x})["y"].tolist() == (2 * x.reshape(10, 30).T).tolist()
        with Bound(rig.device, chain("Add", n=300)):  # nothing new
            assert len(sources) == 2


def test_a_program_of_kernels_known_is_bound_while_the_gpu_is_busy(double: CupyDouble) -> None:
    with Rig(double.generating(), elementwise()) as rig:
        with double.gpu.paused():
            busy = rig.compute()
            more = rig.device.compile(rig.graph, rig.views)
            assert not busy.done
        rig.device.submit(more).wait(WAIT_S)
        del more


def test_the_steady_state_allocates_nothing_on_the_gpu(double: CupyDouble) -> None:
    with Rig(double.generating(), mixed()) as rig:
        rig.compute().wait(WAIT_S)
        before, copies = double.gpu._next_address, double.gpu.pageable_copies
        for _ in range(10):
            rig.compute().wait(WAIT_S)
        assert (double.gpu._next_address, double.gpu.pageable_copies) == (before, copies)


def test_a_program_keeps_the_memory_that_it_uses(double: CupyDouble) -> None:
    with Rig(double.generating(), elementwise()) as rig:
        rig.views.clear()
        rig.arena.close()
        gc.collect()
        rig.compute().wait(WAIT_S)


def test_an_empty_tensor_launches_nothing(double: CupyDouble) -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (0, 3))
    b.output("y", b.op("Relu", b.op("MatMul", x, np.ones((3, 2), np.float32))))
    with Rig(double.generating(), b.build()) as rig:
        assert rig.run({"x": np.empty((0, 3), np.float32)})["y"].shape == (0, 2)
    assert double.cuda.driver.launches == 0


def test_a_source_that_does_not_compile_is_a_kernel_error(double: CupyDouble) -> None:
    def compiler(source: str, arch: str) -> bytes:
        raise KernelError("NVRTC refuses a program")

    with closing(double.generating(compiler=compiler)) as device:
        with pytest.raises(KernelError, match="NVRTC refuses"):
            Rig(device, elementwise())


def test_a_failure_while_recording_leaves_the_device_usable(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, launch = double.generating(), double.cuda.driver.launchKernel
    failures = [CUDARuntimeError(1)]

    def fail_once(*arguments: int) -> None:
        if failures:
            raise failures.pop()
        launch(*arguments)

    monkeypatch.setattr(double.cuda.driver, "launchKernel", fail_once)
    with pytest.raises(DeviceError, match="invalid argument"):
        Rig(device, elementwise())
    assert not double.gpu._captures
    with Rig(device, elementwise()) as rig:
        rig.compute().wait(WAIT_S)


def test_a_device_whose_libraries_do_not_start_is_unavailable(double: CupyDouble) -> None:
    class Broken:
        def cublasLtCreate(self, handle: object) -> int:  # noqa: N802
            return 3

    device = double.generating(cublas=Broken)
    with pytest.raises(DeviceUnavailableError, match="cublasLtCreate fails: CUBLAS_STATUS_ALLOC"):
        device.open()


def test_what_there_is_to_compute_with_is_part_of_the_software(double: CupyDouble) -> None:
    options: tuple[dict[str, Any], ...] = ({}, {"tf32": True}, {"cublas": None}, {"compiler": None})
    software = [double.generating(**chosen).capabilities.software for chosen in options]
    assert software == [
        "cupy 14.0.1, generated kernels, cublas 13.1.0",
        "cupy 14.0.1, generated kernels, cublas 13.1.0 with tf32",
        "cupy 14.0.1, generated kernels",
        "cupy 14.0.1",
    ]


def test_generated_kernels_compute_what_cupys_cannot() -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "int32", (4,))
    b.output("y", b.op("Pow", x, np.array([3], np.int32)))
    graph = b.build()
    (node,) = graph.nodes
    assert CudaDevice().supports(node, graph.call(node)).ok
    assert not CudaDevice(compiler=None).supports(node, graph.call(node)).ok


def test_of_empty_tensors_nothing_is_recorded() -> None:
    b = pl.GraphBuilder("empty")
    x, none = b.input("x", "float32", (4,)), b.input("none", "float32", (0, 4))
    b.output("flat", b.op("Reshape", none, np.array([0]), allowzero=1))
    b.output("back", b.op("Reshape", none, np.array([4, 0]), allowzero=1))
    b.output("y", b.op("Reshape", b.op("Relu", x), np.array([2, 2])))
    graph = b.build()
    items = some_items(graph, 2)
    with Rig(CupyDouble().generating(), graph) as rig:
        for result, item in zip(rig.stream(items).results(), items, strict=True):
            np.testing.assert_array_equal(result["y"].ravel(), np.maximum(item["x"], 0))
            assert (result["flat"].shape, result["back"].shape) == ((0,), (4, 0))


def test_programs_are_unloaded_with_their_device_current_whoever_drops_them() -> None:
    double = CupyDouble(devices=2)
    with Rig(double.generating("cuda:1"), chain("Relu")) as rig:
        programs = [rig.program]
    assert double.cuda.driver.unloaded == []
    dropper = threading.Thread(target=programs.clear)
    dropper.start()
    dropper.join()
    assert double.cuda.driver.unloaded == [(1, 1)]


@pytest.mark.parametrize("name", ["cuda:0", "cuda:1"])
def test_a_thread_that_has_done_nothing_with_cuda_may_launch(name: str) -> None:
    double, cold = CupyDouble(devices=2), list[int | None]()
    device = double.generating(name)
    with Rig(device, chain("Relu")) as rig:

        def launch() -> None:
            cold.append(double.current.context)
            rig.compute().wait(WAIT_S)

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        assert cold == [None]
        assert device.failure is None


def test_a_cold_thread_unloads_programs_of_the_first_device_too(double: CupyDouble) -> None:
    with Rig(double.generating(), chain("Relu")) as rig:
        programs = [rig.program]
    dropper = threading.Thread(target=programs.clear)
    dropper.start()
    dropper.join()
    assert double.cuda.driver.unloaded == [(0, 0)]


async def test_a_network_in_bfloat16_stays_on_the_gpu(double: CupyDouble) -> None:
    b = pl.GraphBuilder("network")
    x = b.input("x", "bfloat16", (4, 6))
    weights = b.constant((2 * np.eye(6)).astype(dtype_of("bfloat16")), "weights")
    y = b.op("Relu", b.op("MatMul", x, weights))
    b.output("y", b.op("Cast", y, to="float32"))
    plan = pl.plan(b.build(), [double.generating(), "cpu"], pin={"*": "cuda:0"})
    assert {node.device for node in plan.partition.subgraphs} == {"cuda:0"}
    fed = np.arange(-12, 12).reshape(4, 6).astype(dtype_of("bfloat16"))
    async with pl.Session(plan) as session:
        found = (await session.run({"x": fed}))["y"]
    np.testing.assert_array_equal(found, np.maximum(2 * fed.astype(np.float32), 0))


async def test_a_session_streams_through_a_gpu_and_the_cpu(double: CupyDouble) -> None:
    graph = mixed()
    pin = {node.name: "cuda:0" for node in graph.nodes} | {"signs": "cpu"}
    plan, items = pl.plan(graph, [double.generating(), "cpu"], pin=pin), some_items(graph, 12)
    async with pl.Session(plan) as session, session.stream(items) as results:
        found = [{name: item[name] for name in expected(items[0])} async for item in results]
    check(found, items)
    assert double.gpu.graphs_launched > 0
    assert double.gpu.pageable_copies == 3, "more than each constant once"


@settings(max_examples=12, deadline=None)
@given(graphs(), st.sampled_from(SEEDS), st.booleans())
def test_random_graphs_are_right_where_tensors_share_memory(
    graph: Graph, seed: int, as_graphs: bool
) -> None:
    items = [feeds(graph, number) for number in range(4)]

    async def run() -> None:
        device = CupyDouble(seed).generating(graphs=as_graphs)
        plan = pl.plan(graph, [device], max_in_flight=2)
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session, session.stream(items) as results:
                async for item in results:
                    for name, values in wanted(graph, items[item.index]).items():
                        np.testing.assert_array_equal(item[name], values)

    trio.run(run)
