"""Stages of bounded lengths run as one plan, whose steps are bound to lengths on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.costs.costs import PYTHON_S
from plait.scheduler.planner.joined_stages import join_stages, plan_ahead
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.staged_plans import make_entry
from plait.scheduler.runtime.opened.shape_plan_cache import ShapePlanCache

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
BOUNDS: dict[str, int | tuple[int, int]] = {"n": 16, "high": 8, "low": (1, 8)}
IN_FLIGHT = 4
IN_PROCESS: list[Any] = ["cpu", "compiled", ["ort", "cpu"], ["ort:0..1", "cpu:0..1"]]


def rows_of(name: str, symbol: str, sign: int) -> Any:
    """Return a function that picks the rows whose first value has a sign."""

    def pick(x: Array) -> Array:
        if np.isnan(x[0, 3]):
            raise ValueError("a row has no value")
        return x[sign * x[:, 0] > 0]

    spec = pl.TensorSpec("float32", (symbol, 4))
    inputs = [pl.TensorSpec("float32", ("n", 4))]
    return pl.operator(spec, inputs=inputs, name=f"test.{name}")(pick)


HIGH, LOW = rows_of("high_rows", "high", 1), rows_of("low_rows", "low", -1)
SAME = rows_of("as_many_rows", "high", -1)


def forked(*, same: bool = False) -> Graph:
    """Return a graph that counts rows in two ways side by side; what is counted is fetched, too."""
    b = pl.GraphBuilder("forked")
    x = b.op("Mul", b.input("x", "float32", ("n", 4)), np.float32(2), name="doubled")
    high, low = b.call(HIGH, x, name="high"), b.call(SAME if same else LOW, x, name="low")
    b.output("high", high)
    b.output("product", b.op("MatMul", high, WEIGHT))
    b.output("both", b.op("Relu", b.op("Concat", high, low, axis=0)))
    b.output("mean", b.op("ReduceMean", low, np.array([0]), keepdims=False))
    return b.build()


def rows(n: int, high: int, low: int, seed: int = 0) -> dict[str, Array]:
    """Return n rows, of which so many are high, and so many low."""
    x = np.random.default_rng(seed).uniform(-1, 1, (n, 4)).astype(np.float32)
    x[:, 0] = 0
    x[:high, 0], x[high : high + low, 0] = 1, -1
    return {"x": x}


def check(result: Any, fed: dict[str, Array]) -> None:
    x = 2 * fed["x"]
    high, low = x[x[:, 0] > 0], x[x[:, 0] < 0]
    np.testing.assert_array_equal(result["high"], high)
    np.testing.assert_allclose(result["product"], high @ WEIGHT, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result["both"], np.maximum(np.concatenate([high, low]), 0))
    np.testing.assert_allclose(result["mean"], low.mean(0), rtol=1e-5, atol=1e-6)


@pl.operator(
    pl.TensorSpec("float32", (6, 4)),
    inputs=[pl.TensorSpec("uint8", ("bytes",))],
    name="test.decoded",
)
def decode(data: Array) -> Array:
    """Return as many high rows as the bytes say, of a size that does not depend on theirs."""
    found = np.full((6, 4), len(data), np.float32)
    found[:, 0] = np.arange(6) < data[0]
    return found


@pl.operator(
    pl.TensorSpec("float32", ("high", 4)),
    inputs=[pl.TensorSpec("float32", (6, 4))],
    name="test.found",
)
def find(x: Array) -> Array:
    return x[x[:, 0] > 0]


def decoder() -> Graph:
    """Return a graph in which few nodes see the length that is fed; its Conv changes nothing."""
    b = pl.GraphBuilder("decoder")
    x = b.call(decode, b.input("data", "uint8", ("bytes",)))
    middle = np.zeros((1, 1, 3, 3), np.float32)
    middle[..., 1, 1] = 1
    image = b.op("Conv", b.op("Reshape", x, np.array([1, 1, 6, 4])), middle, pads=(1, 1, 1, 1))
    rows = b.call(find, b.op("Relu", b.op("Reshape", image, np.array([6, 4]))), name="find")
    b.output("whole", x)
    b.output("rows", b.op("MatMul", rows, WEIGHT))
    return b.build()


@st.composite
def items(draw: st.DrawFn) -> list[dict[str, Array]]:
    found = []
    for seed in range(draw(st.integers(1, 12))):
        n = draw(st.integers(1, 16))
        low = draw(st.integers(1, min(n, 8)))
        found.append(rows(n, draw(st.integers(0, min(n - low, 8))), low, seed))
    return found


@pytest.fixture(scope="module", params=IN_PROCESS, ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[pl.BlockingSession]:
    plan = pl.plan(forked(), request.param, bounds=BOUNDS, max_in_flight=IN_FLIGHT)
    with pl.BlockingSession(plan) as opened:
        yield opened


@settings(max_examples=15)
@given(fed=items())
def test_streams_of_any_lengths_have_the_right_numbers(
    session: pl.BlockingSession, fed: list[dict[str, Array]]
) -> None:
    for item in session.stream(fed):
        check(item, fed[item.index])
    check(session.run(fed[0]), fed[0])


@pytest.mark.parametrize("devices", IN_PROCESS, ids=str)
def test_what_is_decoded_is_as_long_whatever_is_fed(devices: Any) -> None:
    plan = pl.plan(decoder(), devices, bounds={"bytes": 64, "high": 6}, max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        for length, count in [(64, 6), *zip(range(1, 60, 5), [3, 4, 5, 2, 0, 1] * 2, strict=True)]:
            result = session.run({"data": np.full(length, count, np.uint8)})
            x = np.full((6, 4), length, np.float32)
            x[:, 0] = np.arange(6) < count
            np.testing.assert_array_equal(result["whole"], x)
            np.testing.assert_allclose(result["rows"], x[:count] @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["object", "float32"])
def test_stages_are_joined_beside_an_input_that_no_node_reads(dtype: str) -> None:
    b = pl.GraphBuilder("unread")
    b.input("name", dtype, ())
    for name, tensor in b.include(forked(), {"x": b.input("x", "float32", ("n", 4))}).items():
        b.output(name, tensor)
    plan = pl.plan(b.build(), ["cpu"], bounds=BOUNDS, max_in_flight=2)
    assert join_stages(make_entry(plan, 2)) is not None
    with pl.BlockingSession(plan) as session:
        for n in (9, 16, 9):
            check(session.run({"name": np.float32(n), **rows(n, 3, 2)}), rows(n, 3, 2))


def test_lengths_of_inputs_need_not_vary() -> None:
    plan = pl.plan(decoder(), ["ort", "cpu"], bounds={"bytes": 64, "high": 6})
    fixed = plan.for_shapes({"data": (5,)})
    joined = join_stages(make_entry(fixed, 2))
    assert joined is not None
    assert [stage.bounds for stage in joined.stages] == [{}, {"high": (0, 6)}]
    assert pl.simulate(fixed).makespan_s > 0
    with pl.BlockingSession(fixed) as session:
        for count in (3, 0, 6, 3, 1, 2, 4):
            result = session.run({"data": np.full(5, count, np.uint8)})
            whole = np.full((6, 4), 5, np.float32)
            whole[:, 0] = np.arange(6) < count
            np.testing.assert_allclose(result["rows"], whole[:count] @ WEIGHT, rtol=1e-5)
        assert session.status().plans.kept == 1


def test_it_is_one_plan_that_stays_the_only_one(session: pl.BlockingSession) -> None:
    before = session.status().plans.kept
    for n in (3, 16, 9):
        check(session.run(rows(n, 1, 2)), rows(n, 1, 2))
    assert session.status().plans.kept == before <= 2  # one for each replica


@pytest.mark.parametrize("devices", IN_PROCESS, ids=str)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_its_memory_holds_what_is_needed_at_any_time(devices: Any, in_flight: int) -> None:
    plan = pl.plan(forked(), devices, bounds=BOUNDS, max_in_flight=in_flight)
    cache = ShapePlanCache(plan, None)  # type: ignore[arg-type]  # nothing is opened
    entry = cache.entry(in_flight)
    assert entry is not None
    plan_ahead(entry)
    joined = join_stages(entry)
    assert joined is not None
    assert joined.is_static
    assert [len(stage.computes) for stage in joined.stages] == [2, 0]
    verify_memory(joined)


def test_devices_of_other_processes_have_a_plan_for_each_stage() -> None:
    plan = pl.plan(forked(), ["worker:0", "cpu"], pin={"doubled": "worker:0"}, bounds=BOUNDS)
    with pl.BlockingSession(plan) as apart:
        check(apart.run(rows(9, 3, 2)), rows(9, 3, 2))
        assert apart.status().plans.kept > 1


def test_lengths_that_contradict_each_other_are_the_items_own_mistake() -> None:
    bounds = {"n": 16, "high": 8}
    with pl.BlockingSession(pl.plan(forked(same=True), bounds=bounds)) as session:
        for _ in range(3):
            with pytest.raises(pl.ShapeError, match=r"'high' is . here, and was") as raised:
                session.run(rows(9, 2, 3))
            assert "another symbol" in (raised.value.fix or "")
            check(session.run(rows(9, 3, 3)), rows(9, 3, 3))


def test_items_that_fail_on_the_way_hold_nothing(session: pl.BlockingSession) -> None:
    broken = rows(9, 3, 2)
    broken["x"][:, 3] = np.nan
    for _ in range(3 * IN_FLIGHT):
        with pytest.raises(pl.KernelError, match="a row has no value"):
            session.run(broken)
        with pytest.raises(pl.ShapeError, match="'low' is 0 here, out of its bounds 1 to 8"):
            session.run(rows(9, 3, 0))
    results = session.stream([broken, rows(5, 1, 1), broken, rows(6, 2, 2)], on_error="yield")
    assert [item.error is None for item in results] == [False, True, False, True]
    check(session.run(rows(16, 8, 8)), rows(16, 8, 8))
    assert session.status().in_flight == 0


def test_lengths_that_come_again_are_bound_already() -> None:
    with pl.BlockingSession(pl.plan(forked(), ["ort", "cpu"], bounds=BOUNDS)) as session:
        for expected in ((0, 1), (1, 1), (2, 1)):
            check(session.run(rows(9, 3, 2)), rows(9, 3, 2))
            status = session.status().plans
            assert (status.hits, status.misses - 1) == expected  # one was made to open it
        check(session.run(rows(9, 3, 1)), rows(9, 3, 1))
        assert session.status().plans.misses == 3
        binding = [row for row in session.profile().table().splitlines() if "binding" in row]
        assert binding
        assert " 0.000 " not in binding[0]


async def test_a_cancelled_item_ends_before_its_next_step() -> None:
    reached, goes_on = threading.Event(), threading.Event()

    @pl.operator(
        pl.TensorSpec("float32", ("high", 4)),
        inputs=[pl.TensorSpec("float32", ("n", 4))],
        name="test.waits",
    )
    def wait(x: Array) -> Array:
        reached.set()
        assert goes_on.wait(WAIT_S)
        return x[x[:, 0] > 0]

    b = pl.GraphBuilder("waiting")
    b.output("y", b.op("Neg", b.call(wait, b.input("x", "float32", ("n", 4)))))
    plan = pl.plan(b.build(), bounds={"n": 16, "high": 8})
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        fed = rows(4, 2, 1)

        async def run() -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await session.run(fed)

        scopes: list[trio.CancelScope] = []
        nursery.start_soon(run)
        assert await trio.to_thread.run_sync(reached.wait, WAIT_S)
        scopes[0].cancel()
        goes_on.set()
        np.testing.assert_array_equal((await session.run(fed))["y"], -fed["x"][:2])


@pytest.mark.parametrize("max_in_flight", [None, 6])
def test_it_is_simulated_as_it_runs_for_the_largest_lengths(max_in_flight: int | None) -> None:
    plan = pl.plan(forked(), ["ort:0..1", "cpu:0..1"], bounds=BOUNDS, max_in_flight=4)
    found = pl.simulate(plan, items=10, max_in_flight=max_in_flight)
    of_cpu = (share for lane, share in found.busy.items() if "cpu" in lane)
    assert sum(of_cpu) >= 10 * 2 * PYTHON_S  # of two functions each
    assert found.plan.max_in_flight == (max_in_flight or 4) // 2
    assert found.plan.graph.tensors["high"].shape == (8, 4)
    apart = pl.plan(forked(), ["worker:0", "cpu"], pin={"doubled": "worker:0"}, bounds=BOUNDS)
    with pytest.raises(pl.PlanError, match="values decide"):
        pl.simulate(apart)


def test_what_few_items_would_wait_for_is_done_when_it_is_opened() -> None:
    with pl.BlockingSession(pl.plan(forked(), ["ort", "cpu"], bounds=BOUNDS)) as session:
        check(session.run(rows(15, 7, 7)), rows(15, 7, 7))
        assert session.status().plans.hits == 1


def test_one_function_returns_one_length_for_one_symbol() -> None:
    spec = pl.TensorSpec("float32", ("high", 4))

    @pl.operator((spec, spec), inputs=[pl.TensorSpec("float32", ("n", 4))], name="test.two")
    def two(x: Array) -> Any:
        return x[:2], x[:1]

    b = pl.GraphBuilder("two")
    first, second = b.call(two, b.input("x", "float32", ("n", 4)), name="both")
    b.output("a", first)
    b.output("b", second)
    plan = pl.plan(b.build(), bounds={"n": 16, "high": 8})
    with (
        pl.BlockingSession(plan) as session,
        pytest.raises(pl.KernelError) as raised,
    ):
        session.run(rows(4, 1, 1))
    assert "'high' is 1 in output 1 of the function, and 2 in one before" in str(raised.value)
    assert "'both'" in (raised.value.at or "")


def test_what_if_is_asked_of_the_largest_lengths() -> None:
    plan = pl.plan(forked(), "cpu", bounds=BOUNDS)
    with pl.BlockingSession(plan, measure=True) as session:
        for _ in range(3):
            check(session.run(rows(9, 3, 2)), rows(9, 3, 2))
        profile = session.profile()
    for one in (plan, plan.for_shapes({"x": (9, 4)})):
        assert profile.what_if(one, faster={"MatMul": 2.0}).after.makespan_s > 0
    with pytest.raises(pl.PlanError, match="not all shapes of the plan are known"):
        pl.Costs.from_profile(profile, plan)


def test_a_saved_plan_has_nodes_that_are_written_out_when_lengths_are_known(tmp_path: Path) -> None:
    b = pl.GraphBuilder("silu")
    x = b.input("x", "float32", (6, 4))
    found = b.call(find, b.op("Mul", x, b.op("Sigmoid", x)))
    b.output("y", b.op("Relu", found))
    plan = pl.plan(b.build(), ["ort", "cpu"], bounds={"high": 6})
    plan.save(tmp_path / "a.plan")
    with pl.BlockingSession(pl.load_plan(tmp_path / "a.plan")) as session:
        fed = np.array([[1, 2, 3, 4], [-1, 0, 0, 0]] * 3, np.float32)
        silu = fed[:1] / (1 + np.exp(-fed[:1]))
        np.testing.assert_allclose(session.run({"x": fed})["y"], [silu[0]] * 3, rtol=1e-5)
