"""Items that run wholly on the thread that asks for them: when they do, and what stays as it is."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.scheduler.bridges.inline import RUNS_ALONE
from plait.scheduler.dispatch.inline_policy import SLOW_NS, WAITED, WAITED_ALONE, Estimates
from plait.scheduler.runtime.events import ItemDone
from plait.scheduler.runtime.opened import inline
from plait.scheduler.runtime.opened.inline import MOST_STEPS
from plait.scheduler.runtime.running import inline_runner

BRIEF_NS = 150_000
ran_on: list[int] = []
act: list[Callable[[], object]] = []
"""What the function of an item does besides, the next time."""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch, forget_operators: None) -> Iterator[None]:
    """Every item is taken to be brief, however loaded the machine is."""
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    yield
    ran_on.clear()
    act.clear()


def doubled(
    *,
    devices: Any = ("cpu", "cpu:1"),
    effects: bool = False,
    forks: bool = False,
    **options: Any,
) -> pl.Plan:
    """Return a plan of a function on one device and a product on the other.

    The product is that of the function's result, or of its input if it `forks`.
    """

    @pl.operator(name="test_inline.note", effects=effects)
    def note(x: np.ndarray) -> np.ndarray:
        ran_on.append(threading.get_ident())
        if act:
            act.pop()()
        return x

    builder = pl.GraphBuilder("doubled")
    x = builder.input("x", "float32", (2,))
    noted = builder.call(note, x, name="note")
    builder.output("y", builder.op("Mul", x if forks else noted, np.float32(2), name="mul"))
    if forks:
        builder.output("noted", noted)
    first, last = (getattr(devices[place], "name", devices[place]) for place in (0, -1))
    return pl.plan(builder.build(), devices, pin={"note": first, "mul": last}, **options)


def feeds(value: float) -> dict[str, Any]:
    return {"x": np.full(2, value, np.float32)}


def test_items_are_brief_whose_steps_were_all_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    estimates = Estimates([0.0, 0.0], [1])
    estimates.note(0, 1000)
    assert not estimates.are_brief(BRIEF_NS)
    estimates.note(1, 1000)
    assert estimates.are_brief(BRIEF_NS)
    for _ in range(100):
        estimates.note(1, BRIEF_NS)
    assert not estimates.are_brief(BRIEF_NS)


@pytest.mark.parametrize(
    ("devices", "forks", "is_here"),
    [
        (["cpu"], False, True),
        (["cpu"], True, True),
        (["cpu", "cpu:1"], False, True),
        (["cpu", "cpu:1"], True, False),
    ],
)
def test_the_caller_runs_an_item_for_longer_where_no_lane_could_work_beside_another(
    devices: list[str], forks: bool, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = (WAITED.most_ns(2) + WAITED.most_ns(1)) // 2
    monkeypatch.setattr(Estimates, "are_brief", lambda _, most_ns, **__: between < most_ns)
    with pl.BlockingSession(doubled(devices=devices, forks=forks)) as session:
        session.run(feeds(1))
    assert [one == threading.get_ident() for one in ran_on] == [is_here]


def test_the_only_thread_that_runs_items_does_so_for_longer_though_there_are_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = (WAITED.most_ns(1, 2) + WAITED_ALONE.most_ns(1, 2)) // 2
    monkeypatch.setattr(Estimates, "are_brief", lambda _, most_ns, **__: between < most_ns)

    def runs_here(session: pl.BlockingSession) -> bool:
        session.run(feeds(1))
        return ran_on.pop() == threading.get_ident()

    with pl.BlockingSession(doubled(devices=["cpu:0..1"])) as session:
        found = [runs_here(session) for _ in range(RUNS_ALONE + 1)]
        thread = threading.Thread(target=session.run, args=(feeds(1),))
        thread.start()
        thread.join()
        ran_on.clear()
        assert [*found, runs_here(session)] == [False] * RUNS_ALONE + [True, False]


@pytest.mark.parametrize(
    ("kib", "on_loop", "waited"), [(100, True, True), (900, True, True), (1100, False, False)]
)
def test_what_an_item_copies_counts_as_its_time(
    kib: int, on_loop: bool, waited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes no time, and so many KiB in and as many out, at 10 GB/s."""
    monkeypatch.setattr(Estimates, "are_brief", lambda _, most_ns=0, **__: most_ns > 0)
    builder = pl.GraphBuilder("large")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (kib << 8,))))
    plan, feeds = pl.plan(builder.build()), {"x": np.ones(kib << 8, np.float32)}
    here: list[bool] = []
    run_steps = inline.run_steps

    def noted(*arguments: Any) -> None:
        here.append(True)
        run_steps(*arguments)

    monkeypatch.setattr(inline_runner, "run_steps", noted)
    with pl.BlockingSession(plan) as session:
        assert session.run(feeds)["y"].sum() == kib << 8
    assert bool(here) is waited

    async def once() -> None:
        async with pl.Session(plan) as session:
            await session.run(feeds)

    here.clear()
    trio.run(once)
    assert bool(here) is on_loop


