"""Troubles around items: closing in the middle, eviction, Ctrl-C, devices that misbehave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice, SteppedDevice
from patience import WAIT_S
from plait.devices.memory import Arena
from plait.graph.core.ir import Graph
from plait.scheduler.dispatch import core_shares
from plait.scheduler.runtime.items import item
from plait.scheduler.runtime.items.item import ItemRun
from plait.scheduler.runtime.opened import copying, open_plans
from plait.scheduler.runtime.opened.open_plan import OpenPlan
from plait.scheduler.runtime.running import completion
from trio.testing import wait_all_tasks_blocked

X = np.array([-1.0, 2.0], np.float32)


def relu(*shape: int | str) -> Graph:
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", shape)))
    return builder.build()


def ones(n: int) -> dict[str, Any]:
    return {"x": np.ones(n, np.float32)}


# closing


async def test_closing_a_session_turns_away_runs_that_wait_for_a_slot() -> None:
    device = SteppedDevice("stepped")
    outcomes: list[object] = []

    async def run(session: pl.Session) -> None:
        try:
            outcomes.append(await session.run({"x": X}))
        except pl.SessionError as error:
            outcomes.append(error.what)

    async def go_on() -> None:
        await wait_all_tasks_blocked()
        while device.queue:
            device.step()

    async with trio.open_nursery() as nursery:
        async with pl.Session(pl.plan(relu(2), device)) as session:
            for _ in range(3):
                nursery.start_soon(run, session)
            await wait_all_tasks_blocked()
            nursery.start_soon(go_on)
    assert outcomes == ["the session was closed before the item was done"] * 3


async def test_a_stream_in_another_task_ends_when_its_session_is_closed() -> None:
    errors: list[BaseException | None] = []

    async def consume(session: pl.Session, started: trio.Event) -> None:
        async with session.stream([ones(2)] * 5, max_in_flight=1) as results:
            async for item in results:
                errors.append(item.error)
                started.set()
                await wait_all_tasks_blocked()

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            async with pl.Session(pl.plan(relu(2))) as session:
                started = trio.Event()
                nursery.start_soon(consume, session, started)
                await started.wait()
    assert errors[0] is None
    assert all(isinstance(error, pl.SessionError) for error in errors[1:])
    assert len(errors) == 5


async def test_every_device_is_closed_even_if_one_fails_to() -> None:
    closed = threading.Event()

    class Bad(PrivateDevice):
        def close(self) -> None:
            super().close()
            raise pl.DeviceError("the driver failed")

    class Good(PrivateDevice):
        def close(self) -> None:
            super().close()
            closed.set()

    plan = pl.plan(relu(2), [Good("good"), Bad("bad")])  # closed in reverse
    with pytest.raises(pl.DeviceError, match="the driver failed"):
        async with pl.Session(plan) as session:
            await session.run({"x": X})
    assert closed.is_set()


class Unclosable(PrivateDevice):
    """Fails to close, in a way of its own."""

    def close(self) -> None:
        super().close()
        raise pl.DeviceError("the driver failed") if self.name == "a" else ValueError(self.name)


async def test_what_all_devices_say_that_fail_to_close_is_told() -> None:
    plan = pl.plan(relu(2), [Unclosable(name) for name in "abc"])
    with pytest.raises(pl.DeviceError) as raised:
        async with pl.Session(plan) as session:
            await session.run({"x": X})
    assert raised.value.what == "closing it failed: ValueError: c"
    told = "\n".join(raised.value.__notes__)
    assert "and then: closing it failed: ValueError: b\n  at:  device 'b'" in told
    assert "and then: the driver failed\n  at:  device 'a', which was closed" in told


async def test_what_fails_to_close_does_not_hide_why_a_session_does_not_open() -> None:
    class Shut(PrivateDevice):
        def open(self, cores: int | None = None) -> None:
            raise pl.DeviceUnavailableError("the door is shut")

    plan = pl.plan(relu(2), [Unclosable("b"), Shut("shut")])
    with pytest.raises(pl.DeviceUnavailableError, match="the door is shut") as raised:
        async with pl.Session(plan):
            pass
    assert raised.value.__notes__ == [
        "and then: closing it failed: ValueError: b\n  at:  device 'b'"
    ]


async def test_a_device_given_as_an_object_serves_sessions_until_the_last_one_ends() -> None:
    plan = pl.plan(relu(2), PrivateDevice("given"))
    async with pl.Session(plan) as first:
        async with pl.Session(plan) as second:
            await second.run({"x": X})
        assert (await first.run({"x": X}))["y"].tolist() == [0, 2]


# eviction


async def test_a_plan_that_comes_into_use_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans are to go; while the first is being closed, the second gets an item."""
    monkeypatch.setattr(open_plans, "KEPT_PLANS", 3)
    closing, used = threading.Event(), threading.Event()
    close = OpenPlan.close

    def slow_close(self: OpenPlan) -> None:
        closing.set()
        used.wait(WAIT_S)
        close(self)

    device = SteppedDevice("stepped")

    async def run(session: pl.Session, n: int) -> list[float]:
        return (await session.run(ones(n)))["y"].tolist()  # type: ignore[no-any-return]

    async def step() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if device.queue:
                device.step()

    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(relu("n"), device)) as session:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(step)
                for n in (1, 2, 3):
                    assert await run(session, n) == [1.0] * n
                monkeypatch.setattr(OpenPlan, "close", slow_close)
                monkeypatch.setattr(open_plans, "KEPT_PLANS", 2)
                nursery.start_soon(run, session, 4)
                while not closing.is_set():
                    await trio.lowlevel.checkpoint()
                second = await run(session, 2)
                used.set()
                assert second == [1.0, 1.0]
                assert await run(session, 4) == [1.0] * 4
                nursery.cancel_scope.cancel()


