"""Inputs handed over and outputs taken on a device, whatever order its streams run in."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from foreign_arrays import Described, Foreign, Library, Shared, read_later
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.model import DeviceModel
from plait.graph.core.ir import Graph
from plait.scheduler.costs import Costs
from plait.scheduler.errors import FeedError, PlanError, SessionError
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.partition.capacity import Capacity
from plait.scheduler.planner.partition.problem import PartitionProblem
from plait.scheduler.plans.plan import Plan
from plait.scheduler.plans.request import ON_HOST, IoDevices
from random_graphs import expected, feeds, graphs

N = 4
GPU = {"*": "cuda:0"}


def sums(length: int | str = N) -> Graph:
    """Return a graph of ``y = x + h`` and ``z = max(0, -x)``."""
    b = pl.GraphBuilder("sums")
    x, h = (b.input(name, "float32", (length,)) for name in "xh")
    b.output("y", b.op("Add", x, h))
    b.output("z", b.op("Relu", b.op("Neg", x)))
    return b.build()


def planned(double: CupyDouble, graph: Graph | None = None, **options: Any) -> Plan:
    options = {"pin": GPU, "inputs_on": {"x": "cuda:0"}, "outputs_on": {"y": "cuda:0"}, **options}
    plan = pl.plan(graph or sums(), [double.device(), "cpu"], **options)
    if plan.memory is not None:
        verify_memory(plan)
    return plan


def values(index: int = 0, length: int = N) -> np.ndarray[Any, Any]:
    return np.arange(length, dtype=np.float32) + 10 * index - 2


def cells(array: Any) -> np.ndarray[Any, Any]:
    """Return what an array holds at this moment, whatever is still queued."""
    found: np.ndarray[Any, Any] = array._cells.copy()
    return found


async def is_right(seed: int, kind: type[Foreign], *, transposed: bool = False) -> bool:
    double = CupyDouble(seed)
    library = Library(double)
    x, h = values().reshape(2, 2), np.ones((2, 2), np.float32)
    b = pl.GraphBuilder("add")
    shapes = [b.input(name, "float32", (2, 2)) for name in "xh"]
    b.output("y", b.op("Add", *shapes))
    async with pl.Session(planned(double, b.build())) as session:
        fed = library.array(x, kind, transposed=transposed)
        y = (await session.run({"x": fed, "h": h}))["y"]
        return np.array_equal(cells(y), x + h)


@pytest.mark.parametrize("kind", [Shared, Described])
async def test_an_array_of_another_library_is_read_when_its_stream_has_written_it(
    kind: type[Foreign],
) -> None:
    assert all([await is_right(seed, kind) for seed in SEEDS])


async def test_an_array_with_its_axes_in_another_order_is_read_as_it_looks() -> None:
    assert all([await is_right(seed, Shared, transposed=True) for seed in SEEDS])


async def test_an_array_with_its_axes_in_another_order_is_kept_until_it_is_copied() -> None:
    double = CupyDouble()
    library = Library(double)
    x = values().reshape(2, 2)
    device = double.device()
    device.open()
    fed = library.array(x, transposed=True)
    double.gpu.drain(library.stream)
    is_freed = weakref.finalize(fed, int)
    with double.gpu.paused():
        loan = device.borrow(fed)
        del fed
        gc.collect()
        assert is_freed.alive
    double.gpu.drain()
    device.close()
    np.testing.assert_array_equal(cells(loan.view.array), x)
    del loan
    gc.collect()
    assert not is_freed.alive


async def test_without_the_wait_for_its_producer_an_array_is_read_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Library, "wait_on", lambda self, stream: None)
    assert not all([await is_right(seed, Shared) for seed in SEEDS])


async def test_without_the_wait_for_the_stream_that_it_names_an_array_is_read_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CupyDouble, "_record", lambda self, event, stream: None)
    assert not all([await is_right(seed, Described) for seed in SEEDS])


async def test_an_array_whose_stream_was_destroyed_fails_its_item_alone() -> None:
    double, h = CupyDouble(), np.ones(N, np.float32)
    library = Library(double)
    gone = Library(double)
    bad = gone.array(values(), Described)
    gone.destroy_stream()
    fed = [library.array(values(0), Described), bad, library.array(values(2), Described)]
    async with pl.Session(planned(double)) as session:
        async with session.stream({"x": x, "h": h} for x in fed) as results:
            items = [item async for item in results]
        assert [item.error is None for item in items] == [True, False, True]
        assert isinstance(items[1].error, FeedError)
        assert "'x' cannot be read on 'cuda:0': the array names a stream" in str(items[1].error)
        np.testing.assert_array_equal(cells(items[2]["y"]), values(2) + 1)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_stream_of_arrays_written_one_after_the_other(seed: int) -> None:
    double = CupyDouble(seed)
    library, h = Library(double), np.ones(N, np.float32)

    def source() -> Iterator[dict[str, Any]]:
        for index in range(7):
            yield {"x": library.array(values(index)), "h": h}

    async with pl.Session(planned(double, max_in_flight=3)) as session:
        async with session.stream(source()) as results:
            found = [(cells(item["y"]), item["z"]) async for item in results]
    for index, (y, z) in enumerate(found):
        np.testing.assert_array_equal(y, values(index) + 1)
        np.testing.assert_array_equal(z, np.maximum(-values(index), 0))
    assert len(found) == 7
    assert double.gpu.pageable_copies == 0


async def test_a_host_array_is_uploaded_where_one_on_the_device_is_expected() -> None:
    double = CupyDouble()
    async with pl.Session(planned(double)) as session:
        out = await session.run({"x": values(), "h": np.ones(N, np.float32)})
    np.testing.assert_array_equal(cells(out["y"]), values() + 1)
    assert double.gpu.pageable_copies == 0


async def test_what_is_handed_over_has_no_memory_on_the_host() -> None:
    double = CupyDouble()
    plan = planned(double, inputs_on="cuda:0", outputs_on="cuda:0")
    assert plan.memory is not None
    assert set(plan.memory.pools) == {"cuda:0"}
    assert [step.name for step in plan.steps if "caller" in step.name] == [
        "x: caller to cuda:0",
        "h: caller to cuda:0",
        "y: cuda:0 to caller",
        "z: cuda:0 to caller",
    ]
    assert "x float32[4] on cuda:0" in plan.report()


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_cpu_reads_what_was_handed_over_on_a_gpu_and_a_gpu_gets_what_it_made(
    seed: int,
) -> None:
    double = CupyDouble(seed)
    plan = planned(double, pin={"*": "cpu"})
    async with pl.Session(plan) as session:
        x = Library(double).array(values())
        out = await session.run({"x": x, "h": np.ones(N, np.float32)})
    np.testing.assert_array_equal(cells(out["y"]), values() + 1)
    np.testing.assert_array_equal(out["z"], np.maximum(-values(), 0))


async def test_an_input_that_is_an_output_and_a_constant_are_taken_on_the_device() -> None:
    double = CupyDouble()
    b = pl.GraphBuilder("through")
    x = b.input("x", "float32", (N,))
    b.output("same", x)
    b.output("known", b.constant(values(3)))
    b.output("y", b.op("Neg", x))
    plan = planned(double, b.build(), outputs_on="cuda:0")
    async with pl.Session(plan) as session:
        out = await session.run({"x": Library(double).array(values())})
    found = {name: cells(array) for name, array in out.items()}
    np.testing.assert_array_equal(found[plan.graph.outputs[0]], values())
    np.testing.assert_array_equal(found[plan.graph.outputs[1]], values(3))
    np.testing.assert_array_equal(found[plan.graph.outputs[2]], -values())


@pytest.mark.parametrize("seed", SEEDS)
async def test_shapes_within_bounds_are_handed_over_too(seed: int) -> None:
    double = CupyDouble(seed)
    plan = planned(double, sums("n"), bounds={"n": 16})
    async with pl.Session(plan) as session:
        for length in (16, 3, 9):
            x = Library(double).array(values(length=length))
            out = await session.run({"x": x, "h": np.ones(length, np.float32)})
            np.testing.assert_array_equal(cells(out["y"]), values(length=length) + 1)


async def test_empty_arrays_go_in_and_out() -> None:
    double = CupyDouble()
    plan = planned(double, sums(0), inputs_on="cuda:0", outputs_on="cuda:0")
    async with pl.Session(plan) as session:
        empty = Library(double).array(values(length=0))
        out = await session.run({"x": empty, "h": empty})
    assert [array.shape for array in out.values()] == [(0,), (0,)]


@st.composite
def placed(draw: st.DrawFn) -> tuple[Graph, dict[str, Any]]:
    """Draw a graph, its nodes pinned and its ends on the GPU or the host as it comes."""
    graph = draw(graphs(max_nodes=8))
    devices = st.sampled_from(["cuda:0", "cpu"])
    return graph, {
        "pin": {node.name: draw(devices) for node in graph.nodes},
        "inputs_on": {name: draw(devices) for name in graph.inputs},
        "outputs_on": {name: draw(devices) for name in graph.outputs},
        "max_in_flight": draw(st.integers(1, 3)),
        "passes": (),
    }


@settings(max_examples=25)
@given(placed(), st.sampled_from(SEEDS))
def test_whatever_is_where_results_are_right(case: tuple[Graph, dict[str, Any]], seed: int) -> None:
    graph, options = case
    double = CupyDouble(seed)
    library = Library(double)
    plan = planned(double, graph, **options)
    items = [feeds(graph, number) for number in range(4)]
    fed = (
        {
            name: library.array(array) if name in plan.ends.inputs else array
            for name, array in item.items()
        }
        for item in items
    )
    with pl.BlockingSession(plan) as session:
        for item, found in zip(items, session.stream(fed), strict=True):
            for name, wanted in expected(graph, item).items():
                result = cells(found[name]) if name in plan.ends.outputs else found[name]
                np.testing.assert_array_equal(result, wanted)


# results


async def reads_late(seed: int, *, copy: bool) -> bool:
    """Read results on the caller's stream, queued before they are let go; True if all are right."""
    double = CupyDouble(seed)
    h = np.ones(N, np.float32)

    async def source() -> AsyncIterator[dict[str, Any]]:
        for index in range(5):
            yield {"x": values(index), "h": h}

    async with pl.Session(planned(double, max_in_flight=2)) as session:
        with double.cuda.Device(0), double.cuda.Stream(non_blocking=True) as stream:
            async with session.stream(source(), copy=copy) as results:
                readings = [read_later(double, stream.ptr, item["y"]) async for item in results]
        found = [reading() for reading in readings]
    return all(np.array_equal(y, values(index) + 1) for index, y in enumerate(found))


