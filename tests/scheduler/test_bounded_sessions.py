"""Sessions over plans with bounds: all shapes in the memory of the largest, right bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from every_device import ONCE, Subject, parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.devices.memory import Arena
from plait.devices.sim import SimDevice
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.scheduler.plans.regions import Region
from plait.scheduler.runtime.opened import binding, open_plans
from plait.scheduler.runtime.opened.arenas import OpenArenas, copy_of
from staged import ringed
from varying_shapes import (
    WIDTH,
    by_itself,
    finding,
    open_graphs,
    rows,
    stacked,
    stacked_by_numpy,
    switching,
    two_steps,
    two_steps_by_numpy,
)

SECOND = {"exp": "cpu:1", "second": "cpu:1"}
LENGTHS = [5, 64, 1, 17, 5, 63, 2, 64, 9, 17, 33, 5]


def planned(max_in_flight: int = 3, graph: Graph | None = None) -> pl.Plan:
    pins = SECOND if graph is None else {}
    return pl.plan(
        graph or two_steps(),
        ["cpu", "cpu:1"],
        pin=pins,
        bounds={"n": 64},
        max_in_flight=max_in_flight,
        strategy="preference",
    )


async def check_stream(
    session: pl.Session, lengths: list[int], max_in_flight: int | None = None
) -> None:
    """Stream items of these lengths and compare with numpy."""
    feeds = [rows(length, index) for index, length in enumerate(lengths)]
    async with session.stream(feeds, max_in_flight=max_in_flight) as results:
        count = 0
        async for item in results:
            wanted = two_steps_by_numpy(feeds[item.index]["x"])
            np.testing.assert_array_equal(item["y"], wanted)
            count += 1
    assert count == len(lengths)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of all arenas that are allocated from now on."""
    sizes: list[int] = []
    allocate = OpenArenas._allocate

    def watched(self: OpenArenas, region: Region, copy: int, stack: ExitStack) -> Arena:
        sizes.append(region.nbytes)
        return allocate(self, region, copy, stack)

    monkeypatch.setattr(OpenArenas, "_allocate", watched)
    return sizes


async def test_no_arena_is_allocated_for_a_shape_within_bounds(allocated: list[int]) -> None:
    async with pl.Session(planned()) as session:
        opened = len(allocated)
        await check_stream(session, LENGTHS)
        await check_stream(session, list(range(1, 65)))
    assert opened == len(allocated) > 0


async def test_shapes_that_were_forgotten_come_back_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, allocated: list[int]
) -> None:
    monkeypatch.setattr(open_plans, "KEPT_SIZES", 2)
    async with pl.Session(planned()) as session:
        opened = len(allocated)
        await check_stream(session, LENGTHS * 3)
        assert session._runtime is not None
        assert len(session._runtime._open_plans._resized._slots) == 2
    assert opened == len(allocated)


async def test_what_bound_programs_take_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_plans, "KEPT_NBYTES", 0)
    async with pl.Session(planned()) as session:
        await check_stream(session, LENGTHS)
        assert session._runtime is not None
        assert len(session._runtime._open_plans._resized._slots) == 1


async def test_more_items_in_flight_have_one_plan_too(allocated: list[int]) -> None:
    async with pl.Session(planned(max_in_flight=1)) as session:
        await check_stream(session, [64], max_in_flight=4)
        await check_stream(session, LENGTHS[:4], max_in_flight=4)
        before = len(allocated)
        await check_stream(session, LENGTHS, max_in_flight=4)
        assert len(allocated) - before <= 3  # slots are made when they are first needed


async def test_items_of_different_shapes_share_slots_in_turn() -> None:
    """With fewer copies than items in flight, they wait for each other, whatever their shapes."""
    plan = ringed(planned(max_in_flight=4), 2)
    async with pl.Session(plan) as session:
        await check_stream(session, LENGTHS * 4)


async def test_views_of_one_shape_outlive_items_of_others() -> None:
    async with pl.Session(planned()) as session:
        feeds = [rows(length, index) for index, length in enumerate(LENGTHS)]
        async with session.stream(feeds, copy=False) as results:
            async for item in results:
                wanted = two_steps_by_numpy(feeds[item.index]["x"])
                await trio.testing.wait_all_tasks_blocked()
                np.testing.assert_array_equal(item["y"], wanted)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    graph=open_graphs(),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    placement=st.integers(0, 1 << 30),
)
def test_any_graph_yields_what_a_plan_for_each_shape_does(
    graph: Graph, lengths: list[int], placement: int
) -> None:
    random = np.random.default_rng(placement)
    pins = {node.name: ("cpu", "cpu:1")[random.integers(2)] for node in graph.nodes}
    plan = pl.plan(graph, ["cpu", "cpu:1"], pin=pins, bounds={"n": 9}, max_in_flight=3, passes=())
    feeds = [rows(length, index) for index, length in enumerate(lengths)]

    async def stream() -> list[dict[str, np.ndarray]]:
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [dict(item.outputs) async for item in results]

    for inputs, found in zip(feeds, trio.run(stream), strict=True):
        for name, wanted in by_itself(graph, inputs).items():
            np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("subject", parameters(ONCE))