def test_a_function_that_surprises_makes_no_item_brief_for_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    estimates = Estimates([0.0], [0])
    runs = [0, 0]
    for surprise in range(2):
        estimates.note(0, 1000)
        estimates.note(0, SLOW_NS + 1)
        while not estimates.are_brief(BRIEF_NS):
            estimates.note(0, 1000)
            runs[surprise] += 1
    assert runs == [64, 512]


async def test_all_steps_run_on_the_thread_that_asks() -> None:
    async with pl.Session(doubled()) as session:
        for number in range(3):
            result = await session.run(feeds(number))
            assert result["y"].tolist() == [2.0 * number] * 2
            fetched = await session.run(feeds(number), ["y", "x"])
            assert [one.tolist() for one in fetched] == [[2.0 * number] * 2, [number] * 2]
        profile = session.profile()
        assert session.status().done == 6
    assert set(ran_on[:1]) == {threading.get_ident()}
    for record in profile.records:
        marks = record.marks
        assert marks.asked_ns <= marks.admitted_ns <= marks.fed_ns <= marks.finished_ns
        assert marks.finished_ns <= marks.landed_ns <= marks.taken_ns
        spans = list(record.spans())
        assert all(marks.fed_ns <= one.started_ns <= one.ended_ns for one in spans)


@pytest.mark.parametrize(
    "options",
    [
        {"devices": [CpuDevice("given"), CpuDevice("other")]},
        {"devices": ["cpu", "worker:0"]},
    ],
    ids=["devices that others may use", "another process"],
)
async def test_what_may_not_run_anywhere_runs_where_it_did(options: dict[str, Any]) -> None:
    async with pl.Session(doubled(**options)) as session:
        slots = next(iter(session._open_runtime()._open_plans._slots.values()))
        assert slots.resting is not None
        assert slots.resting.calls is None
        assert (await session.run(feeds(1)))["y"].tolist() == [2, 2]


async def test_functions_with_effects_run_on_lanes() -> None:
    async with pl.Session(doubled(effects=True)) as session:
        for _ in range(3):
            assert (await session.run(feeds(1)))["y"].tolist() == [2, 2]
    assert threading.get_ident() not in ran_on


async def test_items_of_many_steps_go_through_the_lanes() -> None:
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (2,))
    for index in range(MOST_STEPS + 1):
        last = builder.op("Neg", last, name=f"n{index}")
    builder.output("y", last)
    pins = {f"n{index}": f"cpu:{index % 2}" for index in range(MOST_STEPS + 1)}
    plan = pl.plan(builder.build(), ["cpu:0", "cpu:1"], pin=pins, passes=())
    async with pl.Session(plan) as session:
        slots = next(iter(session._open_runtime()._open_plans._slots.values()))
        assert slots.resting is not None
        assert slots.resting.calls is None


