from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from bound import Bound
from patience import WAIT_S
from plait.devices import find, probe
from plait.devices.event import CancelledWorkError, Event
from plait.devices.memory import host_arena
from plait.devices.ort import runtime as runtimes
from plait.devices.ort import support
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.program import OrtProgram
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.extras import get_install_command
from plait.graph.values.tensor import TensorSpec
from small_graphs import X, counting, doubling

SIDE = 1024
"""Far below what the long chain takes, far above what stopping it does."""


@pytest.fixture
def device() -> Iterator[OrtDevice]:
    made = OrtDevice()
    made.open()
    yield made
    made.close()


def chain_of_products(rows: int | str = SIDE, length: int = 500) -> Graph:
    """Return x times one matrix, over and over: seconds of work.

    The matrix is fed: ONNX Runtime would lay out a constant anew for each product.
    """
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (rows, SIDE))
    weight = b.input("w", "float32", (SIDE, SIDE))
    for _ in range(length):
        last = b.op("MatMul", last, weight)
    b.output("y", last)
    return b.build()


def picking(*, name: str = "pick") -> Graph:
    """Return y = one of two numbers, which fails for other indices."""
    b = pl.GraphBuilder("picking")
    index = b.op("Cast", b.input("x", "float32", (4,)), to="int64", name="index")
    b.output("y", b.op("Gather", np.array([5, 7], np.float32), index, name=name))
    return b.build()


def compiled(device: OrtDevice, graph: Graph) -> OrtProgram:
    """Return a program that has buffers for the graph's inputs and outputs alone."""
    specs = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
    views = {n: device.view(host_arena(spec.nbytes), 0, spec) for n, spec in specs.items()}
    program = device.compile(graph, views)
    assert isinstance(program, OrtProgram)
    return program


# What it is like


def test_the_device_is_found_by_its_kind_and_passes_the_check() -> None:
    assert find("ort").name == "ort"
    assert find("ort:second").name == "ort:second"
    assert probe("ort").found


@pytest.mark.parametrize("package", ["onnxruntime", "onnx"])
def test_without_its_packages_it_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cached in (runtimes.load_runtime, runtimes.find_newest_opset):
        monkeypatch.setattr(runtimes, cached.__name__, cached.__wrapped__)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("plait.devices.ort.engine.find_newest_opset", runtimes.find_newest_opset)
    with pytest.raises(pl.DeviceUnavailableError, match=f"'{package}', which is not") as raised:
        pl.plan(doubling(), ["ort"])
    assert raised.value.fix == get_install_command("ort")


def test_a_runtime_that_runs_nothing_is_said_to_be_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : /src/model.h:46 void f() too old\nmore")

    monkeypatch.setattr(runtimes, "load", fail)
    with pytest.raises(pl.DeviceUnavailableError, match="a quantized model: too old"):
        runtimes.find_newest_opset.__wrapped__()


def test_it_has_the_kernels_of_quantized_models_as_they_are() -> None:
    b = pl.GraphBuilder("rounded")
    scale, zero = np.float32(0.5), np.int8(1)
    rounded = b.op("QuantizeLinear", b.input("x", "float32", (3,)), scale, zero)
    b.output("y", b.op("DequantizeLinear", rounded, scale, zero))
    plan = pl.plan(b.build(), ["ort"])
    assert [node.op for node in plan.graph.nodes] == ["QuantizeLinear", "DequantizeLinear"]
    x = np.array([-9.3, 0.2, 1e9], "float32")
    wanted = (np.clip(np.rint(x / 0.5) + 1, -128, 127) - 1) * 0.5
    assert np.array_equal(pl.run(plan, {"x": x})["y"], wanted)


