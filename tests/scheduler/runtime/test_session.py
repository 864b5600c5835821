from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice, SteppedDevice
from plait.devices.errors import KernelError
from plait.graph.core.ir import Graph
from plait.scheduler.planner.request import MOST_IN_FLIGHT
from plait.scheduler.runtime.items.input_staging import InputStagingPool, copy_inputs
from plait.scheduler.runtime.opened.feeds import to_array
from trio.testing import wait_all_tasks_blocked

X = np.array([-1.0, 2.0], np.float32)


@pl.operator(name="test_session.picky")
def picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if x[0] == 13:
        raise ValueError("thirteen")
    if x[0] == 14:
        return np.zeros(9, np.float32)
    return x + 1


def simple(op: str = "Relu") -> Graph:
    builder = pl.GraphBuilder("simple")
    builder.output("y", builder.op(op, builder.input("x", "float32", (2,)), name="n"))
    return builder.build()


def python_graph() -> Graph:
    builder = pl.GraphBuilder("python")
    builder.output("y", builder.call(picky, builder.input("x", "float32", (2,)), name="picky"))
    return builder.build()


def symbolic() -> Graph:
    builder = pl.GraphBuilder("symbolic")
    x = builder.input("x", "float32", ("n", "n"))
    builder.output("y", builder.op("Add", x, builder.input("b", "float32", ("n",))))
    return builder.build()


async def test_run_returns_the_outputs() -> None:
    async with pl.Session(pl.plan(simple())) as session:
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]


async def test_results_are_the_callers_own() -> None:
    async with pl.Session(pl.plan(simple())) as session:
        first = await session.run({"x": X})
        await session.run({"x": X + 5})
        assert first["y"].tolist() == [0, 2]
        first["y"][:] = 9


async def test_what_was_fed_is_not_written_to() -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    async with pl.Session(pl.plan(simple())) as session:
        await session.run({"x": frozen})
    assert frozen.tolist() == X.tolist()


async def test_an_input_and_a_constant_can_be_fetched() -> None:
    builder = pl.GraphBuilder("through")
    x = builder.input("x", "float32", (2,))
    builder.output("same", x)
    builder.output("two", builder.constant(np.float32(2)))
    async with pl.Session(pl.plan(builder.build())) as session:
        results = await session.run({"x": X})
    assert results["same"].tolist() == X.tolist()
    assert results["two"] == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"no value for input 'x': float32\[2\]"),
        ({"z": X}, r"no value for input 'x': float32\[2\], and there is no input 'z'"),
        ({"x": X, "z": X}, "has no input 'z'(.|\n)*its inputs are: x"),
        ({"xx": X}, "there is no input 'xx'(.|\n)*did you mean 'x'"),
        ({"x": X.astype("float64")}, r"got dtype 'float64'(.|\n)*np.asarray\(value, 'float32'\)"),
        ({"x": X[:1]}, r"must be float32\[2\], got shape \[1\]"),
        ([X], r"must be float32\[2\], got shape \[1, 2\]"),
        ({"x": b"abc"}, r"got bytes(.|\n)*np.frombuffer\(value, 'float32'\)"),
        ({"x": bytearray(b"abc")}, r"got bytearray(.|\n)*np.frombuffer\(value, 'float32'\)"),
        ({"x": Path("x.bin")}, r"got a path\n(.|\n)*np.fromfile\(value, 'float32'\)$"),
        ({"x": None}, r"got None\n(.|\n)*feed an array of float32"),
        ({"x": "abc"}, r"got text\n(.|\n)*feed an array of float32"),
        ({"x": ["a", "b"]}, r"got text\n(.|\n)*feed an array of float32"),
        ({"x": np.array(["a", "b"], np.dtypes.StringDType())}, r"got text\n"),
    ],
)
async def test_wrong_feeds_are_refused_and_the_session_goes_on(inputs: Any, message: str) -> None:
    async with pl.Session(pl.plan(simple())) as session:
        with pytest.raises(pl.FeedError, match=message):
            await session.run(inputs)
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]


def of_bytes(*shape: Any) -> pl.Graph:
    b = pl.GraphBuilder("bytes")
    b.output("y", b.op("Identity", b.input("file", "uint8", shape)))
    return b.build()


