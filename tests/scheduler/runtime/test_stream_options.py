"""Order, errors, deadlines, views and events of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from patience import WAIT_S
from plait.devices.errors import KernelError
from plait.scheduler.runtime.events import ItemDone
from staged import ringed
from trio.testing import wait_all_tasks_blocked


@pl.operator(name="test_stream_options.picky")
def picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if x[0] < 0:
        raise ValueError("negative")
    return x + 1


def python_graph() -> pl.Graph:
    builder = pl.GraphBuilder("python")
    builder.output("y", builder.call(picky, builder.input("x", "float32", ("n",))))
    return builder.build()


def relu() -> pl.Graph:
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))
    return builder.build()


def item(value: float) -> dict[str, Any]:
    return {"x": np.full(2, value, np.float32)}


def items(count: int) -> Iterator[dict[str, Any]]:
    return (item(value) for value in range(count))


async def step_all(device: SteppedDevice) -> None:
    """Let a device go on until the session wants nothing more of it."""
    await wait_all_tasks_blocked()
    while device.queue:
        device.step()
        await wait_all_tasks_blocked()


async def test_without_order_results_come_when_they_are_there() -> None:
    device = SteppedDevice("stepped")
    async with pl.Session(pl.plan(relu(), device, max_in_flight=3)) as session:
        async with session.stream(items(3), ordered=False) as results:
            await wait_all_tasks_blocked()
            first = device.queue.pop(0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(step_all, device)
                seen = [(await anext(results)).index for _ in range(2)]
            device.queue.append(first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(step_all, device)
                seen += [one.index async for one in results]
    assert seen == [1, 2, 0]


async def test_errors_may_be_raised_where_their_items_would_come() -> None:
    source = [item(0), item(-1), item(2)]
    async with pl.Session(pl.plan(python_graph())) as session:
        async with session.stream(source, on_error="raise") as results:
            assert (await anext(results)).index == 0
            with pytest.raises(KernelError, match="negative") as caught:
                await anext(results)
            assert "  at:  item 1, node " in str(caught.value)
            assert (await anext(results)).index == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"batch": 1.5}, "batch is 1.5"),
        ({"max_in_flight": "4"}, "max_in_flight is '4'"),
        ({"max_in_flight": 10**12}, "max_in_flight is 1,000,000,000,000"),
        ({"batch": 3, "max_in_flight": 2}, "a batch of 3 items never fills up with 2 in flight"),
        ({"max_delay_s": 0.1}, "max_delay_s is 0.1(.|\n)*and batch="),
        ({"batch": 2, "max_delay_s": -1.0}, "max_delay_s is -1.0"),
        ({"deadline_s": 0.0}, "deadline_s is 0.0"),
        ({"deadline_s": float("nan")}, "deadline_s is nan"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)
async def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str
) -> None:
    async with pl.Session(pl.plan(relu())) as session:
        with pytest.raises(pl.SessionError, match=message):
            session.stream([], **options)


async def test_a_late_item_fails_and_the_others_go_on(autojump_clock: trio.abc.Clock) -> None:
    device = SteppedDevice("stepped")
    plan = pl.plan(relu(), device, max_in_flight=2)

    async def work() -> None:
        while True:
            await trio.sleep(0.1)
            if device.queue:
                await trio.sleep(9.0 if trio.current_time() < 1 else 0.1)
                device.step()

    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        nursery.start_soon(work)
        async with session.stream(items(6), deadline_s=5.0) as results:
            got = [(one.index, one.error) async for one in results]
        nursery.cancel_scope.cancel()
    assert [index for index, _ in got] == list(range(6))
    late = [isinstance(error, pl.DeadlineError) for _, error in got]
    assert late == [True, True, False, False, False, False]
    assert "within 5.0 s" in str(got[0][1])


async def test_an_item_that_is_late_before_it_has_a_slot_is_not_started(
    autojump_clock: trio.abc.Clock,
) -> None:
    device = SteppedDevice("stepped")
    plan = pl.plan(relu(), device, max_in_flight=1)

    async with pl.Session(plan) as session, session.stream([item(9)]) as blocking:
        await wait_all_tasks_blocked()
        async with session.stream(items(3), deadline_s=2.5) as results:
            for n_done in (1, 2, 3):
                assert isinstance((await anext(results)).error, pl.DeadlineError)
                assert trio.current_time() == 2.5 * n_done
        assert len(device.queue) == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(step_all, device)
            assert (await anext(blocking))["y"][0] == 9


async def test_items_in_line_are_late_even_if_the_one_before_them_is_not_done(
    autojump_clock: trio.abc.Clock,
) -> None:
    device = SteppedDevice("stepped")
    plan = ringed(pl.plan(relu(), device, max_in_flight=4), copies=1)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        async with session.stream(items(4), deadline_s=2.5, ordered=False) as results:
            for _ in range(3):
                one = await anext(results)
                assert isinstance(one.error, pl.DeadlineError)
                assert one.index > 0
            assert trio.current_time() == 2.5
            nursery.start_soon(step_all, device)
            assert isinstance((await anext(results)).error, pl.DeadlineError)


async def test_a_run_has_a_deadline_too(autojump_clock: trio.abc.Clock) -> None:
    device = SteppedDevice("stepped")
    async with pl.Session(pl.plan(relu(), device)) as session, trio.open_nursery() as nursery:

        async def work() -> None:
            await trio.sleep(3.0)
            await step_all(device)

        nursery.start_soon(work)
        with pytest.raises(pl.DeadlineError, match=r"within 2\.0 s"):
            await session.run(item(1), deadline_s=2.0)
        assert trio.current_time() == 3.0  # what ran has ended
        nursery.start_soon(step_all, device)
        assert (await session.run(item(1), deadline_s=2.0))["y"][0] == 1


async def test_a_deadline_is_not_mistaken_for_a_cancellation(
    autojump_clock: trio.abc.Clock,
) -> None:
    device = SteppedDevice("stepped")
    async with pl.Session(pl.plan(relu(), device)) as session, trio.open_nursery() as nursery:

        async def work() -> None:
            await trio.sleep(3.0)
            await step_all(device)

        nursery.start_soon(work)
        with trio.move_on_after(1.0) as scope:
            await session.run(item(1), deadline_s=2.5)
        assert scope.cancelled_caught


async def test_views_show_the_memory_of_the_session_and_end_with_their_item() -> None:
    async with pl.Session(pl.plan(relu(), max_in_flight=2)) as session:
        async with session.stream(items(5), copy=False) as results:
            previous = None
            async for one in results:
                view = one["y"]
                assert view[0] == one.index
                assert not view.flags.writeable
                assert view.base is not None
                if previous is not None:
                    with pytest.raises(pl.SessionError, match=r"item . was released"):
                        previous["y"]
                    assert "released" in repr(previous)
                previous = one
        assert previous is not None
        with pytest.raises(pl.SessionError, match="copy=True"):
            previous["y"]


async def test_views_are_not_overwritten_while_they_are_held() -> None:
    """Nor while their items wait to be handed out."""
    plan = pl.plan(relu(), max_in_flight=3)
    async with pl.Session(plan) as session, session.stream(items(20), copy=False) as results:
        async for one in results:
            await wait_all_tasks_blocked()
            assert one["y"].tolist() == [one.index] * 2


async def test_a_stream_that_is_left_lets_go_of_its_slots() -> None:
    async with pl.Session(pl.plan(relu(), max_in_flight=2)) as session:
        for _ in range(3):
            async with session.stream(items(9), copy=False) as results:
                await anext(results)
                await wait_all_tasks_blocked()
        assert (await session.run(item(5)))["y"][0] == 5


async def test_copies_outlive_their_item_and_may_be_written_to() -> None:
    async with pl.Session(pl.plan(relu(), max_in_flight=1)) as session:
        async with session.stream(items(4)) as results:
            kept = [one async for one in results]
    for index, one in enumerate(kept):
        assert one["y"].tolist() == [index] * 2
        one["y"][0] = 9


async def test_a_channel_is_closed_when_its_stream_ends() -> None:
    send, receive = trio.open_memory_channel[dict[str, Any]](9)
    async with pl.Session(pl.plan(relu())) as session:
        async with session.stream(receive) as results:
            await send.send(item(3))
            assert (await anext(results))["y"][0] == 3
        with pytest.raises(trio.BrokenResourceError):
            await send.send(item(4))


async def test_observers_hear_of_every_item_once() -> None:
    heard: list[Any] = []
    plan = pl.plan(python_graph(), max_in_flight=2)
    async with pl.Session(plan, on_event=heard.append) as session:
        async with session.stream([item(0), item(-1), {}, item(3)]) as results:
            errors = [type(one.error) async for one in results]
        await session.run(item(4))
        with pytest.raises(pl.FeedError):
            await session.run({})
    assert all(isinstance(event, ItemDone) for event in heard)
    kinds = [type(event.error) for event in heard]
    assert sorted(map(str, kinds)) == sorted(map(str, [*errors, type(None), pl.FeedError]))
    assert all(event.latency_s > 0 for event in heard if event.error is None)


async def test_an_item_that_never_started_took_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise MemoryError

    heard: list[Any] = []
    async with pl.Session(pl.plan(relu()), on_event=heard.append) as session:
        monkeypatch.setattr("plait.scheduler.runtime.opened.copying.Feeds.write", failing)
        with pytest.raises(MemoryError):
            await session.run(item(0))
    assert [event.latency_s for event in heard] == [0]


async def test_what_an_observer_raises_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: object) -> None:
        raise LookupError("no such metric")

    async with pl.Session(pl.plan(relu()), on_event=failing) as session:
        assert (await session.run(item(4)))["y"][0] == 4
    assert "an observer of a session failed" in caplog.text


async def test_the_moments_of_an_item_follow_each_other() -> None:
    async with pl.Session(pl.plan(relu(), max_in_flight=2)) as session:
        async with session.stream(items(5)) as results:
            async for _ in results:
                await wait_all_tasks_blocked()
        await session.run(item(1))
        records = session.profile().records
    for record in records:
        marks = record.marks
        way = [marks.asked_ns, marks.given_ns, marks.admitted_ns, marks.fed_ns]
        way += [marks.finished_ns, marks.landed_ns, marks.taken_ns, marks.released_ns]
        assert way == sorted(way)
        assert way[0] > 0
    assert [record.marks.stream for record in records] == [1] * 5 + [0]


@pytest.mark.parametrize(
    "options",
    [{"batch": 2}, {"batch": 2, "copy": False}, {"copy": False}, {"deadline_s": 1e6}],
)
async def test_cancelling_at_any_checkpoint_leaves_every_slot_free(options: dict[str, Any]) -> None:
    async def later() -> AsyncIterator[dict[str, Any]]:
        for value in range(5):
            await trio.lowlevel.checkpoint()
            yield item(value)

    async def consume() -> None:
        async with session.stream(later(), **options) as results:
            async for _ in results:
                await trio.lowlevel.checkpoint()

    async with pl.Session(pl.plan(python_graph(), max_in_flight=2)) as session:
        for moment in range(0, 48, 3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume)
                for _ in range(moment):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            with trio.fail_after(WAIT_S):
                async with session.stream(items(5), **options) as results:
                    assert [one.index async for one in results] == [0, 1, 2, 3, 4]