@pytest.mark.parametrize("copy", [True, False])
async def test_memory_of_a_result_is_not_used_again_before_its_reader_is_through(
    copy: bool,
) -> None:
    assert all([await reads_late(seed, copy=copy) for seed in SEEDS])


@pytest.mark.parametrize("copy", [True, False])
async def test_without_the_wait_for_readers_they_read_what_comes_later(
    copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CupyDouble, "_record", lambda self, event, stream: None)
    assert not all([await reads_late(seed, copy=copy) for seed in SEEDS])


async def test_results_that_are_not_copied_lie_where_they_were_planned() -> None:
    double = CupyDouble()
    async with pl.Session(planned(double)) as session:
        feed = {"x": values(), "h": np.ones(N, np.float32)}
        async with session.stream([feed, feed], copy=False) as results:
            places = [item["y"].data.mem async for item in results]
    assert places[0] is places[1]


async def test_a_stream_whose_results_are_not_copied_allocates_nothing_on_the_gpu() -> None:
    double = CupyDouble()
    arrays = [Library(double).array(values(index)) for index in range(3)]
    h = np.ones(N, np.float32)
    async with pl.Session(planned(double, max_in_flight=2)) as session:
        before = double.gpu.live_bytes
        feeds = ({"x": arrays[index % 3], "h": h} for index in range(12))
        async with session.stream(feeds, copy=False) as results:
            async for item in results:
                assert double.gpu.live_bytes == before
                np.testing.assert_array_equal(cells(item["y"]), values(item.index % 3) + 1)


