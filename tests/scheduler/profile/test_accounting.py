"""Accounts of items' time: every ns is booked once, and in the right place."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from time import perf_counter_ns
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import random_graph, random_machine
from plait.devices.sim import SimDevice, VirtualClock
from plait.scheduler.errors import PlanError
from plait.scheduler.plans.placement import Outline, Transfer, summarize_step
from plait.scheduler.plans.regions import Pool, Region
from plait.scheduler.profile import Attribution, NodeTime, PlanTimes, Profile, Record
from plait.scheduler.profile.records import RowBatch
from plait.scheduler.profile.timestamps import Timestamps
from plait.scheduler.simulation.workload import SimulatedHost

Times = tuple[int, int, int]


def made(index: int, device: str, after: Iterable[int] = (), nbytes: int = 0) -> Outline:
    """Return a step, a copy if it has bytes, that these later ones wait for."""
    copy = Transfer("t", "host", device, nbytes) if nbytes else None
    return Outline(index, f"s{index}", device, tuple(after), copy, ("n",))


def record(
    steps: tuple[Outline, ...],
    times: Iterable[Times],
    marks: Mapping[str, int],
    claiming: Iterable[int] = (),
) -> Record:
    region = Region("host", "item", 64, 2, tuple(claiming), (len(steps),))
    pools = {"host": Pool("host", {"item": region}, 2, "rings", 64, 64, 64)}
    part = PlanTimes(steps, array("q", [t for three in times for t in three]), pools)
    named = {f"{name}_ns" if name != "stream" else name: ns for name, ns in marks.items()}
    return Record((part,), Timestamps(**named), False)


def spent(*records: Record) -> list[dict[str, int]]:
    """Return the nonzero times of each item by category, including the residual."""
    return [
        {name: ns for name, ns in {**one.spent_ns, "residual": one.residual_ns}.items() if ns}
        for one in Profile(records, ()).attributions
    ]


WAY = {
    "asked": 10,
    "given": 20,
    "admitted": 50,
    "fed": 60,
    "finished": 90,
    "landed": 95,
    "taken": 100,
    "released": 120,
}


def test_marks_and_steps_share_out_an_items_time() -> None:
    (alone,) = spent(record((made(0, "a"),), [(62, 65, 85)], WAY))
    assert alone == {
        "source": 10,
        "back_pressure": 30,
        "feed": 10,
        "compute": 20,
        "scheduler": 5 + 5,
        "land": 5,
        "consumer": 25,
    }


def test_a_wait_for_rows_computes_while_batches_of_its_queue_do() -> None:
    wait = Outline(0, "read", "cpu", (), None, ("read",), awaited="read")
    item = record((wait,), [(60, 60, 90)], WAY)

    def batch(queue: str, *times: Times) -> RowBatch:
        steps = (made(0, "cpu"), made(1, "cpu", nbytes=4))
        return RowBatch(queue, 2, 60, 62, 80, record(steps, times, WAY))

    batches = (
        batch("read", (50, 50, 64), (64, 64, 70)),
        batch("read", (66, 70, 75), (75, 75, 76)),
        batch("read", (66, 74, 80), (80, 80, 81)),
        batch("other", (60, 60, 90), (90, 90, 91)),
    )
    (alone,) = Profile((item,), (), batches=batches).attributions
    assert alone.compute_ns == 4 + 10  # until 64, then from 70 to 80, without copies
    assert alone.waiting_ns == 30 - 14
    assert alone.residual_ns == 0


def test_planning_and_binding_are_no_back_pressure_and_no_work_of_the_scheduler() -> None:
    whole = record((made(0, "a"),), [(62, 70, 85)], WAY)
    for made_for_it in (("planning", 22, 40), ("binding", 41, 49), ("planning", 61, 68)):
        whole.marks.prepare(*made_for_it)
    (alone,) = spent(whole)
    assert (alone["planning"], alone["binding"]) == (18 + 7, 8)
    assert alone["back_pressure"] == 30 - 18 - 8
    assert alone["scheduler"] == 5 + 10 - 7
    assert sum(alone.values()) == 110


def test_a_join_that_waits_for_partners_is_no_source_that_is_slow() -> None:
    for begun, partners in ((13, 7), (2, 10)):  # it may have had the item before it was asked
        whole = record((made(0, "a"),), [(62, 65, 85)], WAY)
        whole.marks.prepare("partners", begun, 20)
        (alone,) = spent(whole)
        assert (alone["partners"], alone.get("source", 0)) == (partners, 10 - partners)
        assert sum(alone.values()) == 110
        assert Profile((whole,), ()).hits == 1


def test_of_parallel_branches_the_longer_one_counts() -> None:
    steps = made(0, "a", [2]), made(1, "b", [2], nbytes=4), made(2, "a")
    (alone,) = spent(record(steps, [(60, 60, 65), (60, 61, 80), (82, 83, 90)], WAY))
    assert (alone["transfer"], alone["compute"], alone["scheduler"]) == (19, 7, 3 + 1)


def test_a_lane_that_works_for_another_item_is_busy_and_for_the_same_item_computes() -> None:
    one = made(0, "a")
    first = record((one,), [(60, 62, 75)], WAY)
    second = record((one,), [(61, 77, 90)], WAY)
    assert spent(first, second)[1]["device_busy"] == 75 - 62
    both = made(0, "a"), made(1, "a")
    (own,) = spent(record(both, [(60, 60, 75), (60, 75, 90)], WAY))
    assert own["compute"] == 30
    assert "device_busy" not in own


def test_waiting_for_memory_of_earlier_items_is_back_pressure() -> None:
    steps = made(0, "a", [1]), made(1, "b")
    holder = record((made(0, "c"),), [(60, 60, 80)], WAY)
    waiting = record(steps, [(60, 60, 65), (82, 83, 90)], WAY, [1])
    assert spent(holder, waiting)[1] == {
        "source": 10, "back_pressure": 30 + 15, "feed": 10, "compute": 12, "scheduler": 3,
        "land": 5, "consumer": 25,
    }  # fmt: skip


def test_what_an_item_itself_ends_releases_nothing_to_it() -> None:
    steps = made(0, "a", [1]), made(1, "b"), made(2, "d")
    holder = record((made(0, "c"),), [(60, 60, 80)], WAY)
    waiting = record(steps, [(60, 60, 65), (82, 83, 90), (60, 60, 81)], WAY, [1])
    assert spent(holder, waiting)[1]["back_pressure"] == 30 + (80 - 65)


def test_an_item_waits_for_its_turn_until_those_before_it_have_landed() -> None:
    step = (made(0, "a"),)
    early = {**WAY, "taken": 150, "released": 160}
    late = {**WAY, "landed": 130, "taken": 135, "released": 150}
    items = spent(record(step, [(60, 60, 90)], early), record(step, [(60, 60, 90)], late))
    assert (items[0]["order"], items[0]["consumer"]) == (130 - 95, 160 - 130)
    assert "order" not in items[1]
    other = spent(
        record(step, [(60, 60, 90)], early), record(step, [(60, 60, 90)], {**late, "stream": 2})
    )
    assert "order" not in other[0]


def test_steps_on_another_clock_are_left_as_residual() -> None:
    (alone,) = spent(record((made(0, "a"),), [(2, 5, 9)], WAY))
    assert alone["residual"] == 30
    assert "compute" not in alone


def test_what_has_not_been_marked_took_no_time() -> None:
    (alone,) = spent(record((made(0, "a"),), [(60, 60, 90)], {"admitted": 50, "landed": 95}))
    assert alone == {"scheduler": 10, "compute": 30, "land": 5}
    assert spent(record((), [], {})) == [{}]


def test_between_the_plans_that_an_item_goes_through_the_scheduler_works() -> None:
    steps = (made(0, "a"),)
    first, second = (PlanTimes(steps, times) for times in ([60, 61, 70], [75, 80, 88]))
    item = Record((first, second), record(steps, [], WAY).marks, False)
    other = record(steps, [(70, 70, 79)], WAY)
    busy = spent(item, other)[0]
    assert (busy["compute"], busy["device_busy"]) == (9 + 8, 79 - 75)
    assert busy["scheduler"] == 1 + 5 + 1 + 2


def test_items_add_up() -> None:
    one = record((made(0, "a"),), [(62, 65, 85)], WAY)
    both = Profile((one, one), ()).attribution()
    assert (both.items, both.wall_ns, both.compute_ns) == (2, 220, 40)
    assert sum(both.shares.values()) == pytest.approx(1)
    assert both.to_dict()["compute_ms"] == 20e-6


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_every_ns_of_a_simulated_stream_is_booked(
    seed: int, items: int, max_in_flight: int, free: bool
) -> None:
    random = Random(seed)
    graph = random_graph(random, random.randint(1, 10))
    devices = random_machine(random, random.randint(1, 3))
    plan = pl.plan(graph, devices, max_in_flight=max_in_flight)
    host = (
        SimulatedHost() if free else SimulatedHost(feed_s=random.random() * 1e-4, land_delay_s=1e-5)
    )
    profile = pl.simulate(plan, items=items, host=host).profile
    every = profile.attributions
    for one, item in zip(every, profile.records, strict=True):
        assert one.residual_ns == 0
        assert one.wall_ns == item.landed_ns - item.admitted_ns
        assert min(one.spent_ns.values()) >= 0
    whole = profile.attribution()
    if free:  # nothing costs time but kernels and copies, and waiting for them and for memory
        assert whole.scheduler_ns == 0
    if items == 1:
        assert whole.device_busy_ns == whole.back_pressure_ns == 0
    worked = sum(span.ended_ns - span.started_ns for r in profile.records for span in r.spans())
    assert whole.compute_ns + whole.transfer_ns <= worked


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 3))
def test_on_a_virtual_clock_real_items_spend_their_time_as_predicted(
    seed: int, items: int, max_in_flight: int
) -> None:
    random, clock = Random(seed), VirtualClock()
    graph = random_graph(random, random.randint(1, 8), sides=(16,))
    devices = [SimDevice(one.name, one.model, clock) for one in random_machine(random, 2)]
    plan = pl.plan(graph, devices, max_in_flight=max_in_flight)
    feeds = {
        name: np.ones(plan.graph.tensors[name].static_shape, np.float32)
        for name in plan.graph.inputs
    }
    found = trio.run(streamed_profile, plan, [feeds] * items).attribution()
    predicted = pl.simulate(plan, items=items, host=SimulatedHost()).profile.attribution()
    assert found.residual_ns == found.scheduler_ns == 0
    for kind in ("compute", "transfer", "device_busy"):
        assert found.spent_ns[kind] == predicted.spent_ns[kind]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_measured_critical_path_of_one_item_is_the_predicted_one(seed: int, count: int) -> None:
    random = Random(seed)
    plan = pl.plan(random_graph(random, 2 * count), random_machine(random, 3))
    found = pl.simulate(plan, host=SimulatedHost())
    path = found.profile.critical_path
    assert sum(one.ended_ns - one.started_ns for one in path) == round(found.makespan_s * 1e9)
    assert [one.ended_ns for one in path[:-1]] == [one.started_ns for one in path[1:]]


def test_the_critical_path_of_a_stream_stays_on_its_bottleneck() -> None:
    fast, slow = made(0, "a", [1]), made(1, "b")
    records = [
        record(
            (fast, slow),
            [(10 * i, 10 * i, 10 * i + 10), (10 * i + 10, 10 + 30 * i, 40 + 30 * i)],
            {"admitted": 10 * i, "landed": 40 + 30 * i},
        )
        for i in range(4)
    ]
    path = Profile(tuple(records), ()).critical_path
    assert [(one.item, one.step.name, one.cause) for one in path] == [
        (0, "s0", "admission"),
        (0, "s1", "input"),
        (1, "s1", "lane"),
        (2, "s1", "lane"),
        (3, "s1", "lane"),
    ]


# Real sessions.


def two_devices() -> pl.Plan:
    builder = pl.GraphBuilder("accounted")
    h = builder.op("Relu", builder.input("x", "float32", (64, 64)), name="first")
    builder.output("y", builder.op("MatMul", h, h, name="second"))
    devices: list[str | PrivateDevice] = [PrivateDevice("npu"), "cpu"]
    return pl.plan(builder.build(), devices, pin={"first": "npu"}, max_in_flight=3)


ITEM: Mapping[str, Any] = {"x": np.ones((64, 64), np.float32)}


async def streamed_profile(
    plan: pl.Plan, source: Iterable[Mapping[str, Any]], consume_s: float = 0
) -> Profile:
    async with pl.Session(plan) as session:
        async with session.stream(source) as results:
            async for item in results:
                assert item.error is None
                time.sleep(consume_s)  # noqa: ASYNC251 - a consumer that holds up everything
        return session.profile()


async def streamed(source: Iterable[Mapping[str, Any]], consume_s: float = 0) -> Attribution:
    return (await streamed_profile(two_devices(), source, consume_s)).attribution()


async def test_nearly_all_time_of_real_items_is_known() -> None:
    whole = await streamed([ITEM] * 30)
    assert whole.items == 30
    assert whole.residual_ns <= 0.01 * whole.wall_ns
    assert whole.compute_ns > 0
    assert whole.transfer_ns > 0


async def test_a_slow_source_shows() -> None:
    def source() -> Iterator[Mapping[str, Any]]:
        for _ in range(5):
            time.sleep(0.005)
            yield ITEM

    whole = await streamed(source())
    assert whole.source_ns >= 5 * 5_000_000
    assert whole.residual_ns <= 0.01 * whole.wall_ns


async def test_a_slow_consumer_shows() -> None:
    whole = await streamed([ITEM] * 5, consume_s=0.005)
    assert whole.consumer_ns >= 5 * 5_000_000


def test_a_slow_consumer_of_a_blocking_stream_shows() -> None:
    with pl.BlockingSession(two_devices()) as session:
        for item in session.stream([ITEM] * 5):
            assert item.error is None
            time.sleep(0.005)
        whole = session.profile().attribution()
    assert whole.consumer_ns >= 5 * 5_000_000
    assert whole.source_ns < whole.consumer_ns / 2


def test_a_slow_consumer_of_an_asyncio_stream_shows() -> None:
    async def main() -> Attribution:
        async with pl.AsyncioSession(two_devices()) as session:
            async with session.stream([ITEM] * 5) as results:
                async for item in results:
                    assert item.error is None
                    await asyncio.sleep(0.005)
            return session.profile().attribution()

    whole = asyncio.run(main())
    assert whole.consumer_ns >= 5 * 5_000_000
    assert whole.source_ns < whole.consumer_ns / 2


async def test_an_items_time_is_what_its_caller_waits() -> None:
    """Nearly all of it, where nothing else has the cores between the two readings."""
    shares = []
    async with pl.Session(two_devices()) as session:
        for _ in range(20):
            begin = perf_counter_ns()
            await session.run(ITEM)
            waited = perf_counter_ns() - begin
            shares.append(session.profile().attributions[-1].wall_ns / waited)
    assert 0.5 <= max(shares) <= 1


async def test_tables_and_json_say_where_time_went() -> None:
    async with pl.Session(two_devices()) as session:
        await session.run(ITEM)
    profile = session.profile()
    assert "critical path" in profile.table()
    assert "device busy" in profile.table()
    shares = profile.to_dict()["attribution"]
    assert shares["wall_ms"] == pytest.approx(
        sum(ms for name, ms in shares.items() if name != "wall_ms")
    )


# What if.


def two_stages() -> pl.Plan:
    builder = pl.GraphBuilder("stages")
    h = builder.op("Relu", builder.input("x", "float32", (8,)), name="first")
    builder.output("y", builder.op("Exp", h, name="second"))
    pins = {"first": "cpu", "second": "cpu:1"}
    return pl.plan(builder.build(), ["cpu", "cpu:1"], pin=pins, max_in_flight=3)


def staged(plan: pl.Plan, source_ms: int = 0) -> Profile:
    """Return a stream whose first stage took 4 ms and whose second one 2 ms."""
    ms, steps = 1_000_000, tuple(map(summarize_step, plan.steps))
    records = []
    for item in range(40):
        begin = (4 * item + 1) * ms
        marks = {"asked": begin - source_ms * ms, "given": begin, "admitted": begin}
        marks["landed"] = begin + 6 * ms
        times = [(begin, begin, begin + 4 * ms), (begin + 4 * ms, begin + 4 * ms, begin + 6 * ms)]
        records.append(record(steps, times, marks))
    nodes = (
        NodeTime("first", "Relu", "cpu", 40, 160 * ms, 4 * ms, 4 * ms, 0),
        NodeTime("second", "Exp", "cpu:1", 40, 80 * ms, 2 * ms, 2 * ms, 0),
    )
    return Profile(tuple(records), nodes)


@pytest.mark.parametrize(
    ("faster", "source_ms", "gain", "limit"),
    [
        ({"Relu": 2}, 0, 1.0, None),  # then both take 2 ms
        ({"first": 1.25}, 0, 0.25, "cpu"),  # 3.2 ms
        ({"Relu": 8}, 0, 1.0, "cpu:1"),  # 0.5 ms: the other one limits
        ({"Exp": 4}, 0, 0.0, "cpu"),
        ({"Relu": 2, "Exp": 2}, 0, 1.0, "cpu"),  # 2 ms and 1 ms
        ({"Relu": 4, "Exp": 4}, 2, 1.0, "source"),
    ],
)
def test_what_is_gained_ends_where_something_else_limits_the_stream(
    faster: dict[str, float], source_ms: int, gain: float, limit: str | None
) -> None:
    plan = two_stages()
    found = staged(plan, source_ms).what_if(plan, faster)
    assert found.gain == pytest.approx(gain, abs=0.05 * (1 + gain))
    assert limit in (None, found.limit)
    assert f"{found.gain:.1%} faster" in str(found)
    assert found.to_dict()["faster"] == faster


def test_what_would_be_slower_is_not_called_faster() -> None:
    plan = two_stages()
    found = staged(plan, 0).what_if(plan, {"Relu": 0.5, "Exp": 0.5})
    assert found.gain < 0
    assert f"would be {-found.gain:.1%} slower" in str(found)
    assert f"latency {-found.latency_gain:.1%} longer" in str(found)


def test_a_profile_without_node_times_answers_no_what_if() -> None:
    plan = two_stages()
    profile = pl.simulate(plan).profile
    with pytest.raises(pl.SessionError, match="does not say what nodes take"):
        profile.what_if(plan, {"Relu": 2})


async def test_what_if_refuses_operators_that_the_plan_does_not_have() -> None:
    plan = two_stages()
    async with pl.Session(plan, measure=True) as session:
        await session.run({"x": np.ones(8, np.float32)})
    with pytest.raises(PlanError, match="no operator, node or step 'Conv'"):
        session.profile().what_if(plan, {"Conv": 2})