class Small(PrivateDevice):
    """Has room for so many bytes at a time."""

    def __init__(self, room: int) -> None:
        super().__init__("small")
        self.room = room

    def arena(self, memory: str, nbytes: int) -> Arena:
        if nbytes > self.room:
            raise pl.DeviceMemoryError(f"{nbytes} bytes do not fit into {self.room}")
        self.room -= nbytes
        made, give_back = super().arena(memory, nbytes), self._give_back
        close = made.close

        def close_and_count() -> None:
            close()
            give_back(nbytes)

        made.close = close_and_count  # type: ignore[method-assign]
        return made

    def _give_back(self, nbytes: int) -> None:
        self.room += nbytes


async def test_idle_plans_give_way_to_one_that_has_no_room() -> None:
    device = Small(5000)
    async with pl.Session(pl.plan(relu("n"), device)) as session:
        for n in (1000, 1001, 1002):
            assert (await session.run(ones(n)))["y"].size == n
        with pytest.raises(pl.DeviceMemoryError):
            await session.run(ones(2000))
    assert device.room == 5000


# slots


async def test_an_item_takes_any_slot_that_is_free() -> None:
    """The second of two items ends first; the third does not wait for the first one's slot."""
    device = SteppedDevice("stepped")
    plan = pl.plan(relu(2), device, max_in_flight=2)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        for value in range(2):
            nursery.start_soon(session.run, {"x": X + value})
        await wait_all_tasks_blocked()
        for _ in range(3):  # there, on the device, and back
            device.queue.reverse()
            device.step()
        await wait_all_tasks_blocked()
        nursery.start_soon(session.run, {"x": X + 2})
        await wait_all_tasks_blocked()
        assert len(device.queue) == 2, "the first and the third"
        while device.queue:
            device.step()


# streams


async def test_an_item_that_is_no_array_fails_alone() -> None:
    class Rude(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise LookupError("rude")

    source: list[Mapping[str, Any]] = [ones(2), {"x": [[1], [2, 3]]}, Rude(x=1), ones(2)]
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(relu(2))) as session, session.stream(source) as results:
            errors = [type(item.error) async for item in results]
    assert errors == [type(None), pl.FeedError, LookupError, type(None)]