async def test_the_profile_knows_the_copies_to_and_from_the_caller() -> None:
    double = CupyDouble()
    plan = planned(double)
    async with pl.Session(plan, measure=True) as session:
        for _ in range(3):
            await session.run({"x": values(), "h": np.ones(N, np.float32)})
        profile = session.profile()
    assert {"x: caller to cuda:0", "y: cuda:0 to caller"} <= {
        step.name for part in profile.records[0].parts for step in part.steps
    }
    links = Costs.from_profile(profile, plan).links
    assert {("caller", "cuda:0"), ("cuda:0", "caller")} <= links.keys()


async def test_a_copy_outlives_its_slot_and_its_session() -> None:
    double = CupyDouble()
    async with pl.Session(planned(double)) as session:
        first, second = [
            (await session.run({"x": values(i), "h": np.ones(N, np.float32)}))["y"]
            for i in range(2)
        ]
    np.testing.assert_array_equal(cells(first), values(0) + 1)
    np.testing.assert_array_equal(cells(second), values(1) + 1)


async def test_too_little_memory_for_a_result_fails_the_item_alone() -> None:
    double = CupyDouble()
    feed = {"x": values(), "h": np.ones(N, np.float32)}
    async with pl.Session(planned(double)) as session:
        room, double.gpu.memory_bytes = double.gpu.memory_bytes, 0
        with pytest.raises(pl.DeviceError, match="too little memory"):
            await session.run(feed)
        double.gpu.memory_bytes = room
        out = await session.run(feed)
        np.testing.assert_array_equal(cells(out["y"]), values() + 1)