async def test_every_device_runs_smaller_shapes(subject: Subject) -> None:
    device = subject.make_for_session()
    with subject.skipped_if_missing():
        _ = device.capabilities
    plan = pl.plan(
        stacked(), [device, "cpu:1"], bounds={"n": 64}, max_in_flight=2, strategy="preference"
    )
    feeds = [rows(length, index) for index, length in enumerate(LENGTHS)]
    with subject.skipped_if_missing():
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            async for item in results:
                for name, wanted in stacked_by_numpy(feeds[item.index]["x"]).items():
                    np.testing.assert_allclose(item[name], wanted, rtol=1e-5, atol=1e-6)


async def test_replicas_each_have_the_memory_of_the_largest(allocated: list[int]) -> None:
    plan = pl.plan(
        two_steps(),
        ["cpu", "worker:0..1"],
        pin={"exp": "worker:0..1", "*": "cpu"},
        bounds={"n": 64},
        max_in_flight=4,
    )
    async with pl.Session(plan) as session:
        opened = len(allocated)
        await check_stream(session, LENGTHS * 2)
    assert opened == len(allocated)


async def test_what_does_not_fit_has_a_plan_of_its_own() -> None:
    async with pl.Session(planned(graph=switching())) as session:
        for length in (8, 2, 8, 3, 2):
            inputs = rows(length)
            wanted = np.abs(inputs["x"])
            wanted = -wanted if length < 4 else np.exp(wanted)
            np.testing.assert_array_equal((await session.run(inputs))["y"], wanted)
        assert session._runtime is not None
        assert len(session._runtime._open_plans._slots) == 3  # the largest, two and three rows


async def test_shapes_that_only_values_tell_are_refused_and_the_others_go_on() -> None:
    graph = switching(few=finding())
    async with pl.Session(planned(graph=graph)) as session:
        for length in (8, 2, 5, 2, 7):
            inputs = rows(length)
            if length < 4:
                with pytest.raises(pl.PlanError, match="not all shapes follow from those"):
                    await session.run(inputs)
            else:
                found = (await session.run(inputs))["y"]
                np.testing.assert_array_equal(found, np.exp(np.abs(inputs["x"])))


async def test_what_is_out_of_bounds_is_refused_and_the_others_go_on() -> None:
    feeds = [rows(64), rows(65), rows(0), rows(3)]
    async with pl.Session(planned()) as session, session.stream(feeds) as results:
        errors = [item.error async for item in results]
    assert [type(error) for error in errors] == [type(None), pl.FeedError, pl.FeedError, type(None)]
    assert isinstance(errors[1], pl.FeedError)
    assert errors[1].what == "input 'x' has n = 65, out of its bounds 1 to 64"
    assert errors[1].fix == "plan with wider bounds: bounds={'n': (1, 65)}"
    assert isinstance(errors[2], pl.FeedError)
    fix = "feed no empty arrays, or plan for these, too: bounds={'n': (0, 64)}"
    assert errors[2].fix == fix


async def test_no_rows_at_all_are_a_shape_like_others() -> None:
    plan = pl.plan(two_steps(), bounds={"n": (0, 8)})
    async with pl.Session(plan) as session:
        assert (await session.run(rows(0)))["y"].shape == (0, WIDTH)


async def test_batches_of_any_number_of_rows_run_within_bounds(allocated: list[int]) -> None:
    async with pl.Session(planned()) as session:
        opened = len(allocated)
        async with session.stream([rows(1, index) for index in range(13)], batch=8) as results:
            async for item in results:
                wanted = two_steps_by_numpy(rows(1, item.index)["x"])
                np.testing.assert_allclose(item["y"], wanted, rtol=1e-6)
    assert opened == len(allocated)


async def test_what_stands_in_for_a_lost_device_runs_all_shapes_too() -> None:
    sim = SimDevice("sim:a")
    plan = pl.plan(
        two_steps(),
        ["cpu", sim],
        pin={"exp": "sim:a"},
        bounds={"n": 64},
        max_in_flight=2,
        strategy="preference",
    )

    def source() -> Iterator[dict[str, np.ndarray]]:
        for index, length in enumerate(LENGTHS * 4):
            if index % 12 == 7:
                sim.lose()
            yield rows(length, index)

    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0, replays=8)
        async with pl.Session(plan, faults=policy) as session:
            async with session.stream(source()) as results:
                async for item in results:
                    inputs = rows((LENGTHS * 4)[item.index], item.index)
                    np.testing.assert_allclose(
                        item["y"], two_steps_by_numpy(inputs["x"]), rtol=1e-6
                    )


async def test_copies_kept_for_a_loss_take_no_more_room_for_many_shapes() -> None:
    width, lengths = 4096, range(1, 65)
    b = pl.GraphBuilder("wide")
    b.output("y", b.op("ReduceMax", b.input("x", "float32", ("n", width)), keepdims=0))
    plan = pl.plan(b.build(), SimDevice("sim:a"), bounds={"n": 64})
    async with pl.Session(plan) as session:
        whole = np.zeros((64, width), np.float32)
        await session.run({"x": whole})
        tracemalloc.start()
        for length in lengths:
            await session.run({"x": whole[:length]})
        growth, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert growth < 4 * whole.nbytes  # a copy of each would be 32 times as much


