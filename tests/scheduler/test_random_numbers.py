"""Random numbers of sessions: they follow from the seed and the item's number, nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plait.devices.worker.device import WorkerDevice
from plait.graph.operators.randomness import RANDOM_KEY
from plait.graph.passes import PASSES

AnyArray = NDArray[Any]
ITEMS = 6


def drawing(rows: int | str = "n") -> pl.Graph:
    """Return a graph that draws in all ways, over some nodes of which plans may be cut."""
    b = pl.GraphBuilder("drawing")
    x = b.input("x", "float32", (rows, 6))
    noise = b.op("RandomNormalLike", x, name="noise")
    uniform = b.op("RandomUniformLike", x, name="uniform")
    dropped = b.op("Dropout", x, np.float32(0.5), np.array(True), name="drop")
    b.output("y", b.op("Add", b.op("Mul", dropped, noise), uniform, name="sum"))
    b.output("coin", b.op("Bernoulli", uniform, name="coin", dtype="bool"))
    b.output("class", b.op("Multinomial", x, sample_size=3, name="class"))
    return b.build()


def feeds(count: int = ITEMS) -> list[dict[str, AnyArray]]:
    x = np.arange(12, dtype="float32").reshape(2, 6) / 10
    return [{"x": x + i} for i in range(count)]


def bits(outputs: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def one_by_one(plan: pl.Plan, seed: int = 3) -> list[dict[str, bytes]]:
    with pl.BlockingSession(plan, seed=seed) as session:
        return [bits(session.run(fed)) for fed in feeds()]


@pytest.fixture(scope="module")
def wanted() -> list[dict[str, bytes]]:
    return one_by_one(pl.plan(drawing()))


def test_items_and_seeds_draw_other_numbers(wanted: list[dict[str, bytes]]) -> None:
    for name in ("y", "coin", "class"):
        assert len({item[name] for item in wanted}) == ITEMS
    assert one_by_one(pl.plan(drawing())) == wanted
    assert one_by_one(pl.plan(drawing()), seed=4)[0]["y"] != wanted[0]["y"]


@pytest.mark.parametrize("device", ["formal", "compiled", "worker", "ort", "sim:gpu", "opencl"])
def test_devices_draw_the_same_bits(wanted: list[dict[str, bytes]], device: str) -> None:
    try:
        plan = pl.plan(drawing(), [device, "cpu"], strategy="preference")
    except pl.DeviceUnavailableError:
        pytest.skip(f"{device} is missing here")
    assert one_by_one(plan) == wanted


@given(st.lists(st.sampled_from(["cpu", "cpu:1"]), min_size=5, max_size=5), st.integers(1, 3))
@settings(max_examples=8)
def test_partitions_passes_and_items_in_flight_change_nothing(
    where: list[str], in_flight: int
) -> None:
    names = ("noise", "uniform", "drop", "sum", "class")
    plan = pl.plan(
        drawing(),
        ["cpu", "cpu:1"],
        pin=dict(zip(names, where, strict=True)),
        passes=() if in_flight == 2 else PASSES,
        max_in_flight=in_flight,
    )
    with pl.BlockingSession(plan, seed=3) as session, session.stream(feeds()) as results:
        found = [bits(item.outputs) for item in results]
    assert found == one_by_one(pl.plan(drawing()))


async def test_streams_number_items_by_their_source(wanted: list[dict[str, bytes]]) -> None:
    async with pl.Session(pl.plan(drawing(), max_in_flight=3), seed=3) as session:
        async with session.stream(feeds(4), ordered=False) as results:
            found = {item.index: bits(item.outputs) async for item in results}
        found[4] = bits(await session.run(feeds()[4]))  # the numbers go on from call to call
    assert [found[i] for i in range(5)] == wanted[:5]


def test_a_single_run_draws_what_the_first_item_of_a_session_does(
    wanted: list[dict[str, bytes]],
) -> None:
    assert bits(pl.run(drawing(), feeds()[0], seed=3)) == wanted[0]


def test_sessions_under_asyncio_draw_the_same(wanted: list[dict[str, bytes]]) -> None:
    async def main() -> list[dict[str, bytes]]:
        async with pl.AsyncioSession(pl.plan(drawing(), max_in_flight=2), seed=3) as session:
            first = bits(await session.run(feeds()[0]))
            async with session.stream(feeds()[1:]) as results:
                return [first, *[bits(item.outputs) async for item in results]]

    assert asyncio.run(main()) == wanted


async def test_replicas_draw_the_same(wanted: list[dict[str, bytes]]) -> None:
    plan = pl.plan(drawing(), ["worker:0..1"], max_in_flight=2)
    async with pl.Session(plan, seed=3) as session, session.stream(feeds()) as results:
        assert [bits(item.outputs) async for item in results] == wanted


async def test_a_key_that_is_fed_repeats_an_item(wanted: list[dict[str, bytes]]) -> None:
    key = np.array([3, 4], np.uint64)
    async with pl.Session(pl.plan(drawing())) as session:
        assert bits(await session.run({**feeds()[4], RANDOM_KEY: key})) == wanted[4]


async def test_fetches_draw_what_the_whole_graph_does(wanted: list[dict[str, bytes]]) -> None:
    async with pl.Session(pl.plan(drawing()), seed=3) as session:
        for fed, item in zip(feeds(), wanted, strict=True):
            assert (await session.run(fed, "coin")).tobytes() == item["coin"]
    async with pl.Session(pl.plan(drawing()).fetching("class"), seed=3) as session:
        assert (await session.run(feeds()[0]))["class"].tobytes() == wanted[0]["class"]
        assert (await session.run(feeds()[1], "x")).tolist() == feeds()[1]["x"].tolist()


def test_a_saved_plan_draws_the_same(wanted: list[dict[str, bytes]], tmp_path: Any) -> None:
    pl.plan(drawing()).save(tmp_path / "plan.plait")
    assert one_by_one(pl.load_plan(tmp_path / "plan.plait")) == wanted


async def test_items_of_a_killed_worker_draw_the_same_again(
    wanted: list[dict[str, bytes]],
) -> None:
    worker = WorkerDevice("worker:0")
    pins = dict.fromkeys(("noise", "drop", "class"), "worker:0")

    def source() -> Iterator[dict[str, AnyArray]]:
        for number, fed in enumerate(feeds()):
            if number == 3:
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
            yield fed

    plan = pl.plan(drawing(), [worker, "cpu"], pin=pins, max_in_flight=2)
    async with pl.Session(plan, seed=3) as session, session.stream(source()) as results:
        assert [bits(item.outputs) async for item in results] == wanted


async def test_a_batch_draws_by_the_number_of_its_first_item() -> None:
    b = pl.GraphBuilder("batched")
    x = b.input("x", "float32", ("batch", 3))
    b.output("y", b.op("Add", x, b.op("RandomUniformLike", x)))
    items = [{"x": np.zeros((1, 3), "float32")} for _ in range(4)]
    async with pl.Session(pl.plan(b.build()), seed=1) as session:
        async with session.stream(items, batch=2, max_in_flight=4) as results:
            rows = [item["y"] async for item in results]
        for number in (0, 2):
            whole = {"x": np.zeros((2, 3), "float32"), RANDOM_KEY: np.array([1, number], "uint64")}
            y = (await session.run(whole))["y"]
            np.testing.assert_array_equal(np.concatenate(rows[number : number + 2]), y)


async def test_lengths_that_depend_on_values_do_not_make_keys_constants() -> None:
    b = pl.GraphBuilder("found")
    x = b.input("x", "float32", (4,))
    places = b.op("Squeeze", b.op("NonZero", x), np.array([0]))
    found = b.op("Gather", x, places)
    b.output("y", b.op("Add", found, b.op("RandomNormalLike", found, name="noise")))
    fed = {"x": np.array([0, 1, 0, 2], "float32")}
    async with pl.Session(pl.plan(b.build())) as session:
        seen = {(await session.run(fed))["y"].tobytes() for _ in range(4)}
        assert len(seen) == 4
        assert session.status().plans.misses <= 3


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "7"])
def test_a_seed_is_an_integer_of_64_bits(seed: Any) -> None:
    with pytest.raises(pl.SessionError, match="the seed is"):
        pl.Session(pl.plan(drawing()), seed=seed)


def test_training_with_dropout_has_the_same_bits_again() -> None:
    b = pl.GraphBuilder("training")
    x = b.input("x", "float32", (16, 8))
    w = b.variable("w", np.ones((8, 1), "float32"))
    dropped = b.op("Dropout", b.op("MatMul", x, w), np.float32(0.3), np.array(True))
    loss = b.op("ReduceSumSquare", dropped, keepdims=False)
    b.output("train", pl.learning.minimize(b, loss, pl.learning.SGD(1e-3)))
    fed = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype("float32")}

    def trained(seed: int) -> bytes:
        with pl.BlockingSession(pl.plan(b.build()), seed=seed) as session:
            for _ in range(5):
                session.run(fed, "train")
            return bytes(session.variables["w"])

    assert trained(1) == trained(1) != trained(2)