# other threads


@pytest.mark.parametrize("seed", SEEDS)
def test_a_blocking_session_takes_the_order_from_the_thread_of_its_caller(seed: int) -> None:
    double = CupyDouble(seed)
    library, h = Library(double), np.ones(N, np.float32)
    with pl.BlockingSession(planned(double)) as session:
        out = session.run({"x": library.array(values()), "h": h})
        np.testing.assert_array_equal(cells(out["y"]), values() + 1)
        feeds = ({"x": library.array(values(index)), "h": h} for index in range(4))
        for index, item in enumerate(session.stream(feeds)):
            np.testing.assert_array_equal(cells(item["y"]), values(index) + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_so_does_a_session_for_asyncio(seed: int) -> None:
    double = CupyDouble(seed)
    library, h = Library(double), np.ones(N, np.float32)

    async def main() -> Any:
        async with pl.AsyncioSession(planned(double)) as session:
            return (await session.run({"x": library.array(values()), "h": h}))["y"]

    np.testing.assert_array_equal(cells(asyncio.run(main())), values() + 1)


# what is refused


async def test_an_array_of_the_wrong_dtype_or_shape_is_refused() -> None:
    double = CupyDouble()
    library, h = Library(double), np.ones(N, np.float32)
    async with pl.Session(planned(double)) as session:
        with pytest.raises(FeedError, match="must be float32"):
            await session.run({"x": library.array(values().astype(np.int32)), "h": h})
        with pytest.raises(FeedError, match="got shape"):
            await session.run({"x": library.array(values(length=5)), "h": h})
        await session.run({"x": library.array(values()), "h": h})


async def test_an_array_on_another_gpu_is_refused() -> None:
    double = CupyDouble(devices=2)
    there, h = Library(double, device=1), np.ones(N, np.float32)
    async with pl.Session(planned(double)) as session:
        for kind in (Shared, Described):
            with pytest.raises(FeedError, match=r"device"):
                await session.run({"x": there.array(values(), kind), "h": h})


async def test_an_array_on_a_device_is_refused_where_one_of_the_host_is_expected() -> None:
    double = CupyDouble()
    library = Library(double)
    async with pl.Session(planned(double)) as session:
        for kind in (Shared, Described):
            with pytest.raises(FeedError, match="inputs_on"):
                await session.run({"x": values(), "h": library.array(values(), kind)})


async def test_what_another_library_cannot_share_is_the_error_of_its_item() -> None:
    class Stubborn(Shared):
        def __dlpack__(self, *, stream: int) -> Any:
            raise BufferError("it has a gradient")

    double = CupyDouble()
    library, h = Library(double), np.ones(N, np.float32)
    feeds = [{"x": library.array(values(), kind), "h": h} for kind in (Shared, Stubborn, Shared)]
    async with pl.Session(planned(double)) as session:
        async with session.stream(feeds, max_in_flight=2) as results:
            errors = [item.error async for item in results]
    assert [type(error) for error in errors] == [type(None), FeedError, type(None)]
    assert "it has a gradient" in str(errors[1])


async def test_batches_are_not_stacked_on_devices() -> None:
    async with pl.Session(planned(CupyDouble())) as session:
        with pytest.raises(SessionError, match="not stacked"):
            session.stream([], batch=2, max_in_flight=2)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"inputs_on": {"q": "cuda:0"}}, "names 'q'"),
        ({"outputs_on": "cuda:7"}, "does not have"),
        ({"inputs_on": 3}, "inputs_on is 3"),
    ],
)
def test_ends_that_are_not_there_are_refused(ends: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned(CupyDouble(), **ends)


def test_a_device_that_shares_no_arrays_is_refused() -> None:
    with pytest.raises(PlanError, match="shares no arrays"):
        pl.plan(sums(), ["sim:npu", "cpu"], inputs_on="sim:npu")


def test_devices_that_items_take_turns_on_are_refused() -> None:
    with pytest.raises(PlanError, match="take turns"):
        pl.plan(sums(), ["cpu", "worker:0..1"], inputs_on="worker:0")


def test_a_device_of_the_host_is_no_end_of_its_own() -> None:
    assert pl.plan(sums(), ["cpu"], inputs_on="cpu") == pl.plan(sums(), ["cpu"])


# the rest of plait


def test_a_saved_plan_keeps_its_ends(tmp_path: Path) -> None:
    double = CupyDouble()
    plan = planned(double)
    plan.save(tmp_path / "sums.plan")
    loaded = pl.load_plan(tmp_path / "sums.plan", [double.device()])
    assert loaded == plan
    assert loaded.to_dict()["inputs_on"] == {"x": "cuda:0"}


def test_a_simulation_copies_within_the_device_only() -> None:
    plan = planned(CupyDouble(), inputs_on="cuda:0", outputs_on="cuda:0")
    simulated = pl.simulate(plan, items=4)
    assert set(simulated.memory) == {"cuda:0"}


def large() -> Graph:
    b = pl.GraphBuilder("large")
    h = b.input("x", "float32", (1 << 20,))
    for op in ("Exp", "Neg", "Sqrt"):
        h = b.op(op, h)
    b.output("y", h)
    return b.build()


def test_nodes_go_to_where_their_inputs_are_and_their_outputs_are_wanted() -> None:
    double = CupyDouble()

    def devices_of(**ends: Any) -> set[str]:
        model = DeviceModel(copy_bytes_per_s=1e8)  # the cpu is sooner done than a copy
        costs = Costs({"cuda:0": model, "cpu": DeviceModel(bytes_per_s=1e9, flops_per_s=1e9)})
        plan = pl.plan(large(), ["cpu", double.device()], costs=costs, **ends)
        return set(plan.assignment.values())

    assert devices_of() == {"cpu"}
    assert devices_of(inputs_on="cuda:0", outputs_on="cuda:0") == {"cuda:0"}


def test_estimates_count_where_inputs_and_outputs_are() -> None:
    devices = {"cuda:0": CupyDouble().device(), "cpu": pl.devices.find("cpu")}
    costs, graph = Costs.of(devices), large()
    seconds = [[1e-3, 1e-3] for _ in graph.nodes]
    capacity = Capacity.of(graph, devices, None, 1)

    def estimated(ends: IoDevices, device: int) -> float:
        given = PartitionProblem(graph, devices, costs, seconds, 0, None, capacity, 0.0, ends)
        return given.estimate([device] * 3).seconds

    copy_s = costs.copy_s("host", "cuda:0", 4 << 20)
    there = IoDevices({"x": "cuda:0"}, {graph.outputs[0]: "cuda:0"})
    assert estimated(ON_HOST, 0) - estimated(there, 0) == pytest.approx(2 * copy_s)
    assert estimated(there, 1) - estimated(ON_HOST, 1) == pytest.approx(2 * copy_s)


async def test_an_item_whose_gpu_was_lost_is_not_run_again() -> None:
    double = CupyDouble()
    library, h = Library(double), np.ones(N, np.float32)
    async with pl.Session(planned(double)) as session:
        double.gpu.break_next()
        with pytest.raises(pl.DeviceLostError, match="feed it again"):
            await session.run({"x": library.array(values()), "h": h})


async def test_a_result_that_is_dropped_frees_its_memory_at_once() -> None:
    double = CupyDouble()
    feed = {"x": values(), "h": np.ones(N, np.float32)}
    gc.disable()
    try:
        async with pl.Session(planned(double)) as session:
            await session.run(feed)
            before = double.gpu.live_bytes
            for _ in range(20):
                await session.run(feed)
            assert double.gpu.live_bytes - before <= 2 * 4 * N
    finally:
        gc.enable()