# What it supports


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "reason"),
    [
        ("Div", ["int32[4]", "int32[4]"], {}, "may end the process"),
        ("Div", ["int32[4]", np.int32(0)], {}, "division by 0 fails"),
        ("Mod", ["int32[4]", np.int32(-1)], {}, "by -1 may end"),
        ("LRN", ["float32[1, 5, 5]"], {"size": 3}, "other ranks than 4"),
        ("Pad", ["float32[1]", np.array([1, 0])], {"mode": "reflect"}, "more than once"),
        ("Pad", ["float32[4]", np.array([-2, 2])], {"mode": "reflect"}, "more than once"),
        ("Pad", ["float32[4]", "int64[2]"], {"mode": "reflect"}, "more than once"),
        ("ReduceL2", ["float32[4]", "int64[]"], {}, "axes that are a scalar"),
        ("ReduceMax", ["float32[4]", "int64[]"], {}, "axes that are a scalar"),
        ("NonZero", ["float32[4]"], {}, "depends on values"),
        ("Identity", ["complex64[4]"], {}, "complex64"),
        ("Resize", ["float32[1, 1, 4, 4]", None, np.array([1, 1, 0.6, 0.6], np.float32)],
         {"coordinate_transformation_mode": "align_corners"}, "lengths that are rounded"),
    ],
)  # fmt: skip
def test_what_it_would_do_otherwise_is_refused(
    op: str, inputs: list[Any], attributes: dict[str, Any], reason: str
) -> None:
    b = pl.GraphBuilder(op)
    named = [b.input(f"x{i}", *_spec(x)) if isinstance(x, str) else x for i, x in enumerate(inputs)]
    b.output("y", b.op(op, *named, **attributes))
    graph = b.build()
    (node,) = graph.nodes
    support = OrtDevice().supports(node, graph.call(node))
    assert not support.ok
    assert reason in support.reason


