"""Resources of nodes are opened with a plan, private to it, and closed with it in any case."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from owning_operators import Total, places, read
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.faults.open_devices import close_shared, open_shared


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerDevice]:
    """Return a worker that stays open: starting one takes longer than most tests."""
    device = WorkerDevice("worker:0")
    open_shared(device, 1)
    yield device
    close_shared(device)


@pytest.fixture(params=["cpu", "formal", "worker:0"])
def device(request: pytest.FixtureRequest, worker: WorkerDevice) -> Device:
    """Return a device that runs what owns something, given to the plan as an object."""
    return worker if request.param == worker.name else pl.devices.find(request.param)


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


def graph(diary: Path, *nodes: dict[str, Any], shape: Any = (2,)) -> pl.Graph:
    """Return a chain of nodes that own something, each with its attributes."""
    b = pl.GraphBuilder("owning")
    y = b.input("x", "float32", shape)
    for index, attributes in enumerate(nodes or ({},)):
        y = b.call(Total, y, diary=str(diary), name=f"node{index}", **attributes)
    b.output("y", y)
    return b.build()


def ones(length: int = 2) -> dict[str, Array]:
    return {"x": np.ones(length, np.float32)}


async def test_it_is_opened_once_used_for_every_item_and_closed(
    device: Device, diary: Path
) -> None:
    plan = pl.plan(graph(diary), [device], max_in_flight=3)
    assert read(diary) == []
    async with pl.Session(plan) as session:
        assert read(diary) == ["a open:-"]
        results = [(await session.run(ones()))["y"][0] for _ in range(4)]
    assert results == [3, 5, 7, 9]
    assert read(diary) == ["a open:-", *["a run"] * 4, "a close"]
    assert len(places(diary)) == 1


async def test_items_of_a_stream_share_it_in_their_order(device: Device, diary: Path) -> None:
    plan = pl.plan(graph(diary), [device], max_in_flight=3)
    async with (
        pl.Session(plan) as session,
        session.stream(ones() for _ in range(6)) as results,
    ):
        assert [item["y"][0] async for item in results] == [3, 5, 7, 9, 11, 13]


async def test_two_sessions_of_a_plan_share_nothing_even_on_one_device(
    device: Device, diary: Path
) -> None:
    plan = pl.plan(graph(diary), [device])
    async with pl.Session(plan) as one, pl.Session(plan) as other:
        for wanted in (3, 5):
            assert (await one.run(ones()))["y"][0] == wanted
        assert (await other.run(ones()))["y"][0] == 3
    assert read(diary).count("a open:-") == read(diary).count("a close") == 2


async def test_each_node_has_its_own_opened_in_order_and_closed_in_reverse(
    device: Device, diary: Path
) -> None:
    plan = pl.plan(graph(diary, {"label": "a"}, {"label": "b"}), [device])
    async with pl.Session(plan) as session:
        assert (await session.run(ones()))["y"][0] == 3 + 6
    assert read(diary) == ["a open:-", "b open:-", "a run", "b run", "b close", "a close"]


async def test_open_sees_constants_and_what_follows_from_them(device: Device, diary: Path) -> None:
    b = pl.GraphBuilder("weights")
    x = b.input("x", "float32", (2,))
    constant = b.constant(np.array([1, 2], np.float32), name="w")
    computed = b.op("Mul", constant, np.array([2, 4], np.float32))
    first = b.call(Total, x, constant, diary=str(diary), label="a")
    b.output("y", b.call(Total, first, computed, diary=str(diary), label="b"))
    plan = pl.plan(b.build(), [device], passes=["-fold_constants"])
    assert plan.prologue is not None
    async with pl.Session(plan):
        assert read(diary) == ["a open:-3", "b open:-10"]


@pytest.mark.parametrize("shape", [(2,), ("n",)], ids=["known", "varying"])
async def test_what_cannot_be_opened_names_its_node_and_leaves_nothing_open(
    device: Device, shape: Any, diary: Path
) -> None:
    made = graph(diary, {"label": "a"}, {"label": "b", "fails": "open"}, shape=shape)
    with pytest.raises(pl.KernelError, match="nothing to open") as info:
        async with pl.Session(pl.plan(made, [device])) as session:
            await session.run(ones())
    assert "node 'node1'" in str(info.value.at)
    assert f"device {device.name!r}, when it was opened" in str(info.value.at)
    del info  # it is in a cycle with this frame, and holds views of shared memory
    assert read(diary) == ["a open:-", "b open:-", "a close"]


async def test_an_item_that_fails_leaves_it_open(device: Device, diary: Path) -> None:
    async with pl.Session(pl.plan(graph(diary, {"fails": "run"}), [device])) as session:
        with pytest.raises(pl.KernelError, match="negative"):
            await session.run({"x": np.array([-1, 0], np.float32)})
        assert (await session.run(ones()))["y"][0] == 3
    assert read(diary) == ["a open:-", "a run", "a run", "a close"]


async def test_what_cannot_be_closed_is_told_and_the_rest_is_closed(
    device: Device, diary: Path
) -> None:
    plan = pl.plan(graph(diary, {"label": "a"}, {"label": "b", "fails": "close"}), [device])
    with pytest.raises(pl.KernelError, match="nothing to close") as info:
        async with pl.Session(plan):
            pass
    assert "node 'node1'" in str(info.value.at)
    assert read(diary)[2:] == ["b close", "a close"]


async def test_plans_for_other_shapes_have_their_own_until_they_give_way(diary: Path) -> None:
    plan = pl.plan(graph(diary, shape=("n",)), ["cpu"])
    async with pl.Session(plan) as session:
        for length in (1, 2, 1, 3, 4, 5, 6, 7, 8):
            await session.run(ones(length))
        assert read(diary).count("a open:-") == 8
        assert read(diary).count("a close") == 0
    assert read(diary).count("a close") == 8


async def test_what_fails_when_its_plan_gives_way_fails_no_item(diary: Path) -> None:
    b = pl.GraphBuilder("matrix")
    x = b.input("x", "float32", ("n", "m"))
    flat = b.op("Reshape", x, np.array([-1]))
    b.output("y", b.call(Total, flat, diary=str(diary), fails="close"))
    shapes = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (4, 1), (1, 4), (5, 1), (1, 5)]
    with pytest.raises(pl.KernelError, match="nothing to close"):
        async with pl.Session(pl.plan(b.build(), ["cpu"])) as session:
            for shape in shapes:
                await session.run({"x": np.ones(shape, np.float32)})
            assert read(diary).count("a close") == 2


async def test_shapes_within_bounds_share_one(diary: Path) -> None:
    plan = pl.plan(graph(diary, shape=("n",)), ["cpu"], bounds={"n": 8})
    async with pl.Session(plan) as session:
        results = [(await session.run(ones(length)))["y"][0] for length in (2, 3, 1)]
    assert results == [1 + 2, 1 + 5, 1 + 6]
    assert read(diary) == ["a open:-", *["a run"] * 3, "a close"]


async def test_a_check_that_needs_shapes_is_made_when_they_are_known(diary: Path) -> None:
    async with pl.Session(pl.plan(graph(diary, shape=("n",)), ["cpu"])) as session:
        with pytest.raises(pl.GraphError, match=r"size of input 'x' of .*Total must be ≤ 8, got 9"):
            await session.run(ones(9))
        assert (await session.run(ones(1)))["y"][0] == 2
    assert read(diary) == ["a open:-", "a run", "a close"]


async def test_replicas_have_their_own(diary: Path) -> None:
    plan = pl.plan(graph(diary), ["worker:0..1"], max_in_flight=2)
    async with (
        pl.Session(plan) as session,
        session.stream(ones() for _ in range(6)) as results,
    ):
        sums = sorted([item["y"][0] async for item in results])
    assert sums == [3, 3, 5, 5, 7, 7]
    assert read(diary).count("a open:-") == read(diary).count("a close") == len(places(diary)) == 2


async def test_what_a_worker_owned_is_opened_again_when_it_has_died(diary: Path) -> None:
    worker = WorkerDevice("worker:0")
    async with pl.Session(pl.plan(graph(diary), [worker])) as session:
        assert (await session.run(ones()))["y"][0] == 3
        assert worker._client is not None
        worker._client._process.kill()
        assert (await session.run(ones()))["y"][0] == 3
    assert read(diary)[-3:] == ["a open:-", "a run", "a close"]


def test_devices_that_keep_nothing_say_so(diary: Path) -> None:
    with pytest.raises(pl.UnsupportedOpError, match="operators that own something do not run on"):
        pl.plan(graph(diary), ["sim:npu"])


def test_planning_and_simulating_open_nothing(diary: Path) -> None:
    plan = pl.plan(graph(diary), ["cpu"])
    pl.simulate(plan)
    assert plan.report()
    assert read(diary) == []


async def test_what_cannot_be_opened_on_one_device_is_closed_on_others(
    worker: WorkerDevice, diary: Path
) -> None:
    made = graph(diary, {"label": "a"}, {"label": "b"}, {"label": "c", "fails": "open"})
    plan = pl.plan(made, ["cpu", worker], pin={"node1": worker.name, "node*": "cpu"})
    with pytest.raises(pl.KernelError, match="nothing to open"):
        async with pl.Session(plan):
            pass
    assert read(diary) == ["a open:-", "b open:-", "c open:-", "b close", "a close"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fails=st.lists(st.sampled_from(["", "open", "run", "close"]), min_size=1, max_size=4),
    shape=st.sampled_from([(2,), ("n",)]),
    signs=st.lists(st.sampled_from([-1, 1]), max_size=3),
)
def test_whatever_fails_what_was_opened_is_closed_once_in_reverse(
    fails: list[str], shape: Any, signs: list[int], diary: Path
) -> None:
    diary.write_text("")
    nodes = [{"label": str(index), "fails": what} for index, what in enumerate(fails)]
    plan = pl.plan(graph(diary, *nodes, shape=shape), ["cpu"])

    async def main() -> None:
        async with pl.Session(plan) as session:
            for sign in signs:
                with suppress(pl.KernelError):
                    await session.run({"x": sign * ones()["x"]})

    with suppress(pl.KernelError):
        trio.run(main)
    happened = [line for line in read(diary) if "run" not in line]
    lives = [[]] if not happened else split_before(happened, "0 open:-")
    for life in lives:
        tried = [line.split()[0] for line in life if "open" in line]
        opened = [label for label in tried if fails[int(label)] != "open"]
        assert tried == sorted(tried)
        assert [line.split()[0] for line in life if "close" in line] == opened[::-1]


def split_before(lines: list[str], first: str) -> list[list[str]]:
    """Return the parts that begin with a certain line."""
    starts = [index for index, line in enumerate(lines) if line == first]
    return [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]


def branch(name: str, diary: Path | None) -> Graph:
    """Return a graph of one node, which owns something where there is a diary."""
    b = pl.GraphBuilder(name)
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Neg", x) if diary is None else b.call(Total, x, diary=str(diary)))
    return b.build()


async def test_nodes_in_branches_are_opened_when_their_branch_is_first_taken(diary: Path) -> None:
    b = pl.GraphBuilder("choose")
    x = b.input("x", "float32", (2,))
    positive = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    then, other = branch("then", diary), branch("else", None)
    b.output("y", b.op("If", positive, x, then_branch=then, else_branch=other))
    async with pl.Session(pl.plan(b.build(), ["cpu"])) as session:
        await session.run({"x": -ones()["x"]})
        assert read(diary) == []
        results = [(await session.run(ones()))["y"][0] for _ in range(2)]
    assert results == [3, 5]
    assert read(diary) == ["a open:-", "a run", "a run", "a close"]


async def test_a_session_that_is_cancelled_while_it_opens_closes_what_is_open(
    diary: Path, forget_operators: None
) -> None:
    opening, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    @pl.operator(name="test_owning.Slow")
    class Slow(Total):
        def open(self, inputs: Sequence[Array | None]) -> None:
            super().open(inputs)
            token.run_sync_soon(opening.set)
            go_on.wait()

    b = pl.GraphBuilder("slow")
    b.output("y", b.call(Slow, b.input("x", "float32", (2,)), diary=str(diary)))

    async def open_session() -> None:
        async with pl.Session(pl.plan(b.build(), ["cpu"])):
            raise AssertionError("it was cancelled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_session)
        await opening.wait()
        nursery.cancel_scope.cancel()
        go_on.set()
    assert read(diary) == ["a open:-", "a close"]


class Liar(CpuDevice):
    """Says that it runs what owns something, and cannot."""

    compile_with = None  # type: ignore[assignment]


async def test_a_device_that_promises_too_much_is_named(diary: Path) -> None:
    with pytest.raises(pl.DeviceError, match="'liar' says that it runs operators which own"):
        async with pl.Session(pl.plan(graph(diary), [Liar("liar")])):
            pass
    assert read(diary) == []
