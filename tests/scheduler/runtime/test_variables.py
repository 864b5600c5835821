"""Variables in sessions: what items see, when what they assign is there, and what callers see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial, partialmethod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_devices import PrivateDevice
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from moments import AtMoment, cancel_at_each_moment
from patience import WAIT_S
from plait.devices.device import OnDone
from plait.devices.errors import DeviceError
from plait.devices.event import Event
from plait.devices.memory import View
from plait.devices.opencl.device import OpenClDevice
from plait.devices.sim import SimDevice, SimModel
from plait.devices.sim.clock import VirtualClock
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.runtime.completion_poller import CompletionPoller
from pocl import pocl_device
from resources import held, left_since
from stateful_graphs import SHAPE, Oracle, int32, stateful
from trio.testing import MockClock


def counting(shape: tuple[int, ...] = (2,)) -> Graph:
    """Return a graph that adds x to `total`, counts in `count`, and tells the mean before."""
    b = pl.GraphBuilder("counting")
    total = b.variable("total", np.zeros(shape, np.float32))
    count = b.variable("count", np.float32(0))
    x = b.input("x", "float32", shape)
    b.output("before", b.op("Div", total, b.op("Max", count, 1.0), name="div"))
    more = b.assign(total, b.op("Add", total, x, name="add"), name="assign total")
    b.output("train", b.group(more, b.assign(count, b.op("Add", count, 1.0, name="one"))))
    return b.build()


def fed(value: float, shape: tuple[int, ...] = (2,)) -> dict[str, Array]:
    return {"x": np.full(shape, value, np.float32)}


async def train(session: pl.Session, values: list[float], shape: tuple[int, ...] = (2,)) -> None:
    """Run items, and compare with numpy; variables are those of a session just opened."""
    for index, value in enumerate(values):
        found = await session.run(fed(value, shape))
        mean = sum(values[:index]) / max(index, 1)
        np.testing.assert_allclose(found["before"], np.full(shape, mean), rtol=1e-6)
        assert found["train"].shape == (0,)
    assert session.variables["count"] == len(values)
    np.testing.assert_allclose(session.variables["total"], np.full(shape, sum(values)), rtol=1e-6)


def totals(session: pl.Session) -> tuple[float, float]:
    """Return what one element of the variables holds."""
    return float(session.variables["total"].flat[0]), float(session.variables["count"])


@pytest.mark.parametrize(
    ("devices", "pin"),
    [
        (["cpu"], {}),
        (["worker:0"], {}),
        (["cpu", "worker:0"], {"add": "worker:0", "*": "cpu"}),
        (["compiled"], {}),
        (["sim:npu", "cpu"], {"add": "sim:npu", "*": "cpu"}),
        (["sim:npu", "cpu"], {"*": "sim:npu"}),
    ],
)
async def test_items_see_what_those_before_assigned(
    devices: list[str], pin: dict[str, str]
) -> None:
    graph = counting()
    used = {name: device for name, device in pin.items() if name != "*"}
    rest = {node.name: pin["*"] for node in graph.nodes if "*" in pin and node.op != "Variable"}
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(graph, devices, pin={**rest, **used})) as session:
            await train(session, [1, 2, 3, 4])


async def test_the_loop_does_not_wait_for_a_copy_that_it_was_to_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Event, "wait", partialmethod(Event.wait, timeout_s=WAIT_S))
    promises: list[bool] = []
    own = CompletionPoller._attend
    monkeypatch.setattr(CompletionPoller, "_attend", lambda self: bool(promises) or own(self))
    double = CupyDouble(0)
    async with pl.Session(pl.plan(counting(), [double.device()])) as session:
        await session.run(fed(1))
        promises.append(True)
        assert session.variables["count"] == 1
        promises.clear()
    del session
    double.gpu.check_freed()


async def test_large_variables_are_committed_beside_the_loop() -> None:
    shape = (1 << 19,)
    async with pl.Session(pl.plan(counting(shape))) as session:
        await train(session, [1, 2, 3], shape)


@pytest.mark.parametrize("seed", SEEDS[:3])
async def test_a_gpu_keeps_variables_in_its_own_memory(seed: int) -> None:
    double = CupyDouble(seed)
    plan = pl.plan(counting(), [double.device()])
    assert plan.placement is not None
    assert {memory for _, memory in plan.placement.prepared} == {"cuda:0"}
    async with pl.Session(plan) as session:
        await train(session, [1, 2, 3])
    del session
    double.gpu.check_freed()


async def test_generated_kernels_read_and_assign_variables() -> None:
    device = OpenClDevice("opencl:0", device=pocl_device())
    async with pl.Session(pl.plan(counting(), [device])) as session:
        await train(session, [1, 2, 3])


async def test_simulated_devices_keep_variables_on_a_virtual_clock() -> None:
    device = SimDevice("sim:v", SimModel(), VirtualClock())
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(counting(), [device])) as session:
            await train(session, [1, 2, 3])


@settings(max_examples=40, deadline=None)
@given(graph=stateful(), seed=st.integers(0, 1 << 30))
def test_any_graph_with_variables_does_what_numpy_does(graph: Graph, seed: int) -> None:
    random = Random(seed)
    names = ["cpu:1", "cpu:2", "cpu"]
    pins = {node.name: random.choice(names) for node in graph.nodes if node.op != "Variable"}
    plan = pl.plan(graph, [*map(PrivateDevice, names[:2]), "cpu"], pin=pins, passes=())
    verify_memory(plan)
    simpler = pl.plan(graph)
    verify_memory(simpler)

    async def main(plan: pl.Plan) -> None:
        oracle = Oracle(graph)
        async with pl.Session(plan) as session:
            for value in range(3):
                feeds = {"x": int32(np.full(SHAPE, value + 1))}
                found, wanted = await session.run(feeds), oracle.run(feeds)
                for name in wanted:
                    np.testing.assert_array_equal(found[name], wanted[name])
                for name, array in oracle.values.items():
                    np.testing.assert_array_equal(session.variables[name], array)

    trio.run(main, plan)
    trio.run(main, simpler)


async def test_two_sessions_of_one_plan_share_nothing() -> None:
    plan = pl.plan(counting())
    async with pl.Session(plan) as one, pl.Session(plan) as other:
        await one.run(fed(1))
        assert (totals(one), totals(other)) == ((1, 1), (0, 0))
        await other.run(fed(5))
        assert (totals(one), totals(other)) == ((1, 1), (5, 1))


async def test_plans_for_other_shapes_and_fetches_share_variables() -> None:
    b = pl.GraphBuilder("rows")
    total = b.variable("total", np.zeros(2, np.float32))
    x = b.input("x", "float32", ("n", 2))
    rows = b.op("ReduceSum", x, np.array([0]), keepdims=False)
    b.output("y", b.op("Add", x, total))
    b.output("train", b.assign(total, b.op("Add", total, rows)))
    async with pl.Session(pl.plan(b.build())) as session:
        for n in (1, 3, 2):
            await session.run({"x": np.ones((n, 2), np.float32)})
        y = await session.run({"x": np.zeros((1, 2), np.float32)}, fetches="y")
        assert y.tolist() == [[6, 6]]
        assert (await session.run({}, fetches="total")).tolist() == [6, 6]
        assert session.variables["total"].tolist() == [6, 6]


async def test_bounded_plans_keep_variables() -> None:
    b = pl.GraphBuilder("rows")
    total = b.variable("total", np.zeros(2, np.float32))
    x = b.input("x", "float32", ("n", 2))
    rows = b.op("ReduceSum", x, np.array([0]), keepdims=False)
    b.output("train", b.assign(total, b.op("Add", total, rows)))
    async with pl.Session(pl.plan(b.build(), bounds={"n": 4})) as session:
        for n in (4, 1, 3):
            await session.run({"x": np.ones((n, 2), np.float32)})
        assert session.variables["total"].tolist() == [8, 8]


async def test_replicas_read_variables_that_callers_change() -> None:
    b = pl.GraphBuilder("reading")
    w = b.variable("w", np.ones(2, np.float32))
    b.output("y", b.op("Mul", b.input("x", "float32", (2,)), w))
    plan = pl.plan(b.build(), ["worker:0..1"], max_in_flight=2)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            for factor in (1, 5):
                await session.assign({"w": np.full(2, factor, np.float32)})
                async with session.stream(map(fed, range(6))) as results:
                    found = [float(item["y"][0]) async for item in results]
                assert found == [factor * value for value in range(6)]


async def test_streams_assign_in_the_order_of_their_source() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        async with session.stream(map(fed, [3, 1, 2])) as results:
            found = [float(item["before"][0]) async for item in results]
        assert found == [0, 3, 2]


async def test_runs_at_once_assign_one_after_the_other() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        async with trio.open_nursery() as nursery:
            for value in range(8):
                nursery.start_soon(session.run, fed(value))
        assert totals(session) == (28, 8)


async def test_readers_and_an_item_that_assigns_go_side_by_side() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        seen: list[float] = []

        async def read() -> None:
            seen.append(float((await session.run({}, fetches="total"))[0]))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(session.run, fed(1))
                nursery.start_soon(read)
        assert set(seen) <= {0, 1, 2, 3, 4, 5}
        assert totals(session) == (5, 5)


def failing(fails: list[bool]) -> Graph:
    """Return `counting` with a function behind it that fails when it is told to."""

    @pl.operator(name="variables.fail", effects=False)
    def fail(x: Array) -> Array:
        if fails[0]:
            raise ValueError("it was told to")
        return x

    b = pl.GraphBuilder("failing")
    total = b.variable("total", np.zeros(2, np.float32))
    count = b.variable("count", np.float32(0))
    x = b.input("x", "float32", (2,))
    b.assign(count, b.op("Add", count, 1.0))
    more = b.assign(total, b.op("Add", total, x))
    b.output("y", b.call(fail, more))
    return b.build()


async def test_an_item_that_fails_changes_no_variable() -> None:
    fails = [False]
    async with pl.Session(pl.plan(failing(fails))) as session:
        await session.run(fed(1))
        fails[0] = True
        with pytest.raises(pl.KernelError):
            await session.run(fed(5))
        assert totals(session) == (1, 1)
        fails[0] = False
        await session.run(fed(2))
        assert totals(session) == (3, 2)


class RefusingCopies(SimDevice):
    """Fails copies within its own memory when told to: those that commit what items assigned."""

    refuses = False

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        if not (self.refuses and {target.arena.memory, source.arena.memory} == {self.name}):
            return super().copy(target, source, waits, on_done)
        event = Event(on_done)
        event.complete(DeviceError("the copy failed"))
        return event


async def test_what_a_device_failed_to_commit_is_lost_until_it_is_assigned() -> None:
    """Half of it may be overwritten: neither the old value nor the new one is there."""
    b = pl.GraphBuilder("held")
    held, x = b.variable("held", np.zeros(2, np.float32)), b.input("x", "float32", (2,))
    more = b.op("Add", held, x)
    b.output("train", b.assign(held, more))
    b.output("after", b.op("Add", more, held))  # the old value is read behind the new one
    device = RefusingCopies("sim:a")
    async with pl.Session(pl.plan(b.build(), [device])) as session:
        await session.run(fed(1))
        assert session.variables["held"].tolist() == [1, 1]
        device.refuses = True
        with pytest.raises(DeviceError, match="the copy failed"):
            await session.run(fed(1))
        device.refuses = False
        with pytest.raises(pl.DeviceLostError, match="'held'"):
            _ = session.variables["held"]
        await session.assign({"held": np.full(2, 7, np.float32)})
        assert (await session.run(fed(1)))["after"].tolist() == [15, 15]


@pytest.mark.parametrize("shape", [(2,), (1 << 19,)])
async def test_an_item_that_is_cancelled_changes_all_variables_or_none(
    shape: tuple[int, ...],
) -> None:
    before = held()
    async with pl.Session(pl.plan(counting(shape))) as session:

        async def check() -> None:
            total, count = totals(session)
            assert total == count
            assert np.ptp(session.variables["total"]) == 0
            await session.run(fed(1, shape))
            assert totals(session) == (count + 1, count + 1)

        is_small = shape == (2,)  # and may run at once, with one moment to cancel it
        work = partial(session.run, fed(1, shape))
        stride, least = (1, 1) if is_small else (2, 2)
        assert await cancel_at_each_moment(work, check, stride=stride) >= least
    assert not left_since(before)


async def test_an_item_that_is_late_has_assigned_nothing(mock_clock: MockClock) -> None:
    shape, done, moment, late = (1 << 19,), 0, 0, True
    async with pl.Session(pl.plan(counting(shape))) as session:
        while late or moment < 10:
            at_moment = AtMoment(moment, partial(mock_clock.jump, 2))
            trio.lowlevel.add_instrument(at_moment)
            try:
                await session.run(fed(1, shape), deadline_s=1)
            except pl.DeadlineError:
                late = True
            else:
                done, late = done + 1, False
            finally:
                trio.lowlevel.remove_instrument(at_moment)
            assert totals(session) == (done, done)
            moment += 1
    assert done


async def test_callers_replace_values_all_or_none() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        await session.assign({"total": np.full(2, 6, np.float32), "count": np.float32(2)})
        assert (await session.run(fed(1)))["before"].tolist() == [3, 3]
        with pytest.raises(pl.FeedError, match=r"'total' is float32\[2\], the value float64\[2\]"):
            await session.assign({"count": np.float32(9), "total": np.zeros(2)})
        with pytest.raises(pl.FeedError, match="there is no variable 'sum'"):
            await session.assign({"sum": np.zeros(2)})
        assert totals(session) == (7, 3)


async def test_variables_are_brought_back_to_what_they_began_with() -> None:
    """Row F7."""
    b = pl.GraphBuilder("counting")
    first = pl.learning.filled((2,), 5.0)
    w, v = b.variable("w", first), b.variable("v", np.arange(2, dtype="float32"))
    both = b.group(b.assign(w, b.op("Neg", v)), b.assign(v, b.op("Add", w, v)))
    b.output("both", both)
    async with pl.Session(pl.plan(b.build())) as session:
        for _ in range(3):
            await session.run({})
        held = await session.fetch_variables()
        await session.reset_variables(["w"])
        assert session.variables["w"].tolist() == [5, 5]
        assert session.variables["v"].tolist() == held["v"].tolist() != [0, 1]
        with pytest.raises(pl.FeedError, match="there is no variable 'u'"):
            await session.reset_variables(["v", "u"])
        assert session.variables["v"].tolist() == held["v"].tolist()
        await session.reset_variables()
        assert session.variables["v"].tolist() == [0, 1]
        await session.run({})
        assert session.variables["v"].tolist() == [5, 6]


async def test_a_value_that_is_no_array_of_numbers_is_told_by_its_variable() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        for give in (session.assign, session.carry_variables):
            with pytest.raises(
                pl.FeedError, match="value for the variable 'total' is not an array"
            ):
                await give({"total": [[1], [1, 2]]})
        with pytest.raises(pl.FeedError, match=r"'count' is float32\[\], the value object\[\]"):
            await session.assign({"count": None})
        carried = await session.carry_variables({"count": "one"})
        assert carried.unlike == {"count": "is float32[], the value str96[]"}


async def test_values_are_carried_to_another_graph_with_a_report_of_what_did_not_fit() -> None:
    """Row F1."""
    b = pl.GraphBuilder("wider")
    for name, shape in (("total", (2,)), ("count", (3,)), ("own", (1,))):
        b.output(f"now {name}", b.variable(name, np.full(shape, 7, "float32")))
    async with pl.Session(pl.plan(counting())) as session:
        await train(session, [1, 2])
        values = {**session.variables, "more": np.zeros(1), "most": [1, [2]]}
        assert (await session.carry_variables(session.variables)).is_whole
    async with pl.Session(pl.plan(b.build())) as session:
        carried = await session.carry_variables(values)
        assert session.variables["total"].tolist() == [3, 3]
        assert session.variables["count"].tolist() == [7, 7, 7]
        assert (await session.run({}))["now total"].tolist() == [3, 3]
    assert carried.taken == ("total",)
    assert carried.unlike == {"count": "is float32[3], the value float32[]"}
    assert carried.unknown == ("more", "most")
    assert carried.left == ("own",)
    assert not carried.is_whole
    assert str(carried).splitlines() == [
        "1 variable taken",
        "  count: is float32[3], the value float32[]",
        "  more: no variable here",
        "  most: no variable here",
        "  own: no value, left as it is",
    ]


async def test_values_are_read_only_copies() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        value = np.ones(2, np.float32)
        await session.assign({"total": value})
        value[:] = 5
        for _ in range(2):
            found = session.variables["total"]
            assert not found.flags.writeable
            await session.run(fed(1))
            assert found.tolist() in ([1, 1], [2, 2])
        assert found.tolist() == [2, 2]
        assert session.variables["total"].tolist() == [3, 3]
        assert sorted(session.variables) == ["count", "total"]
        assert len(session.variables) == 2
        with pytest.raises(KeyError, match="sum"):
            session.variables["sum"]


async def test_saved_values_are_loaded_by_another_session(tmp_path: Path) -> None:
    plan, path = pl.plan(counting()), tmp_path / "values"
    async with pl.Session(plan) as session:
        await train(session, [1, 2])
        await session.save_variables(path)
    async with pl.Session(plan) as session:
        await session.load_variables(path)
        assert totals(session) == (3, 2)
        assert (await session.run(fed(0)))["before"].tolist() == [1.5, 1.5]


async def test_a_file_that_holds_no_values_is_refused(tmp_path: Path) -> None:
    pl.save(counting(), tmp_path / "model.plait")
    async with pl.Session(pl.plan(counting())) as session:
        with pytest.raises(pl.ParseError, match="these are not values of variables"):
            await session.load_variables(tmp_path / "model.plait")
        assert totals(session) == (0, 0)


async def test_a_graph_computes_the_first_value_once() -> None:
    first = pl.GraphBuilder("first")
    zeros = first.op("ConstantOfShape", np.array([1 << 22]), value=3, dtype="float64")
    first.output("y", first.op("Add", zeros, zeros))
    b = pl.GraphBuilder("g")
    w = b.variable("w", first.build())
    b.output("y", b.op("ReduceSum", w, keepdims=False))
    async with pl.Session(pl.plan(b.build())) as session:
        assert session.variables["w"].shape == (1 << 22,)
        assert (await session.run({}))["y"] == 6 * (1 << 22)


async def test_a_first_value_that_the_host_cannot_compute_is_named() -> None:
    @pl.operator(name="variables.first")
    def compute(x: Array) -> Array:
        return x

    first = pl.GraphBuilder("first")
    first.output("y", first.call(compute, np.zeros(2, np.float32), name="own"))
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Neg", b.variable("w", first.build())))
    with pytest.raises(pl.GraphError, match=r"node 'own'.*cannot be computed") as caught:
        async with pl.Session(pl.plan(b.build())):
            pass
    assert "'w'" in str(caught.value)


async def test_a_variable_that_nothing_reads_is_kept_all_the_same() -> None:
    b = pl.GraphBuilder("g")
    b.variable("unread", np.arange(3))
    b.output("y", b.op("Neg", b.input("x", "float32", (2,))))
    async with pl.Session(pl.plan(b.build())) as session:
        await session.run(fed(1))
        assert session.variables["unread"].tolist() == [0, 1, 2]


async def test_two_variables_are_swapped() -> None:
    b = pl.GraphBuilder("swap")
    one, other = (b.variable(name, np.full(3, i)) for i, name in enumerate("ab"))
    b.output("train", b.group(b.assign(one, other), b.assign(other, one)))
    async with pl.Session(pl.plan(b.build())) as session:
        await session.run({})
        assert [session.variables[name][0] for name in "ab"] == [1, 0]
        await session.run({})
        assert [session.variables[name][0] for name in "ab"] == [0, 1]


async def test_items_that_assign_do_not_go_in_streams_without_order() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        options: list[Mapping[str, Any]] = [{"ordered": False}, {"max_in_flight": 2}]
        for given_ in options:
            with pytest.raises(pl.SessionError, match="assign to variables"):
                async with session.stream(map(fed, [1]), **given_):
                    pass
        unordered: dict[str, Any] = {"ordered": False, "max_in_flight": 2, "fetches": "before"}
        async with session.stream(map(fed, [1, 2]), **unordered) as results:
            assert [float(item.fetched[0]) async for item in results] == [0, 0]


def test_synchronous_code_trains(tmp_path: Path) -> None:
    with pl.BlockingSession(pl.plan(counting())) as session:
        for value in (1, 2):
            session.run(fed(value))
        assert session.variables["total"].tolist() == [3, 3]
        session.save_variables(tmp_path / "values")
        session.assign({"count": np.float32(9)})
        assert session.variables["count"] == 9
        session.load_variables(tmp_path / "values")
        assert session.fetch_variables()["count"] == 2
        session.reset_variables()
        assert session.fetch_variables()["count"] == 0
        assert session.carry_variables({"count": np.float32(4)}).left == ("total",)
        assert session.variables["count"] == 4


def test_asyncio_code_trains(tmp_path: Path) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(pl.plan(counting())) as session:
            for value in (1, 2):
                await session.run(fed(value))
            assert (await session.fetch_variables())["total"].tolist() == [3, 3]
            await session.save_variables(tmp_path / "values")
            await session.assign({"count": np.float32(9)})
            await session.load_variables(tmp_path / "values")
            assert (await session.fetch_variables())["count"] == 2
            await session.reset_variables(["count"])
            carried = await session.carry_variables({"total": np.ones(2, "float32")})
            assert carried.taken == ("total",)
            held = await session.fetch_variables()
            assert (float(held["count"]), held["total"].tolist()) == (0, [1, 1])

    asyncio.run(main())


async def test_memory_counts_variables_that_several_plans_read_once() -> None:
    async with pl.Session(pl.plan(counting((1 << 20,)))) as session:
        await session.run({}, fetches="total")
        before = session.status().memory["host"]
        await session.run({}, fetches=["total", "count"])
        assert session.status().memory["host"] - before < 2 * (4 << 20)


async def test_variables_of_a_session_that_is_closed_are_not_read() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        variables = session.variables
        assert len(variables) == 2
    with pytest.raises(pl.SessionError, match="not open"):
        session.variables["total"]
    with pytest.raises(pl.PlaitError):
        variables["total"]


async def test_values_and_names_of_other_kinds_than_asked_for_are_refused() -> None:
    async with pl.Session(pl.plan(counting())) as session:
        for change in (session.assign, session.carry_variables):
            for values in (None, 3, [("total", 1)]):
                with pytest.raises(pl.FeedError, match="values of variables are a"):
                    await change(values)  # type: ignore[arg-type]
        for names in ("total", 3):
            with pytest.raises(pl.FeedError, match="is not a list of variables"):
                await session.reset_variables(names)  # type: ignore[arg-type]