@pytest.mark.parametrize(
    ("length", "parts"), [(6, 3), (7, 3), (1, 2), (1, 3), (5, 4), (6, 4), (6, 5), (8, 6), (0, 3)]
)
def test_equal_parts_may_be_more_than_there_is(length: int, parts: int) -> None:
    b = pl.GraphBuilder("split")
    x = b.input("x", "float32", (length,))
    for i, part in enumerate(b.op("Split", x, outputs=parts)):
        b.output(f"part{i}", part)
    fed = np.arange(length, dtype=np.float32)
    got = pl.run(b.build(), {"x": fed}, devices=["ort", "cpu"])
    size = -(-length // parts)
    for i in range(parts):
        np.testing.assert_array_equal(got[f"part{i}"], fed[i * size : (i + 1) * size])


def test_halves_are_there_at_all_lengths() -> None:
    b = pl.GraphBuilder("halves")
    one, other = b.op("Split", b.input("x", "float32", ("n",)), outputs=2, num_outputs=2)
    b.output("one", one)
    b.output("other", b.op("Neg", other))
    plan = pl.plan(b.build(), ["ort", "cpu"])
    by_ort = {"ort"} if runtimes.can_give_empty_parts() else {"ort", "cpu"}
    assert set(plan.assignment.values()) == by_ort
    with pl.BlockingSession(plan) as session:
        for n in (5, 4, 1, 2, 3, 0):
            fed = np.arange(n, dtype=np.float32)
            got = session.run({"x": fed})
            np.testing.assert_array_equal(got["one"], fed[: -(-n // 2)])
            np.testing.assert_array_equal(got["other"], -fed[-(-n // 2) :])


@pytest.mark.parametrize("pads", [[1, 1], [2, 0], [-1, 2], [-2, 1], [0, 7]])
def test_what_is_reflected_more_than_once_goes_elsewhere(pads: list[int]) -> None:
    fed = np.array([1, 2, 3], np.float32)
    b = pl.GraphBuilder("pad")
    b.output("y", b.op("Pad", b.input("x", "float32", (3,)), np.array(pads), mode="reflect"))
    wanted = np.pad(fed[max(-pads[0], 0) :], np.maximum(pads, 0), mode="reflect")
    got = pl.run(b.build(), {"x": fed}, devices=["ort", "cpu"])["y"]
    np.testing.assert_array_equal(got, wanted)


def test_shifts_are_supported_where_the_opset_says_what_becomes_of_all_bits() -> None:
    b = pl.GraphBuilder("shift")
    x, bits = b.input("x", "uint8", (4,)), b.input("bits", "uint8", (4,))
    b.output("y", b.op("BitShift", x, bits, direction="LEFT"))
    graph = b.build()
    (node,) = graph.nodes
    support = OrtDevice().supports(node, graph.call(node))
    if runtimes.find_newest_opset() < 28:
        assert not support.ok
        assert "leaves open what becomes" in support.reason
    else:
        feeds = {"x": np.full(4, 255, "uint8"), "bits": np.array([0, 7, 8, 65], "uint8")}
        assert pl.run(graph, feeds, devices=["ort"])["y"].tolist() == [255, 128, 0, 0]


def _spec(text: str) -> tuple[str, list[int]]:
    dtype, lengths = text.rstrip("]").split("[")
    return dtype, [int(length) for length in lengths.split(",") if length]


def test_integers_may_be_divided_by_constants_that_are_safe(device: OrtDevice) -> None:
    b = pl.GraphBuilder("halving")
    b.output("y", b.op("Div", b.input("x", "int32", (2,)), np.int32(-2)))
    graph = b.build()
    (node,) = graph.nodes
    assert device.supports(node, graph.call(node)).ok
    with Bound(device, graph) as bound:
        assert bound.run(x=np.array([7, -(2**31)], np.int32))["y"].tolist() == [-3, 2**30]


@pytest.mark.parametrize("op", ["Conv", "MatMul", "Gemm"])
def test_float_weights_between_quantized_tensors_stay_floats(op: str) -> None:
    random = np.random.default_rng(0)
    shape = (16, 16, 1, 1) if op == "Conv" else (16, 16)
    b = pl.GraphBuilder("quantized")
    x = quantized(b, b.input("x", "float32", shape), 0.02)
    product = b.op(op, x, random.normal(size=shape).astype("float32"))
    b.output("y", quantized(b, product, 0.1))
    graph = b.build()

    feeds = {"x": random.normal(size=shape).astype("float32")}
    wanted = pl.run(graph, feeds, devices=["formal"])["y"]
    found = pl.run(graph, feeds, devices=["ort"])["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def quantized(b: pl.GraphBuilder, x: str, scale: float) -> str:
    """Return x, rounded to 8 bits and back."""
    grid = (np.float32(scale), np.uint8(128))
    rounded: str = b.op("DequantizeLinear", b.op("QuantizeLinear", x, *grid), *grid)
    return rounded


def test_a_node_is_supported_whatever_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    b = pl.GraphBuilder("unknown")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n", 3))))
    graph = b.build()
    (node,) = graph.nodes
    device, call = OrtDevice(), graph.call(node)
    assert device.supports(node, call).ok
    monkeypatch.setattr("plait.devices.ort.engine.load", None)  # it is not asked again
    longer = replace(call, inputs=(TensorSpec("float32", (5, 3)),))
    assert device.supports(node, longer).ok


# Programs


async def test_tensors_without_elements_need_no_other_device() -> None:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n", 2)), name="relu"))
    plan = pl.plan(b.build(), ["ort", "cpu"])
    assert plan.assignment == {"relu": "ort"}
    assert plan.for_shapes({"x": (0, 2)}).assignment == {"relu": "ort"}
    async with pl.Session(plan) as session:
        for n in (3, 0):
            found = await session.run({"x": -np.ones((n, 2), np.float32)})
            assert found["y"].shape == (n, 2)


def test_slots_share_one_session_and_it_goes_with_them(device: OrtDevice) -> None:
    graph = doubling()
    first, second = compiled(device, graph), compiled(device, graph)
    assert first._session is second._session
    assert compiled(device, doubling())._session is not first._session
    watched = weakref.ref(first._session)
    del first, second
    gc.collect()
    assert watched() is None


def test_inputs_and_outputs_alone_have_buffers(device: OrtDevice) -> None:
    program = compiled(device, picking())
    program._views["x"].array[...] = [0, 1, 1, 0]
    device.submit(program).wait(WAIT_S)
    assert program._views["y"].array.tolist() == [5, 7, 7, 5]


def test_large_constants_are_handed_over_apart_from_the_model(device: OrtDevice) -> None:
    random = np.random.default_rng(0)
    weight, small = random.standard_normal((64, 32)), random.standard_normal(32)
    b = pl.GraphBuilder("dense")
    x = b.input("x", "float32", (8, 64))
    b.output("y", b.op("Gemm", x, weight.astype(np.float32), small.astype(np.float32)))
    given = random.standard_normal((8, 64)).astype(np.float32)
    with Bound(device, b.build()) as bound:
        np.testing.assert_allclose(bound.run(x=given)["y"], given @ weight + small, atol=1e-4)


def test_constants_may_be_of_dtypes_that_numpy_lacks(device: OrtDevice) -> None:
    numbers = np.arange(1000).astype(dtype_of("bfloat16"))
    b = pl.GraphBuilder("narrow")
    narrow = b.op("Concat", b.input("x", "bfloat16", (1,)), numbers, axis=0)
    b.output("y", b.op("Cast", narrow, to="float32"))
    with Bound(device, b.build()) as bound:
        found = bound.run(x=numbers[7:8])["y"]
    np.testing.assert_array_equal(found, [7, *numbers.astype(np.float32)])


def test_an_output_that_nobody_reads_needs_no_buffer(device: OrtDevice) -> None:
    b = pl.GraphBuilder("half")
    first, _ = b.op("Split", b.input("x", "float32", (4,)), num_outputs=2, outputs=2)
    b.output("y", first)
    program = compiled(device, b.build())
    program._views["x"].array[...] = X
    device.submit(program).wait(WAIT_S)
    assert program._views["y"].array.tolist() == X[:2].tolist()


@pytest.mark.parametrize("op", ["Identity", "Reshape"])
def test_an_input_that_is_passed_on_is_copied(device: OrtDevice, op: str) -> None:
    b = pl.GraphBuilder("passing")
    x = b.input("x", "float32", (4,))
    b.output("y", b.op(op, x, *([np.array([2, 2])] if op == "Reshape" else [])))
    with Bound(device, b.build()) as bound:
        assert bound.run(x=X)["y"].tobytes() == X.tobytes()


def test_a_subgraph_that_cannot_be_loaded_says_which(
    device: OrtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no such kernel")

    monkeypatch.setattr("plait.devices.ort.engine.load", fail)
    with pytest.raises(
        pl.KernelError, match="does not take the subgraph: no such kernel"
    ) as raised:
        compiled(device, counting())
    assert "subgraph 'counting' of nodes 'add.0', on device 'ort'" in str(raised.value)


# Failures and cancelling


def test_a_failure_names_the_node_and_the_next_run_is_well(device: OrtDevice) -> None:
    with Bound(device, picking(name="the one")) as bound:
        bound.put({"x": np.array([0, 1, 2, 0], np.float32)})
        with pytest.raises(pl.KernelError, match="out of data bounds, idx=2") as raised:
            bound.submit().wait(WAIT_S)
        assert "node 'the one': Gather" in str(raised.value.at)
        assert "on device 'ort'" in str(raised.value.at)
        assert bound.run(x=np.ones(4, np.float32))["y"].tolist() == [7] * 4


def test_a_failure_without_a_node_names_the_subgraph(device: OrtDevice) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of luck")

    program = compiled(device, chain_of_products(length=5))
    program._run = fail
    with pytest.raises(pl.KernelError, match="out of luck") as raised:
        device.submit(program).wait(WAIT_S)
    assert "subgraph 'products' of nodes 'matmul.0', 'matmul.1', 'matmul.2' and 2 more" in str(
        raised.value.at
    )


def test_a_running_program_is_stopped_when_it_is_cancelled(device: OrtDevice) -> None:
    program = compiled(device, chain_of_products())
    event = device.submit(program)
    while event.started_ns == 0:  # at most until the lane's thread has had its turn
        threading.Event().wait(0)
    event.cancel()
    with pytest.raises(CancelledWorkError, match="cancelled"):  # what ran to its end is no error
        event.wait(WAIT_S)


def test_a_program_that_was_stopped_runs_again(device: OrtDevice) -> None:
    program = compiled(device, picking())
    submitted = SimpleQueue[Event]()

    def run_cancelled(binding: Any, options: Any) -> None:
        submitted.get(timeout=WAIT_S).cancel()
        run(binding, options)

    run, program._run = program._run, run_cancelled
    event = device.submit(program)
    submitted.put(event)
    with pytest.raises(CancelledWorkError, match="while it ran"):
        event.wait(WAIT_S)
    program._run = run
    program._views["x"].array[...] = 1
    device.submit(program).wait(WAIT_S)
    assert program._views["y"].array.tolist() == [7] * 4


@pytest.mark.slow
async def test_a_session_that_is_cancelled_in_a_long_run_goes_on_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, token, run = trio.Event(), trio.lowlevel.current_trio_token(), OrtProgram.run

    def told(program: OrtProgram, event: Event) -> None:
        token.run_sync_soon(begun.set)
        run(program, event)

    monkeypatch.setattr(OrtProgram, "run", told)
    plan = pl.plan(chain_of_products("n", 1000), ["ort"])  # twice WAIT_S of work
    ones, same = np.ones((30 * SIDE, SIDE), np.float32), np.eye(SIDE, dtype=np.float32)
    async with pl.Session(plan) as session:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.run, {"x": ones, "w": same})
                await begun.wait()
                nursery.cancel_scope.cancel()
        found = await session.run({"x": ones[:1], "w": same})
        np.testing.assert_array_equal(found["y"], ones[:1])


# In a session


async def test_four_items_in_flight_do_not_mix() -> None:
    b = pl.GraphBuilder("two devices")
    x = b.input("x", "float32", (64,))
    squashed = b.op("Sigmoid", b.op("Add", x, 1.0, name="ort.add"), name="ort.squash")
    b.output("y", b.op("Exp", b.op("Neg", squashed, name="cpu.neg"), name="ort.exp"))
    plan = pl.plan(b.build(), ["ort", "cpu"], pin={"cpu.*": "cpu", "ort.*": "ort"}, max_in_flight=4)
    assert [subgraph.device for subgraph in plan.subgraphs] == ["ort", "cpu", "ort"]
    fed = [np.full(64, i / 10, np.float32) for i in range(40)]
    async with pl.Session(plan) as session:
        async with session.stream({"x": x} for x in fed) as results:
            found = [item["y"] async for item in results]
    for given, got in zip(fed, found, strict=True):
        np.testing.assert_allclose(got, np.exp(-1 / (1 + np.exp(-given - 1))), rtol=1e-6)


async def test_tensors_are_shared_with_a_worker_without_copies() -> None:
    b = pl.GraphBuilder("shared")
    b.output("y", b.op("Neg", b.op("Exp", b.input("x", "float32", (4,)), name="exp"), name="neg"))
    plan = pl.plan(b.build(), ["ort", "worker:0"], pin={"exp": "worker:0", "neg": "ort"})
    assert len(plan.steps) == 2, "no transfers"
    async with pl.Session(plan) as session:
        np.testing.assert_allclose((await session.run({"x": X}))["y"], -np.exp(X), rtol=1e-6)


def test_a_measured_session_gives_no_times_of_nodes(device: OrtDevice) -> None:
    async def run() -> pl.Profile:
        async with pl.Session(pl.plan(counting(), ["ort"]), measure=True) as session:
            await session.run({"x": X})
            return session.profile()

    assert trio.run(run).nodes == ()


def rows_of(n: int | str) -> Graph:
    """Return h = relu(x w), its sum over the rows, and it behind two rows of others."""
    b = pl.GraphBuilder("rows")
    x = b.input("x", "float32", (n, 4))
    h = b.op("Relu", b.op("MatMul", x, np.eye(4, dtype="float32"), name="product"), name="h")
    b.output("h", h)
    b.output("sum", b.op("ReduceSum", h, np.array([0]), name="sum"))
    b.output("both", b.op("Concat", np.ones((2, 4), "float32"), h, axis=0, name="both"))
    return b.build()


@pytest.mark.parametrize("rows", [0, 3])
def test_what_has_no_elements_is_not_computed(rows: int) -> None:
    graph = rows_of("n")
    pins = {"product": "ort", "h": "ort", "sum": "cpu", "both": "cpu"}
    x = np.ones((rows, 4), "float32")
    with pl.BlockingSession(pl.plan(graph, ["ort", "cpu"], pin=pins)) as session:
        found = session.run({"x": x})
    assert found["h"].shape == (rows, 4)
    assert found["sum"].tolist() == [[rows] * 4]
    assert found["both"].shape == (rows + 2, 4)


def test_some_results_have_elements_and_others_have_none() -> None:
    b = pl.GraphBuilder("ends")
    x = b.op("Relu", b.input("x", "float32", (3,)))
    b.output("none", b.op("Neg", b.op("Slice", x, np.array([1]), np.array([1]))))
    b.output("all", b.op("Neg", x))
    found = pl.run(b.build(), {"x": np.ones(3, "float32")}, devices=["ort"])
    assert found["none"].shape == (0,)
    assert found["all"].tolist() == [-1] * 3


def added_to(n: int | str) -> Graph:
    """Return relu(c) + h' h, where h = relu(x) has n rows."""
    b = pl.GraphBuilder("added")
    x, c = b.input("x", "float32", (n, 4)), b.input("c", "float32", (4,))
    h, shift = b.op("Relu", x, name="h"), b.op("Relu", c)
    b.output("y", b.op("Gemm", h, h, shift, transA=True, name="gemm"))
    return b.build()


@pytest.mark.parametrize("given", [None, {"x": (0, 4)}])
def test_the_nodes_that_no_rows_are_too_few_for_are_named_with_the_way_out(
    given: dict[str, tuple[int, int]] | None,
) -> None:
    feeds = {"x": np.ones((0, 4), "float32"), "c": np.ones(4, "float32")}
    with pytest.raises(pl.UnsupportedOpError) as raised:
        devices, pin = ["ort", "cpu"], {"*": "ort"}
        plan = pl.plan(added_to("n"), devices, pin=pin, shapes=given, passes=())
        pl.run(plan, feeds)
    refused = "on 'ort' devices: 'h' has no elements: some of its kernels end the process then"
    (line,) = raised.value.what.splitlines()[1:]
    assert f"'gemm' (Gemm): pinned to ort by '*': no kernel for 'Gemm' {refused}" in line
    assert raised.value.fix == "change the pin '*': 'cpu' runs them"


@pytest.mark.parametrize("passes", [(), PASSES])
def test_what_is_made_of_no_rows_is_known_ahead(passes: tuple[Any, ...]) -> None:
    """ONNX Runtime is given nothing without elements: also in a plan for other lengths as well."""
    plan = pl.plan(rows_of("n"), "ort", bounds={"n": (0, 3)}, passes=passes)
    with pl.BlockingSession(plan) as session:
        for n in (3, 0, 1, 0, 2):
            x = np.full((n, 4), 2, "float32")
            found = session.run({"x": x})
            np.testing.assert_array_equal(found["h"], x)
            np.testing.assert_array_equal(found["sum"], np.full((1, 4), 2 * n))
            np.testing.assert_array_equal(found["both"], np.append(np.ones((2, 4)), x, axis=0))


MADE_OF_NOTHING: dict[str, Callable[[pl.GraphBuilder, str], str]] = {
    "ReduceProd": lambda b, x: b.op("ReduceProd", x, np.array([0])),
    "ReduceLogSum": lambda b, x: b.op("ReduceLogSum", x, np.array([0])),
    "MatMul": lambda b, x: b.op("MatMul", b.op("Transpose", x), x),
    "Gemm": lambda b, x: b.op("Gemm", x, x, np.arange(4, dtype="float32"), transA=True),
    "Pad": lambda b, x: b.op("Pad", x, np.array([1, 0, 2, 0]), np.float32(7)),
    "Concat": lambda b, x: b.op("Concat", x, np.ones((1, 4), "float32"), x, axis=0),
    "chain": lambda b, x: b.op("Exp", b.op("Neg", b.op("ReduceSum", x, np.array([0])))),
}


@pytest.mark.parametrize("name", MADE_OF_NOTHING)
def test_ort_makes_of_nothing_what_definitions_say(name: str) -> None:
    b = pl.GraphBuilder(name)
    x = b.input("x", "float32", ("n", 4))
    made = MADE_OF_NOTHING[name](b, b.op("Relu", x))
    b.output("made", made)
    b.output("after", b.op("Add", made, np.float32(1)))
    for n in (0, 2):
        feeds = {"x": np.random.default_rng(n).random((n, 4), "float32")}
        found, wanted = (pl.run(b.build(), feeds, devices=d) for d in ("ort", "formal"))
        for key, array in wanted.items():
            np.testing.assert_allclose(found[key], array, rtol=1e-5)


SOURCE = "/onnxruntime_src/onnxruntime/core/providers/"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("", ""), ("invalid expand shape", "invalid expand shape"),
        ("[ONNXRuntimeError] : 1 : FAIL : no\nmore", "no"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : session.cc:35 Find no", "no"),
        ("upsamplebase.h:548 ScalesValidation Scale value is 0.", "Scale value is 0."),
        (f"{SOURCE}common.h:31 int64_t onnxruntime::F(int64_t) IsIn(a, b) was false. no", "no"),
        (f"Exception during initialization: {SOURCE}a.cc:2 L::L(const &)::<lambda()> no", "no"),
        (f"{SOURCE}a/b.cc:9 void onnxruntime::(anonymous namespace)::F(int) no", "no"),
        (f"{SOURCE}lrn.cc:59 Status onnxruntime::LRN<T>::Compute(onnxruntime::C*) const "
         "[with T = float] X.rank() == 4 was false.", "X.rank() == 4 was false."),
    ],
)  # fmt: skip
def test_places_in_the_source_are_not_told(message: str, told: str) -> None:
    assert runtimes.extract_message(message) == told
    assert runtimes.summarize(RuntimeError(message)) == (told or "RuntimeError")


def test_an_error_while_running_tells_what_is_wrong() -> None:
    b = pl.GraphBuilder("g")
    x, axis = b.input("x", "float32", (2, 3)), b.input("axis", "int64", ())
    b.output("y", b.op("CumSum", x, axis, name="total"))
    feeds = {"x": np.ones((2, 3), "float32"), "axis": np.array(2)}
    with pytest.raises(pl.KernelError) as raised:
        pl.run(b.build(), feeds, devices=["ort"])
    assert raised.value.what == "axis 2 is not in valid range [-2,1]"
    assert raised.value.at is not None
    assert raised.value.at.startswith("node 'total'")


@pytest.mark.parametrize("is_bound", [True, False])
def test_dtypes_that_an_older_runtime_cannot_bind_go_elsewhere(
    is_bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_bound and not runtimes.can_bind_extensions():
        pytest.skip("this onnxruntime binds no bfloat16: 1.23 does")
    monkeypatch.setattr(support, "can_bind_extensions", lambda: is_bound)
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Cast", b.input("x", "float32", (2,)), to="bfloat16", name="cast"))
    plan = pl.plan(b.build(), ["ort", "cpu"], strategy="preference")
    assert plan.assignment == {"cast": "ort" if is_bound else "cpu"}
