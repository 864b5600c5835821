"""Micro-batches under trio: who runs with whom, who fails, who waits, all in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from batch_oracle import Asked, QueueOracle, ServerOracle
from fake_devices import SteppedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from moments import cancel_at_each_moment
from trio.testing import MockClock, wait_all_tasks_blocked

Array = np.ndarray[Any, Any]

BAD = 1000
runs: list[list[float]] = []
"""The first columns that `noted` was called with."""


@pl.operator(name="test_micro_batches.noted")
def noted(x: Array) -> Array:
    runs.append(x[:, 0].tolist())
    if (x >= BAD).any():
        raise ValueError("bad")
    return 2 * x


@pl.operator(name="test_micro_batches.sent", effects=True)
def sent(x: Array) -> Array:
    return noted(x)


def doubling(length: int | str = "batch", width: int | str = 2, function: Any = noted) -> pl.Graph:
    builder = pl.GraphBuilder("doubling")
    builder.output("y", builder.call(function, builder.input("x", "float32", (length, width))))
    return builder.build()


def row(value: float, width: int = 2, rows: int = 1) -> dict[str, Array]:
    return {"x": np.full((rows, width), value, "float32")}


@pytest.fixture(autouse=True)
def _no_runs_yet() -> None:
    runs.clear()


async def ask(batches: pl.MicroBatches, ended: dict[float, Any], value: float, **how: Any) -> None:
    """Put what comes of an item under its value."""
    rows, width = how.pop("rows", 1), how.pop("width", 2)
    try:
        ended[value] = (await batches.run(row(value, width, rows), **how))["y"].tolist()
    except pl.PlaitError as error:
        ended[value] = error


# against the oracle

SIZE, IN_FLIGHT, TICK_S = 4, 2, 1.0

drawn_items: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        gap=st.integers(0, 2),
        rows=st.integers(1, SIZE),
        client=st.sampled_from("abc"),
        wait_s=st.none() | st.integers(0, 6),
        stay_s=st.none() | st.integers(0, 6),
        is_bad=st.booleans() | st.just(False),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(drawn_items, st.integers(0, 4), st.integers(1, 8))
def test_batches_and_outcomes_are_those_of_a_sequential_oracle(
    drawn: Sequence[dict[str, Any]], delay_s: int, max_waiting: int
) -> None:
    """Arrivals, clients, deadlines, failures and cancellations at random, at moments all apart."""
    now_s, items = 0.0, []
    for name, one in enumerate(drawn):
        now_s += one["gap"] + 1 / 1024
        until_s = float("inf") if one["wait_s"] is None else now_s + one["wait_s"] + 1 / 4
        gone_s = float("inf") if one["stay_s"] is None else now_s + one["stay_s"] + 3 / 8
        items.append(
            Asked(
                rows=one["rows"],
                since_s=now_s,
                client=one["client"],
                until_s=until_s,
                gone_s=gone_s,
                is_bad=one["is_bad"],
                name=name,
            )
        )
    max_delay_s = delay_s + 1 / 8
    oracle = ServerOracle(QueueOracle(SIZE, max_delay_s), IN_FLIGHT, max_waiting)
    oracle.play(items, TICK_S, 1 / 2)
    runs.clear()
    found, status = trio.run(
        play_for_real, items, max_delay_s, max_waiting, clock=MockClock(autojump_threshold=0)
    )
    assert found == [item.ended for item in items]
    assert [columns_of(items, names) for names in oracle.runs] == runs
    counts = {how: found.count(how) for how in ("refused", "late")}
    assert (status.refused, status.expired) == (counts["refused"], counts["late"])
    assert (status.waiting, status.in_flight) == (0, 0)


def columns_of(items: Sequence[Asked], names: Sequence[int]) -> list[float]:
    """Return the first column of a batch, padded to its length by its last row."""
    rows = [float(value(items[name])) for name in names for _ in range(items[name].rows)]
    return rows + rows[-1:] * (SIZE - len(rows))


def value(item: Asked) -> int:
    return item.name + (BAD if item.is_bad else 0)


async def play_for_real(items: Sequence[Asked], max_delay_s: float, max_waiting: int) -> Any:
    """Return what comes of each item, and the status at the end."""
    device = SteppedDevice("stepped", private=False)
    plan = pl.plan(doubling(SIZE), device, max_in_flight=IN_FLIGHT)
    found = [""] * len(items)

    async def work() -> None:
        await trio.sleep(1 / 2)
        while True:
            await wait_all_tasks_blocked()
            if device.queue:
                device.step()
            await trio.sleep(TICK_S)

    async def come(item: Asked, batches: pl.MicroBatches, begin_s: float) -> None:
        await trio.sleep_until(begin_s + item.since_s)
        deadline_s = None if item.until_s == float("inf") else item.until_s - item.since_s
        with trio.move_on_at(begin_s + item.gone_s) as stay:
            try:
                outputs = await batches.run(
                    row(value(item), rows=item.rows), deadline_s=deadline_s, client=item.client
                )
            except pl.QueueFullError:
                found[item.name] = "refused"
            except pl.DeadlineError:
                found[item.name] = "late"
            except pl.KernelError:
                found[item.name] = "failed"
            else:
                assert (outputs["y"] == 2 * value(item)).all()
                assert outputs["y"].shape == (item.rows, 2)
                found[item.name] = "done"
        if stay.cancelled_caught:
            found[item.name] = "gone"

    async with (
        pl.Session(plan) as session,
        pl.MicroBatches(
            session, size=SIZE, max_delay_s=max_delay_s, max_waiting=max_waiting
        ) as batches,
        trio.open_nursery() as nursery,
    ):
        begin_s = float(np.ceil(trio.current_time()))
        await trio.sleep_until(begin_s)
        nursery.start_soon(work)
        async with trio.open_nursery() as clients:
            for item in items:
                clients.start_soon(come, item, batches, begin_s)
        await trio.sleep(TICK_S * (IN_FLIGHT + 1))  # for what was left by all
        nursery.cancel_scope.cancel()
        return found, batches.status()


# which items run together


@pytest.mark.parametrize(
    ("size", "max_delay_s", "arrivals", "expected"),
    [
        (4, 2.0, [0, 1, 1.5, 9], [[0, 1, 2], [3]]),
        (2, 2.0, [0, 1, 1.5, 9], [[0, 1], [2], [3]]),
        (4, 0.0, [0, 0, 0, 1], [[0, 1, 2], [3]]),
        (3, 5.0, [0, 0, 0, 0], [[0, 1, 2], [3]]),
    ],
)
async def test_a_batch_starts_when_it_is_full_or_its_first_item_has_waited(
    autojump_clock: MockClock,
    size: int,
    max_delay_s: float,
    arrivals: Sequence[float],
    expected: Sequence[Sequence[float]],
) -> None:
    plan = pl.plan(doubling(), ["cpu"], bounds={"batch": size})
    ended: dict[float, Any] = {}
    async with pl.Session(plan) as session:
        for rows in range(1, size + 1):  # opened by a thread, while the clock would jump
            await session.run(row(0, rows=rows))
        runs.clear()
        async with pl.MicroBatches(session, size=size, max_delay_s=max_delay_s) as batches:
            begin_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number, arrival_s in enumerate(arrivals):
                    if trio.current_time() < begin_s + arrival_s:
                        await trio.sleep_until(begin_s + arrival_s)
                    nursery.start_soon(ask, batches, ended, number)
    found = [len(columns) for columns in runs]
    assert found == [len(columns) for columns in expected], "within bounds nothing is padded"
    assert sorted(chain.from_iterable(runs)) == list(range(len(arrivals)))
    assert ended == {number: [[2 * number] * 2] for number in range(len(arrivals))}


async def test_what_comes_while_others_run_goes_together() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(8), device)) as session,
        pl.MicroBatches(session, size=8) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in range(6):
            nursery.start_soon(ask, batches, ended, number)
            await wait_all_tasks_blocked()
        assert (len(device.queue), batches.status().waiting, batches.status().in_flight) == (
            1,
            5,
            1,
        )
        device.step()
        await wait_all_tasks_blocked()
        device.step()
    assert runs == [[0] * 8, [1, 2, 3, 4, 5, 5, 5, 5]]
    assert ended == {number: [[2 * number] * 2] for number in range(6)}


async def test_as_many_batches_are_under_way_as_the_plan_has_slots() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(2), device, max_in_flight=3)) as session,
        pl.MicroBatches(session, size=2) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in range(10):
            nursery.start_soon(ask, batches, ended, number)
        await wait_all_tasks_blocked()
        assert (batches.status().in_flight, batches.status().waiting) == (3, 4)
        for _ in range(5):
            device.step()
            await wait_all_tasks_blocked()
    assert len(ended) == 10
    assert batches.status().batches == 5


async def test_items_of_other_shapes_run_in_batches_of_their_own() -> None:
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(width="w"))) as session,
        pl.MicroBatches(session, size=4, max_delay_s=0.001) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in range(8):
            nursery.start_soon(partial(ask, batches, ended, number, width=2 + number % 2))
    assert ended == {number: [[2 * number] * (2 + number % 2)] for number in range(8)}
    assert all(len({number % 2 for number in columns}) == 1 for columns in runs)
    assert len(runs) == 2


async def test_results_are_copies_that_keep_nothing_of_the_batch() -> None:
    outputs: list[Array] = []

    async def keep(number: int) -> None:
        outputs.append((await batches.run(row(number)))["y"])

    async with (
        pl.Session(pl.plan(doubling())) as session,
        pl.MicroBatches(session, size=4) as batches,
    ):
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(keep, number)
    assert all(one.base is None and one.flags.owndata and one.flags.writeable for one in outputs)
    assert sorted(one[0, 0] for one in outputs) == [0, 0, 2, 2, 4, 4, 6, 6]


# what is wrong


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "no value for input 'x'"),
        ({"x": np.zeros((1, 2), "float32"), "z": 0}, "has no input 'z'"),
        ({"x": np.zeros((1, 2), "int8")}, "input 'x' must be"),
        ({"x": np.zeros((1, 3), "float32")}, r"input 'x' must be .* got shape \[1, 3\]"),
        ({"x": np.zeros((1, 2, 1), "float32")}, r"input 'x' must be .* got shape \[1, 2, 1\]"),
        ({"x": np.float32(0)}, "'x' has no axis to batch along"),
        ({"x": np.zeros((5, 2), "float32")}, "5 rows does not fit into a batch of 4"),
    ],
)
@pytest.mark.parametrize(
    ("length", "bounds"), [("batch", None), (4, None), ("batch", {"batch": 6})]
)
async def test_what_is_wrong_with_an_item_is_said_before_it_joins_a_batch(
    inputs: Any, message: str, length: Any, bounds: Any
) -> None:
    async with (
        pl.Session(pl.plan(doubling(length), bounds=bounds)) as session,
        pl.MicroBatches(session, size=4, max_delay_s=60.0) as batches,
    ):
        with pytest.raises(pl.FeedError, match=message):
            await batches.run(inputs)
        assert batches.status().waiting == batches.status().batches == 0
    assert runs == []


async def test_only_what_is_wrong_in_a_batch_fails_and_others_run_twice_at_most() -> None:
    ended: dict[float, Any] = {}
    numbers = [number + (BAD if number % 5 == 3 else 0) for number in range(20)]
    async with (
        pl.Session(pl.plan(doubling(), max_in_flight=2)) as session,
        pl.MicroBatches(session, size=4) as batches,
    ):
        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(ask, batches, ended, number)
        done, failures = session.status().done, session.status().failed
    failed = {number for number, one in ended.items() if isinstance(one, pl.KernelError)}
    assert failed == {number for number in numbers if number >= BAD}
    assert all(ended[number] == [[2 * number] * 2] for number in numbers if number < BAD)
    times = [sum(number in columns for columns in runs) for number in numbers]
    assert set(times) <= {1, 2}
    assert batches.status().retried_alone == times.count(2)
    assert (done, failures) == (20, 4)


async def test_what_has_effects_does_not_run_twice() -> None:
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(4, function=sent))) as session,
        pl.MicroBatches(session, size=4) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in (0, 1, BAD, 3):
            nursery.start_soon(ask, batches, ended, number)
    assert len(runs) == 1
    assert all(isinstance(error, pl.KernelError) for error in ended.values())
    assert len(set(map(id, ended.values()))) == 4, "each has an error of its own"


async def test_a_full_queue_refuses_and_says_how_long_it_is() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(2), device)) as session,
        pl.MicroBatches(session, size=2, max_waiting=3) as batches,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, batches, ended, 0)
        await wait_all_tasks_blocked()
        for number in range(1, 4):
            nursery.start_soon(ask, batches, ended, number)
        await wait_all_tasks_blocked()
        with pytest.raises(pl.QueueFullError, match=r"3 items wait(.|\n)*max_waiting="):
            await batches.run(row(9))
        assert batches.status().refused == 1
        for _ in range(3):
            device.step()
            await wait_all_tasks_blocked()
    assert sorted(ended) == [0, 1, 2, 3]


async def test_what_is_late_in_the_queue_is_never_run(autojump_clock: MockClock) -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(2), device)) as session,
        pl.MicroBatches(session, size=2) as batches,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(ask, batches, ended, 0, deadline_s=9.0))
        await wait_all_tasks_blocked()
        nursery.start_soon(partial(ask, batches, ended, 1, deadline_s=3.0))
        nursery.start_soon(partial(ask, batches, ended, 2))
        await trio.sleep(4.0)
        assert (list(ended), batches.status().waiting) == ([1], 1)
        assert str(ended[1]).startswith("the item was not done within 3.0 s")
        device.step()
        await wait_all_tasks_blocked()
        device.step()
    assert runs == [[0, 0], [2, 2]]
    assert batches.status().expired == 1


async def test_a_batch_that_everybody_has_left_is_cancelled() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with (
        pl.Session(pl.plan(doubling(2), device, max_in_flight=2)) as session,
        pl.MicroBatches(session, size=2) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in range(2):
            nursery.start_soon(ask, batches, ended, number)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as leaving:
            for number in range(2, 4):
                leaving.start_soon(ask, batches, ended, number)
            await wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        in_flight = batches.status().in_flight
        while device.queue:
            device.step()
            await wait_all_tasks_blocked()
    assert (len(runs), in_flight) == (1, 1)
    assert sorted(ended) == [0, 1]


# the end


async def test_closing_fails_what_waits_and_what_runs() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    async with pl.Session(pl.plan(doubling(2), device)) as session:
        async with trio.open_nursery() as nursery:
            async with pl.MicroBatches(session, size=2) as batches:
                for number in range(5):
                    nursery.start_soon(ask, batches, ended, number)
                await wait_all_tasks_blocked()
                nursery.start_soon(_step_when_cancelled, device)
        assert sorted(ended) == list(range(5))
        assert all(type(error) is pl.SessionError for error in ended.values())
        with pytest.raises(pl.SessionError, match="closed"):
            await batches.run(row(1))
        assert (batches.status().waiting, batches.status().in_flight) == (0, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, row(7, rows=2))
            await wait_all_tasks_blocked()
            device.step()
    assert runs == [[7, 7]]


async def _step_when_cancelled(device: SteppedDevice) -> None:
    while not device.queue[0][0].cancelled:
        await trio.lowlevel.checkpoint()
    device.step()


async def test_closing_the_session_first_fails_what_waits_and_what_runs() -> None:
    device = SteppedDevice("stepped", private=False)
    ended: dict[float, Any] = {}
    session = pl.Session(pl.plan(doubling(2), device))
    await session.__aenter__()
    async with trio.open_nursery() as nursery, pl.MicroBatches(session, size=2) as batches:
        for number in range(5):
            nursery.start_soon(ask, batches, ended, number)
        await wait_all_tasks_blocked()
        nursery.start_soon(_step_when_cancelled, device)
        await session.__aexit__(None, None, None)
        await wait_all_tasks_blocked()
        assert sorted(ended) == list(range(5))
        assert all(type(error) is pl.SessionError for error in ended.values())


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        with pytest.raises(KeyError, match="own"):
            async with pl.MicroBatches(session, size=2):
                raise KeyError("own")


@pytest.mark.slow
async def test_a_caller_that_is_cancelled_at_any_moment_disturbs_nobody() -> None:
    async with (
        pl.Session(pl.plan(doubling(4), max_in_flight=2)) as session,
        pl.MicroBatches(session, size=4) as batches,
    ):
        ended: dict[float, Any] = {}

        async def work() -> None:
            async with trio.open_nursery() as others:
                others.start_soon(_shielded, batches, ended, 1)
                others.start_soon(_shielded, batches, ended, BAD)
                await batches.run(row(3))

        async def check() -> None:
            assert ended[1] == [[2, 2]]
            assert isinstance(ended[BAD], pl.KernelError)
            ended.clear()
            assert (batches.status().waiting, (await batches.run(row(7)))["y"][0, 0]) == (0, 14)

        assert await cancel_at_each_moment(work, check) > 5


async def _shielded(batches: pl.MicroBatches, ended: dict[float, Any], value: float) -> None:
    with trio.CancelScope(shield=True):
        await ask(batches, ended, value)


@pytest.mark.slow
async def test_batches_that_are_cancelled_at_any_moment_leave_the_session_usable() -> None:
    async with pl.Session(pl.plan(doubling(4), max_in_flight=2)) as session:

        async def work() -> None:
            ended: dict[float, Any] = {}
            async with (
                pl.MicroBatches(session, size=4, max_delay_s=0.0001) as batches,
                trio.open_nursery() as nursery,
            ):
                for number in (0, 1, BAD, 3, 4):
                    nursery.start_soon(ask, batches, ended, number)

        async def check() -> None:
            assert session.status().in_flight == 0
            assert ((await session.run(row(5, rows=4)))["y"] == 10).all()

        assert await cancel_at_each_moment(work, check) > 5


# what it refuses


def counting() -> pl.Graph:
    builder = pl.GraphBuilder("counting")
    held = builder.variable("held", np.zeros((4, 2), "float32"))
    builder.output("y", builder.assign(held, builder.input("x", "float32", (4, 2))))
    return builder.build()


def summed() -> pl.Graph:
    builder = pl.GraphBuilder("summed")
    x = builder.input("x", "float32", (4, 2))
    builder.output("y", builder.op("ReduceSum", x, np.array([0]), keepdims=1))
    return builder.build()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (counting(), "assign to variables"),
        (summed(), r"output 'y' is of shape \[1, 2\]"),
        (doubling(2), "4 items do not fit into a batch of 2"),
    ],
)
async def test_graphs_that_take_no_batches_are_refused_when_they_are_opened(
    graph: pl.Graph, message: str
) -> None:
    async with pl.Session(pl.plan(graph)) as session:
        with pytest.raises(pl.PlaitError, match=message):
            async with pl.MicroBatches(session, size=4):
                pytest.fail("they opened")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": 2.5}, "size is 2.5"),
        ({"size": 2, "max_waiting": 0}, "max_waiting is 0"),
        ({"size": 2, "max_delay_s": -1.0}, "max_delay_s is -1.0"),
        ({"size": 2, "max_delay_s": float("nan")}, "max_delay_s is nan"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(pl.SessionError, match=message):
        pl.MicroBatches(pl.Session(pl.plan(doubling())), **arguments)


async def test_what_is_not_open_or_open_twice_says_so() -> None:
    batches = pl.MicroBatches(pl.Session(pl.plan(doubling())), size=2)
    with pytest.raises(pl.SessionError, match="the batches are not open"):
        await batches.run(row(1))
    with pytest.raises(pl.SessionError, match="the session is not open"):
        await batches.__aenter__()
    async with pl.Session(pl.plan(doubling())) as session:
        async with pl.MicroBatches(session, size=2) as batches:
            with pytest.raises(pl.SessionError, match="open already"):
                await batches.__aenter__()
            with pytest.raises(pl.SessionError, match="client is a list"):
                await batches.run(row(1), client=[])  # type: ignore[arg-type]
            with pytest.raises(pl.SessionError, match="deadline_s is 0"):
                await batches.run(row(1), deadline_s=0)
            assert batches.status().to_dict()["mean_rows"] == 0.0