@pytest.mark.parametrize("content", [b"", b"abc\0\xff"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_in_a_file_is_an_array_of_bytes(content: bytes, kind: Any) -> None:
    plan = pl.plan(of_bytes("n"), max_in_flight=2)
    feeds = {"file": kind(content)}
    with pl.BlockingSession(plan) as session:
        found = [session.run(feeds), session.submit(feeds).result(60.0)]
        found += [item.outputs for item in session.stream([feeds] * 5)]
    assert [result["y"].tobytes() for result in found] == [content] * 7


def read_only_array(content: bytes) -> Any:
    """Return an array that its owner can still write to, by another view."""
    array = np.frombuffer(bytearray(content), np.uint8)[:]
    array.flags.writeable = False
    return array


def unpickled_array(content: bytes) -> Any:
    """Return an array that numpy has let lie in the bytes it was read from, and lets be changed."""
    array = pickle.loads(pickle.dumps(np.frombuffer(content * 20, np.uint8).copy(), protocol=4))
    assert isinstance(array.base, bytes)
    assert array.flags.writeable
    return array


def make_staging_pool() -> InputStagingPool:
    return InputStagingPool(pl.plan(of_bytes("n")))


def test_bytes_are_fed_without_a_copy() -> None:
    content = bytes(range(100))
    on_them = np.frombuffer(content, np.uint8)
    assert np.shares_memory(to_array(content), on_them)
    for fed in (content, on_them, on_them[5:50:3], on_them.view("int8").reshape(10, 10)):
        room = make_staging_pool().room_for({"file": fed})
        kept = copy_inputs({"file": fed}, room, ())["file"]  # while it waits: nobody changes bytes
        assert np.shares_memory(kept, on_them)


def view_of_unpickled_array(content: bytes) -> Any:
    view = unpickled_array(content)[3:]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize(
    "kind", [bytearray, read_only_array, unpickled_array, view_of_unpickled_array]
)
def test_what_may_be_changed_is_copied_while_it_waits(kind: Callable[[bytes], Any]) -> None:
    """By arrays that come from another process, too: those of a pool lie in bytes."""
    content = np.asarray(kind(bytes(range(100))))
    room = make_staging_pool().room_for({"file": content})
    assert not np.shares_memory(copy_inputs({"file": content}, room, ())["file"], content)


async def test_a_text_is_no_file() -> None:
    async with pl.Session(pl.plan(of_bytes("n"))) as session:
        with pytest.raises(pl.FeedError, match=r"got text\n(.|\n)*read_bytes\(\)"):
            await session.run({"file": "photo.jpg"})


async def test_a_path_is_no_file_and_the_hint_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"abc\0\xff")
    async with pl.Session(pl.plan(of_bytes("n"))) as session:
        with pytest.raises(pl.FeedError, match="got a path") as raised:
            await session.run({"file": path})
        hint = (raised.value.fix or "").partition(": ")[2]
        found = await session.run({"file": eval(hint, {"np": np, "value": path})})
    assert found["y"].tobytes() == b"abc\0\xff"


async def test_symbols_must_stand_for_one_length() -> None:
    async with pl.Session(pl.plan(symbolic())) as session:
        good = {"x": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}
        assert (await session.run(good))["y"].shape == (2, 2)
        with pytest.raises(pl.FeedError, match=r"input 'b'.*with n = 2"):
            await session.run({**good, "b": np.ones(3, np.float32)})


async def test_shapes_that_do_not_fit_deep_inside_are_told_with_what_was_fed() -> None:
    b = pl.GraphBuilder("halves")
    b.output("y", b.op("Reshape", b.input("x", "float32", ("n",)), np.array([2, -1]), name="half"))
    async with pl.Session(pl.plan(b.build())) as session:
        with pytest.raises(pl.ShapeError) as caught:
            await session.run({"x": np.zeros(3, "float32")})
    assert "node 'half'" in str(caught.value)
    assert "fed is x[3]" in str(caught.value)


async def test_every_shape_gets_a_plan_of_its_own() -> None:
    async with pl.Session(pl.plan(symbolic())) as session:
        for n in (*range(1, 20), *range(1, 20)):
            fed = {"x": np.full((n, n), n, np.float32), "b": np.ones(n, np.float32)}
            np.testing.assert_array_equal((await session.run(fed))["y"], fed["x"] + 1)


async def test_a_raising_function_names_its_node_and_the_session_goes_on() -> None:
    async with pl.Session(pl.plan(python_graph())) as session:
        with pytest.raises(KernelError, match=r"ValueError: thirteen(.|\n)*node 'picky'") as caught:
            await session.run({"x": np.full(2, 13, np.float32)})
        assert isinstance(caught.value.__cause__, ValueError)
        assert (await session.run({"x": X}))["y"].tolist() == [0, 3]


async def test_a_function_that_returns_the_wrong_shape_is_told_so() -> None:
    async with pl.Session(pl.plan(python_graph())) as session:
        with pytest.raises(KernelError, match=r"output 0 of the function is float32\[9\]"):
            await session.run({"x": np.full(2, 14, np.float32)})
        assert (await session.run({"x": X}))["y"].tolist() == [0, 3]


async def test_runs_of_one_session_can_be_concurrent() -> None:
    results: dict[int, float] = {}
    async with pl.Session(pl.plan(simple(), max_in_flight=2)) as session:

        async def one(value: int) -> None:
            results[value] = float((await session.run({"x": X + value}))["y"][1])

        async with trio.open_nursery() as nursery:
            for value in range(20):
                nursery.start_soon(one, value)
    assert results == {value: 2.0 + value for value in range(20)}


def stepped() -> tuple[SteppedDevice, pl.Plan]:
    device = SteppedDevice("stepped")
    return device, pl.plan(simple(), device)


async def finish(device: SteppedDevice) -> None:
    """Let a stepped device go on until the session waits for nothing of it."""
    await wait_all_tasks_blocked()
    while device.queue:
        device.step()
        await wait_all_tasks_blocked()


async def test_cancelling_a_run_waits_for_what_runs_and_leaves_the_session_usable() -> None:
    device, plan = stepped()
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope, device)
            await session.run({"x": X})
        assert scope.cancelled_caught
        nursery.start_soon(finish, device)
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]


