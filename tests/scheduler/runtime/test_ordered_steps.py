"""Steps that follow the order of items, while all else of the items overlaps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ordered_functions as functions
import plait as pl
import pytest
import trio
import trio.testing
from ordered_functions import BAD, S, begun, declared, gates, note, seen, slow, tell, told, worked
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.simulation.workload import SimulatedHost


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for one in (seen, told, begun):
        one.clear()
    gates.clear()


def make_graph(then: Any = note, first: Any = slow) -> pl.Graph:
    b = pl.GraphBuilder("tracked")
    h = b.call(first, b.input("x", "float32", (4,)), name="slow")
    b.output("y", b.call(then, h, name="then"))
    return b.build()


def make_feeds(*values: float) -> list[dict[str, Array]]:
    return [{"x": np.full(4, value, np.float32)} for value in values]


def make_plan(then: Any = note, devices: Any = ("cpu:0..3",), **options: Any) -> pl.Plan:
    return pl.plan(make_graph(then), devices, **{"max_in_flight": 4, **options})


def get_results(plan: pl.Plan, *values: float) -> list[float | None]:
    """Return the first elements of the results, None for items that failed."""
    with pl.BlockingSession(plan) as session:
        return [
            None if item.error is not None else float(item["y"][0])
            for item in session.stream(make_feeds(*values))
        ]


def open_when_all_have_begun(count: int) -> None:
    """Open the gate of item 0 when others are in their slow steps beside it."""
    while len(begun) < count:
        threading.Event().wait(0.001)
    gates[0].set()


@pytest.mark.parametrize(("then", "calls"), [(note, seen), (tell, told), (declared, told)])
def test_calls_are_in_order_though_a_late_item_is_passed_by_others(
    then: Callable[..., Any], calls: list[int]
) -> None:
    gates[0] = threading.Event()
    thread = threading.Thread(target=open_when_all_have_begun, args=(4,))
    thread.start()
    assert get_results(make_plan(then), *range(12)) == [value + 1 for value in range(12)]
    thread.join()
    assert calls == [*range(12)]


def test_functions_that_are_said_not_to_be_ordered_are_not() -> None:
    assert [step.order for step in make_plan(slow).steps] == [()]
    assert [step.order for step in make_plan(note).steps] == [(), ("test_ordered.note",)]


def test_one_item_at_a_time_needs_no_steps_of_their_own() -> None:
    assert len(pl.plan(make_graph(), "cpu").steps) == 1


def test_failed_items_do_not_break_the_order() -> None:
    values = [0, 1, BAD, 3, BAD, BAD, 6, 7, 8]
    assert get_results(make_plan(), *values) == [None if v == BAD else v + 1 for v in values]
    assert seen == [0, 1, 3, 6, 7, 8]


async def test_a_cancelled_item_lets_those_behind_it_go_on() -> None:
    gates[0] = threading.Event()
    found: list[float] = []

    async def run(value: int, scope: trio.CancelScope) -> None:
        with scope:
            found.append(float((await session.run(make_feeds(value)[0]))["y"][0]))

    async with pl.Session(make_plan()) as session, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]
        for value, scope in enumerate(scopes):
            nursery.start_soon(run, value, scope)
            with trio.fail_after(WAIT_S):
                while len(begun) <= value:  # noqa: ASYNC110
                    await trio.sleep(0.001)
        assert found == []  # both others wait for the first one
        scopes[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        gates[0].set()
    assert sorted(found) == [2, 3]
    assert seen == [1, 2]


def test_a_deadline_that_is_missed_does_not_break_the_order() -> None:
    gates[2] = threading.Event()
    opening = threading.Timer(0.2, gates[2].set)

    def source() -> Iterator[dict[str, Array]]:
        for fed in make_feeds(*range(6)):
            if fed["x"][0] == 2:
                opening.start()
            yield fed

    with pl.BlockingSession(make_plan()) as session:
        errors = [item.error for item in session.stream(source(), deadline_s=0.1)]
    opening.join()
    assert isinstance(errors[2], pl.DeadlineError)
    assert seen == sorted(seen)
    assert 2 not in seen


def test_an_instance_of_an_ordered_class_is_one_for_all_replicas() -> None:
    found = get_results(make_plan(functions.Sum), *range(20))
    assert found == np.cumsum(np.arange(20, dtype=np.float32)).tolist()


def test_one_instance_serves_plans_of_several_shapes_and_is_closed_once() -> None:
    closed: list[int] = []

    @pl.operator(lambda x: x, name="test_ordered.Counted", ordered=True)
    class Counted:
        def open(self, inputs: object) -> None:
            self.calls = 0

        def run(self, x: Array) -> Array:
            self.calls += 1
            return np.full_like(x, self.calls)

        def close(self) -> None:
            closed.append(self.calls)

    b = pl.GraphBuilder("counted")
    b.output("y", b.call(Counted, b.input("x", "float32", ("n",))))
    plan = pl.plan(b.build(), ["cpu:0..1"], max_in_flight=2)
    fed = [{"x": np.zeros(1 + index % 3, np.float32)} for index in range(9)]
    with pl.BlockingSession(plan) as session:
        assert [item["y"][0] for item in session.stream(fed)] == [*range(1, 10)]
    assert closed == [9]


def test_functions_with_state_stay_in_this_process() -> None:
    pins = {"slow": "worker:0..1"}
    plan = pl.plan(make_graph(first=worked), ["worker:0..1", "cpu"], pin=pins, max_in_flight=4)
    assert plan.assignment == {"slow": "worker:0", "then": "cpu"}
    assert get_results(plan, *range(8)) == [value + 1 for value in range(8)]
    assert seen == [*range(8)]


@pytest.mark.parametrize("then", [note, declared, functions.Sum])
def test_state_is_not_split_over_processes(then: Any) -> None:
    with pytest.raises(pl.PlanError, match=r"each process of 'worker:0..1' would have a state"):
        make_plan(then, ["worker:0..1", "cpu"], pin={"then": "worker:0..1"})
    with pytest.raises(pl.PlanError, match=r"pin=\{'then': 'cpu'\}"):
        make_plan(then, ["worker:0..1"])


def test_effects_may_be_on_workers_if_they_are_pinned_there() -> None:
    plan = make_plan(tell, ["worker:0..1", "cpu"], pin={"then": "worker:0..1"})
    assert plan.assignment["then"] == "worker:0"


def make_staged_graph(then: Any) -> pl.Graph:
    """Return a graph of lengths that depend on values: items go through several plans."""
    b = pl.GraphBuilder("staged")
    x = b.input("x", "float32", (4,))
    kept = b.op("Compress", b.call(slow, x, name="slow"), b.op("Greater", x, 0.5))
    total = b.op("ReduceSum", kept, keepdims=0)
    b.output("y", b.call(then, b.op("Expand", total, np.array([4])), name="then"))
    return b.build()


def test_items_that_go_through_several_plans_keep_the_order() -> None:
    gates[1] = threading.Event()
    plan = pl.plan(make_staged_graph(tell), ["cpu:0..3"], max_in_flight=4)
    assert not plan.is_static

    def source() -> Iterator[dict[str, Array]]:
        for value in range(1, 10):
            if value == 4:
                gates[1].set()
            yield make_feeds(value)[0]

    with pl.BlockingSession(plan) as session:
        found = [float(item["y"][0]) for item in session.stream(source())]
    assert found == [4 * value + 1 for value in range(1, 10)]
    assert told == [4 * value for value in range(1, 10)]


def test_a_step_of_a_pipeline_is_ordered() -> None:
    calls: list[int] = []

    def track(value: Any) -> Any:
        calls.append(int(value[0]))
        return value

    made = pl.pipeline(lambda value: value * 2, pl.step(track, ordered=True), example=np.ones(3))
    plan = pl.plan(made.graph, ["cpu:0..3"], max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        fed = [{name: np.full(3, value, float) for name in made.graph.inputs} for value in range(9)]
        for item in session.stream(fed):
            assert item.error is None
    assert calls[-9:] == [2 * value for value in range(9)]


def test_reports_name_functions_that_are_in_order_and_those_that_are_not() -> None:
    head = make_plan().report().partition("in  ")[0]
    assert "test_ordered.note is called for one item after the other: it keeps state in 'seen'" in (
        head
    )
    assert "may call" not in head  # slow is said not to be ordered
    assert "4 items at once may call test_ordered.worked" in make_plan(worked).report()
    assert make_plan(tell).ordered_functions == {"test_ordered.tell": "it has effects"}
    assert make_plan(declared).ordered_functions == {"test_ordered.declared": "as declared"}


def test_simulations_say_if_a_device_or_the_order_binds() -> None:
    plan = make_plan(max_in_flight=8)
    host = SimulatedHost()
    slow_first = pl.simulate(plan, items=200, host=host, faster={"slow": 0.1})
    assert slow_first.bottleneck is not None
    assert slow_first.bottleneck.startswith("cpu:")
    long_cycle = pl.simulate(plan, items=200, host=host, faster={"then": 0.1})
    assert long_cycle.bottleneck == "order of test_ordered.note"
    cycle = long_cycle.cycles["test_ordered.note"]
    assert long_cycle.makespan_s / 200 == pytest.approx(cycle, rel=0.1)
    assert any(one.cause == "order" for one in long_cycle.critical_path)
    # Four replicas share the other step.
    alone = next(one.ended_s - one.started_s for one in slow_first.critical_path)
    assert slow_first.makespan_s / 200 < alone / 3


def test_wrong_options_are_refused() -> None:
    with pytest.raises(pl.OperatorError, match="ordered is 1"):
        pl.operator(S, ordered=1)(lambda x: x)  # type: ignore[arg-type]

    async def wait(x: Array) -> Array:
        return x

    with pytest.raises(pl.OperatorError, match="is ordered, and has concurrency=2"):
        pl.operator(S, ordered=True, concurrency=2)(wait)