async def test_no_item_runs_like_that_beside_another() -> None:
    entered, going = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert going.wait(WAIT_S)

    slow = doubled(devices=[CpuDevice("given"), CpuDevice("other")], max_in_flight=2)
    async with pl.Session(slow) as session, trio.open_nursery() as nursery:
        runtime = session._open_runtime()
        act.append(wait)
        nursery.start_soon(session.run, feeds(1))
        assert await trio.to_thread.run_sync(entered.wait, WAIT_S)
        slots = next(iter(runtime._open_plans._slots.values()))
        assert slots.resting is None
        going.set()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_device_that_others_may_use_works_for_one_at_a_time(
    is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CpuDevice("given")
    entered, queued, going = (threading.Event() for _ in range(3))

    def wait() -> None:
        entered.set()
        assert going.wait(WAIT_S)

    def put(*args: Any) -> None:
        queued.set()
        real_put(*args)

    plan = doubled(devices=[device])
    with pl.BlockingSession(plan) as first, pl.BlockingSession(plan) as second:
        for session in (first, second):
            session.run(feeds(1))
        assert ran_on == [threading.get_ident()] * 2  # nobody else uses it now
        act.append(wait)
        with ThreadPoolExecutor() as threads:
            slow = threads.submit(first.run, feeds(2)) if is_here else first.submit(feeds(2))
            assert entered.wait(WAIT_S)
            real_put = device._lane.put
            monkeypatch.setattr(device._lane, "put", put)
            later = threads.submit(second.run, feeds(3))
            assert queued.wait(WAIT_S)  # behind the other one
            going.set()
            assert slow.result(WAIT_S)["y"].tolist() == [4, 4]
            assert later.result(WAIT_S)["y"].tolist() == [6, 6]


async def test_what_fails_is_recorded_and_leaves_the_session_usable() -> None:
    told: list[object] = []
    async with pl.Session(doubled(), on_event=told.append) as session:
        await session.run(feeds(1))
        act.append(lambda: 1 / 0)
        with pytest.raises(pl.KernelError, match="division by zero") as caught:
            await session.run(feeds(1))
        assert "note" in str(caught.value)
        with pytest.raises(pl.FeedError):
            await session.run({})
        assert (await session.run(feeds(3)))["y"].tolist() == [6, 6]
        status = session.status()
        assert (status.done, status.failed) == (4, 2)
        assert [record.failed for record in session.profile().records] == [False, True, False]
    assert [isinstance(one, ItemDone) and one.error is None for one in told] == [
        *(True, False, False, True)
    ]


async def test_a_function_that_raises_what_looks_like_ctrl_c_has_failed() -> None:
    """The loop holds the real one back until the item is over."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    async with pl.Session(doubled()) as session:
        await session.run(feeds(1))
        act.append(interrupt)
        with pytest.raises(pl.KernelError, match="KeyboardInterrupt"):
            await session.run(feeds(1))
        assert set(ran_on[1:]) == {threading.get_ident()}
        await session.run(feeds(1))


async def test_a_run_can_be_cancelled_when_its_item_is_over() -> None:
    async with pl.Session(doubled()) as session:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.run(feeds(1))
        assert scope.cancelled_caught
        assert (await session.run(feeds(2)))["y"].tolist() == [4, 4]


def test_blocking_callers_run_items_themselves_and_take_turns() -> None:
    with pl.BlockingSession(doubled()) as session:

        def work(first: int) -> None:
            for number in range(first, first + 200):
                assert session.run(feeds(number))["y"].tolist() == [2.0 * number] * 2

        work(0)
        assert set(ran_on) == {threading.get_ident()}
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, 1000 * one) for one in range(4)]:
                done.result(WAIT_S)
        assert session.status().done == 1000


def test_the_loop_waits_for_an_item_on_a_thread_and_so_does_closing() -> None:
    entered, going, closed = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def wait() -> None:
        entered.set()
        assert going.wait(WAIT_S)
        order.append("item")

    session = pl.BlockingSession(doubled())
    act.append(wait)
    running = threading.Thread(target=lambda: session.run(feeds(1)))
    running.start()
    assert entered.wait(WAIT_S)
    submitted = session.submit(feeds(2))  # does not wait
    submitted.add_done_callback(lambda _: order.append("submitted"))

    def close() -> None:
        assert submitted.result(WAIT_S)["y"].tolist() == [4, 4]
        session.close()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert not submitted.done()
    assert not closed.is_set()
    going.set()
    running.join(WAIT_S)
    closing.join(WAIT_S)
    assert closed.is_set()
    assert order == ["item", "submitted"]
    with pytest.raises(pl.SessionError, match="closed"):
        session.run(feeds(1))


def test_an_observer_is_told_on_the_session_s_loop() -> None:
    told_on: set[int] = set()
    with pl.BlockingSession(
        doubled(), on_event=lambda _: told_on.add(threading.get_ident())
    ) as session:
        session.run(feeds(1))
        session.run(feeds(1))
    assert len(told_on) == 1
    assert threading.get_ident() not in told_on


def test_a_function_that_would_wait_for_its_own_item_is_told() -> None:
    with pl.BlockingSession(doubled()) as session:
        for wait in (lambda: session.run(feeds(1)), session.fetch_variables):
            act.append(wait)
            with pytest.raises(pl.KernelError, match="would wait for the session of that item"):
                session.run(feeds(1))
        assert session.run(feeds(2))["y"].tolist() == [4, 4]


def test_ctrl_c_ends_an_item_and_leaves_the_session_usable() -> None:
    with pl.BlockingSession(doubled()) as session:
        session.run(feeds(1))
        act.append(lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.run(feeds(1))
        assert session.run(feeds(2))["y"].tolist() == [4, 4]
        assert session.submit(feeds(3)).result(WAIT_S)["y"].tolist() == [6, 6]


def test_asyncio_s_tasks_run_items_themselves_and_others_have_their_turns() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(doubled()) as session:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for number in range(200):
                session._pause.turn_ns = 0  # as if the loop had not turned for long
                assert (await session.run(feeds(number)))["y"].tolist() == [2.0 * number] * 2
            assert turns >= 200
            counting.cancel()
            assert set(ran_on) == {threading.get_ident()}
            assert (await session.run(feeds(1), "y")).tolist() == [2, 2]

    asyncio.run(main())


@pytest.mark.parametrize("device", ["ort", "compiled", "cpu"])
async def test_programs_of_all_devices_of_this_process_run_anywhere(device: str) -> None:
    if device != "cpu":
        pytest.importorskip({"ort": "onnxruntime", "compiled": "numba"}[device])
    builder = pl.GraphBuilder("product")
    x = builder.input("x", "float32", (4, 4))
    weights = np.arange(16, dtype=np.float32).reshape(4, 4)
    builder.output("y", builder.op("Relu", builder.op("MatMul", x, weights)))
    async with pl.Session(pl.plan(builder.build(), [device])) as session:
        slots = next(iter(session._open_runtime()._open_plans._slots.values()))
        assert slots.resting is not None
        assert slots.resting.calls is not None
        for number in range(3):
            fed = np.full((4, 4), number, np.float32)
            np.testing.assert_allclose((await session.run({"x": fed}))["y"], fed @ weights)


async def test_what_fails_in_another_runtime_names_its_node_and_leaves_the_session_usable() -> None:
    pytest.importorskip("onnxruntime")
    builder = pl.GraphBuilder("pick")
    index = builder.input("index", "int64", ())
    builder.output("y", builder.op("Gather", np.arange(4.0), index, name="pick"))
    async with pl.Session(pl.plan(builder.build(), ["ort"])) as session:
        for number in (1, 2):
            assert (await session.run({"index": np.int64(number)}))["y"] == number
            with pytest.raises(pl.KernelError, match="pick"):
                await session.run({"index": np.int64(7)})