async def test_errors_keep_their_causes() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield ones(2)
        raise LookupError("source") from OSError("unplugged")

    async with pl.Session(pl.plan(relu(2))) as session:
        with pytest.raises(LookupError) as caught:
            async with session.stream(failing()) as results:
                async for _ in results:
                    pass
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(KeyError) as body:
            async with session.stream([ones(2)]):
                raise KeyError("body") from ValueError("why")
        assert isinstance(body.value.__cause__, ValueError)


async def test_leaving_a_stream_leaves_no_item_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The item being fed on a thread when the stream is left is not started, or awaited."""
    monkeypatch.setattr(item, "ALONE_BYTES", 0)
    feeding, left = threading.Event(), threading.Event()
    write = copying.Feeds.write

    def write_slowly(*arguments: Any) -> None:
        feeding.set()
        left.wait(WAIT_S)
        write(*arguments)

    monkeypatch.setattr(copying.Feeds, "write", write_slowly)
    device = SteppedDevice("stepped")
    steps = 0

    async def step() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            if device.queue:
                device.step()
                steps += 1

    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(relu(2), device)) as session, trio.open_nursery() as nursery:
            async with session.stream([ones(2)]):
                while not feeding.is_set():
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(step)
                left.set()
            done = steps
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert steps == done
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("n", "in_flight"), [(2, 1), (3, 1), (2, 2)])
async def test_the_loop_copies_an_item_that_is_alone_where_that_takes_no_longer_than_a_thread(
    n: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two as well, since it is alone when it is fed; not when it lands."""
    monkeypatch.setattr(item, "INLINE_BYTES", 0)
    monkeypatch.setattr(item, "ALONE_BYTES", 8)
    here, by_loop = threading.get_ident(), dict[str, list[bool]]()

    def watched(name: str, call: Any) -> Any:
        def noting(*arguments: Any) -> Any:
            by_loop.setdefault(name, []).append(threading.get_ident() == here)
            return call(*arguments)

        return noting

    monkeypatch.setattr(copying.Feeds, "write", watched("in", copying.Feeds.write))
    monkeypatch.setattr(completion, "_take_results", watched("out", completion._take_results))
    device = SteppedDevice("stepped")
    async with pl.Session(pl.plan(relu(n), device, max_in_flight=in_flight)) as session:
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(session.run, ones(n))
            while by_loop.get("in", []) == [] or len(by_loop["in"]) < in_flight:
                await trio.lowlevel.checkpoint()
            await wait_until_started(device, in_flight)
            while device.queue:
                device.step()
    assert by_loop["in"] == [n == 2, False][:in_flight]
    # Both end before the first one can land.
    assert by_loop["out"] == ([n == 2] if in_flight == 1 else [False, False])


async def wait_until_started(device: SteppedDevice, count: int) -> None:
    """Wait until items have given a device, which keeps no order itself, their first step."""
    while len(device.queue) < count:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("most", [8, 0], ids=["by the lane", "by a thread"])
async def test_results_are_copied_beside_the_loop(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the thread that ends an item's last step; what is large, by one that no step waits for."""
    monkeypatch.setattr(completion, "AFTER_LAST_BYTES", most)
    monkeypatch.setattr(item, "ALONE_BYTES", 0)
    threads: list[str] = []

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return taken(*arguments)

    taken = completion._take_results
    monkeypatch.setattr(completion, "_take_results", watched)
    async with pl.Session(pl.plan(relu(2))) as session:
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name
    assert threads[0].startswith("plait-cpu") == bool(most)


async def test_no_memory_for_the_results_fails_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("full")

    async with pl.Session(pl.plan(relu(2))) as session:
        with monkeypatch.context() as patch:
            patch.setitem(ItemRun.__init__.__kwdefaults__ or {}, "take", full)
            with pytest.raises(MemoryError):
                await session.run({"x": X})
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]


# interruptions


def test_control_c_while_a_step_is_submitted_ends_the_program() -> None:
    class Interrupted(PrivateDevice):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().submit(*arguments, **options)

    plan = pl.plan(relu(2), Interrupted("interrupted"))

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session:
                await session.run({"x": X})

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