def function_alone() -> Graph:
    """Return a graph of one Python function."""
    b = pl.GraphBuilder("sum")
    b.output("y", b.call(summed, b.input("x", "float32", ("n", WIDTH)), name="sum"))
    return b.build()


@pl.operator(
    pl.TensorSpec("float32", (1, 1)),
    inputs=[pl.TensorSpec("float32", ("n", WIDTH))],
    name="bounded_sessions.summed",
)
def summed(x: Any) -> Any:
    return x.sum(keepdims=True)


@pl.operator(
    pl.TensorSpec("float32", ("n", WIDTH)),
    inputs=[
        pl.TensorSpec("float32", ("n", WIDTH)),
        pl.TensorSpec("float32", (WIDTH,)),
        pl.TensorSpec("int64", (2,)),
    ],
    name="bounded_sessions.scaled",
)
def scaled(x: Any, weights: Any, sizes: Any) -> Any:
    return x * sizes[0].astype(x.dtype) + weights


@pytest.mark.parametrize("device", ["cpu", "compiled"])
def test_scratch_may_be_needed_at_some_lengths_only(device: str) -> None:
    """A cache of frames that begins empty: the convolution needs other buffers as it grows."""
    if not pl.devices.probe(device).found:
        pytest.skip(f"{device} is not here")
    weights = np.random.default_rng(0).standard_normal((3, 2, 3)).astype(np.float32)
    b = pl.GraphBuilder("stream")
    x, cache = b.input("x", "float32", (1, 2, 4)), b.input("cache", "float32", (1, 2, "t"))
    frames = b.op("Concat", cache, x, axis=2)
    b.output("y", b.op("Conv", frames, weights, name="conv"))
    random = np.random.default_rng(1)
    with pl.BlockingSession(pl.plan(b.build(), device, bounds={"t": (0, 64)})) as session:
        for length in (0, 40, 7, 4, 0, 12, 64, 3):
            fed = random.standard_normal((1, 2, length + 4)).astype(np.float32)
            item = {"x": fed[..., length:], "cache": fed[..., :length]}
            windows = np.lib.stride_tricks.sliding_window_view(fed[0], 3, axis=1)
            wanted = np.einsum("cwk,ock->ow", windows, weights)
            np.testing.assert_allclose(session.run(item)["y"][0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "worker:0"])
@pytest.mark.parametrize("sees_length", [False, True])
async def test_functions_are_bound_to_further_lengths_without_compiling(
    device: str, sees_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless they read a length: that is a constant, and another one for each."""
    compiled = [0]
    for kind in (CpuDevice, WorkerDevice):
        compile_ = kind.compile

        def counted(*given: Any, compile_: Any = compile_, **more: Any) -> Any:
            compiled[0] += 1
            return compile_(*given, **more)

        monkeypatch.setattr(kind, "compile", counted)
    b = pl.GraphBuilder("scaled")
    x, weights = b.input("x", "float32", ("n", WIDTH)), np.arange(WIDTH, dtype=np.float32)
    b.output("y", b.call(scaled, x, weights, b.op("Shape", x) if sees_length else [2, 2]))
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(b.build(), device, bounds={"n": 64})) as session:
            await session.run(rows(64))
            before = compiled[0]
            for length in (5, 7, 64, 3):
                fed = rows(length)
                result = await session.run(fed)
                scale = np.float32(length if sees_length else 2)
                np.testing.assert_array_equal(result["y"], fed["x"] * scale + weights)
    assert compiled[0] - before == (3 if sees_length else 0)


@pytest.mark.parametrize("count", [1, 3], ids=["met once", "with a plan of its own"])
async def test_to_bind_a_new_length_takes_no_longer_the_more_steps_do_not_see_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the plan for the largest."""
    looked_up: list[Region] = []

    def counting(region: Region, *where: Any) -> int:
        looked_up.append(region)
        return copy_of(region, *where)

    monkeypatch.setattr(binding, "copy_of", counting)
    counts = []
    for tail in (1, 20):
        b = pl.GraphBuilder("tail")
        h = b.call(summed, b.input("x", "float32", ("n", WIDTH)), name="sum")
        for index in range(tail):
            h = b.op("Neg", h, name=f"tail{index}")
        b.output("y", h)
        pins = {"sum": "cpu", **{f"tail{n}": ("cpu:1", "cpu")[n % 2] for n in range(tail)}}
        plan = pl.plan(b.build(), ["cpu", "cpu:1"], pin=pins, bounds={"n": 64})
        assert len(plan.steps) > tail
        async with pl.Session(plan) as session:
            for length in (64, 3, 4):
                await session.run(rows(length))
            looked_up.clear()
            for length in [5, 7, 9] * count:
                result = await session.run(rows(length))
                assert result["y"].item() == (-1) ** tail * rows(length)["x"].sum()
        counts.append(len(looked_up))
    assert counts[0] == counts[1]