async def _cancel_when_blocked(scope: trio.CancelScope, device: SteppedDevice) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert device.queue, "the copy is still queued, so the run may not have returned"
    await finish(device)


async def test_a_deadline_ends_a_run() -> None:
    device, plan = stepped()
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope, device)
            with pytest.raises(trio.Cancelled):
                await session.run({"x": X})
            raise_again = scope.cancel_called
        assert raise_again


async def test_leaving_a_session_ends_what_is_under_way() -> None:
    device, plan = stepped()
    async with trio.open_nursery() as nursery:
        async with pl.Session(plan) as session:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_when_blocked, scope, device)
                await session.run({"x": X})
        assert not device.is_open


async def test_a_closed_session_says_so() -> None:
    session = pl.Session(pl.plan(simple()))
    for use in (session.run({"x": X}),):
        with pytest.raises(pl.SessionError, match="not open"):
            await use
    with pytest.raises(pl.SessionError, match="not open"):
        session.stream([])
    with pytest.raises(pl.SessionError, match="not open"):
        session.profile()


async def test_a_session_is_opened_once() -> None:
    async with pl.Session(pl.plan(simple())) as session:
        with pytest.raises(pl.SessionError, match="open already"):
            await session.__aenter__()


def test_a_session_takes_what_can_be_planned() -> None:
    with pytest.raises(pl.SessionError, match="opens a plan, not a int"):
        pl.Session(3)  # type: ignore[arg-type]


class Broken(PrivateDevice):
    """Refuses one thing that a session asks of it."""

    def __init__(self, name: str, refuses: str) -> None:
        super().__init__(name)
        self.was_closed = False
        setattr(self, refuses, self._refuse)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise pl.DeviceUnavailableError("refused")

    def close(self) -> None:
        self.was_closed = True
        super().close()


@pytest.mark.parametrize("refuses", ["open", "arena", "view", "compile"])
async def test_opening_that_fails_leaves_nothing_open(refuses: str) -> None:
    other, broken = Broken("other", "nothing"), Broken("broken", refuses)
    plan = pl.plan(simple(), [other, broken], pin={"n": "broken"})
    with pytest.raises(pl.DeviceUnavailableError, match="refused"):
        async with pl.Session(plan):
            pytest.fail("it opened")
    assert other.was_closed


@pytest.mark.parametrize("refuses", ["submit", "copy"])
async def test_a_device_that_refuses_work_fails_the_item_only(refuses: str) -> None:
    broken = Broken("broken", refuses)
    async with pl.Session(pl.plan(simple(), broken)) as session:
        for _ in range(2):
            with pytest.raises(pl.DeviceUnavailableError, match="refused"):
                await session.run({"x": X})


async def test_one_plan_opens_in_two_sessions_at_once() -> None:
    plan = pl.plan(simple())
    async with pl.Session(plan) as first, pl.Session(plan) as second:
        assert (await first.run({"x": X}))["y"].tolist() == [0, 2]
        assert (await second.run({"x": X}))["y"].tolist() == [0, 2]


def test_a_session_under_asyncio_says_what_to_open_there() -> None:
    async def open_it() -> None:
        async with pl.Session(pl.plan(simple())):
            raise AssertionError("opened")

    with pytest.raises(pl.SessionError, match=r"a loop of asyncio(.|\n)*AsyncioSession\(plan\)"):
        asyncio.run(open_it())


def test_a_session_without_any_loop_says_what_to_do() -> None:
    opening = pl.Session(pl.plan(simple())).__aenter__()
    with pytest.raises(pl.SessionError, match=r"no trio loop runs here(.|\n)*BlockingSession"):
        opening.send(None)


async def test_a_session_for_many_items_makes_its_slots_when_they_are_needed() -> None:
    async with pl.Session(pl.plan(simple(), max_in_flight=MOST_IN_FLIGHT)) as session:
        assert (await session.run({"x": X}))["y"].tolist() == [0, 2]