@pl.operator(name="test_runtime.leave")
def leave(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raise SystemExit(3)


@pytest.mark.parametrize("device", ["cpu", "worker:0"])
async def test_a_function_that_calls_exit_fails_its_item_only(device: str) -> None:
    builder = pl.GraphBuilder("leave")
    builder.output("y", builder.call(leave, builder.input("x", "float32", (2,))))
    async with pl.Session(pl.plan(builder.build(), device)) as session:
        for _ in range(2):
            with pytest.raises(pl.KernelError, match="SystemExit: 3"):
                await session.run({"x": X})


# order and figures


async def test_independent_steps_of_a_device_run_in_the_order_of_the_graph() -> None:
    builder = pl.GraphBuilder("order")
    x = builder.input("x", "float32", (2,))
    for index in range(4):
        builder.output(f"y{index}", builder.op("Relu", x, name=f"n{index}"))
    plan = pl.plan(builder.build())
    async with pl.Session(plan) as session:
        await session.run({"x": X})
        spans = sorted(session.profile().records[0].spans(), key=lambda span: span.started_ns)
    assert [span.step.index for span in spans] == [0, 1, 2, 3]


async def test_items_that_wait_for_a_slot_are_not_in_flight_yet() -> None:
    async with pl.Session(pl.plan(relu(2))) as session:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(session.run, {"x": X})
        records = sorted(session.profile().records, key=lambda record: record.admitted_ns)
    for earlier, later in pairwise(records):
        assert earlier.landed_ns <= later.admitted_ns


# arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"max_in_flight": 10**12}, "max_in_flight is 1000000000000"),
        ({"max_in_flight": 2.5}, "max_in_flight is 2.5"),
        ({"max_in_flight": "4"}, "max_in_flight is '4'"),
        ({"shapes": {"x": 4}}, "shapes is {'x': 4}"),
        ({"shapes": {"x": (2.5,)}}, "shapes is"),
        ({"pin": ["a"]}, r"pin is \['a'\]"),
        ({"passes": "fold_scale"}, "passes is 'fold_scale'"),
        ({"passes": 3}, "passes is 3"),
    ],
)
def test_arguments_of_the_wrong_kind_are_told_so(arguments: Any, message: str) -> None:
    with pytest.raises(pl.PlanError, match=message):
        pl.plan(relu(2), **arguments)


def test_what_is_no_graph_is_told_so() -> None:
    with pytest.raises(pl.PlanError, match="expected a graph, got int"):
        pl.plan(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("spell", [str, Path])
def test_the_file_of_a_model_is_planned_as_its_graph_is(spell: Any, tmp_path: Path) -> None:
    pl.save(relu(2), tmp_path / "relu.plait")
    made = pl.plan(spell(tmp_path / "relu.plait"), "cpu", max_in_flight=3)
    assert made.graph == pl.plan(relu(2), "cpu").graph
    assert made.max_in_flight == 3


def test_devices_may_come_from_any_iterable() -> None:
    assert pl.plan(relu(2), (name for name in ["cpu"])).devices == ("cpu",)


def test_arrays_of_either_byte_order_are_fed() -> None:
    assert pl.run(relu(2), {"x": X.astype(">f4")})["y"].tolist() == [0, 2]


# cores


class Counting(PrivateDevice):
    """Remembers how many cores it was given."""

    cores: int | None = -1

    def open(self, cores: int | None = None) -> None:
        self.cores = cores
        super().open()


def chain(*devices: str) -> pl.Plan:
    """Plan a chain of one node per device, with a further device that has nothing to do."""
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (2,))
    for name in devices:
        last = builder.op("Relu", last, name=name)
    builder.output("y", last)
    pins = {name: name for name in devices}
    return pl.plan(builder.build(), [Counting(name) for name in (*devices, "idle")], pin=pins)


async def cores_given(plan: pl.Plan) -> list[int | None]:
    async with pl.Session(plan):
        pass
    return [device.cores for device in plan.prototypes.values() if isinstance(device, Counting)]


async def test_devices_that_compute_on_the_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_shares, "count_cores", lambda: 8)
    assert await cores_given(chain("a", "b")) == [3, 3, 3]


async def test_one_core_is_left_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_shares, "count_cores", lambda: 8)
    assert await cores_given(chain("a")) == [7, 7]
