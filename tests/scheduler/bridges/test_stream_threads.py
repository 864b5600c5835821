"""Streams of items that run on threads, each on a replica."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Barrier, Event
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import WAIT_S
from plait.scheduler.bridges.blocking_results import BlockingResults
from plait.scheduler.bridges.blocking_session import get_loop
from plait.scheduler.bridges.inline import StreamHere
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.plans.plan import Plan
from plait.scheduler.runtime.items import deadlines
from stream_threads import (
    Called,
    Item,
    is_on_threads,
    list_threads,
    make_called_plan,
    make_items,
    make_operator,
    may_use_threads,
    send_items_to_threads,
)

Array = np.ndarray[Any, Any]
numbers = count()


@pytest.fixture(autouse=True)
def _all_items_go_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    send_items_to_threads(monkeypatch)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(2, 4), st.booleans())
def test_each_item_has_its_result_in_order_if_asked_for(
    number: int, in_flight: int, lanes: int, ordered: bool
) -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function, lanes)) as session:
        with session.stream(
            make_items(number), max_in_flight=in_flight, ordered=ordered
        ) as results:
            found = [(one.index, float(one["y"][1])) for one in results]
        assert session.status().done == number
    assert (found if ordered else sorted(found)) == [(n, n + 1) for n in range(number)]
    assert is_on_threads(function) or not number


def test_items_run_on_threads_when_seen_whatever_the_number_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def are_seen(self: Estimates, *_: Any, may_wait: bool = False) -> bool:
        return may_wait and not self._unseen

    monkeypatch.setattr(Estimates, "are_brief", are_seen)
    function = Called()
    with pl.BlockingSession(make_called_plan(function)) as session:
        for _ in range(2):
            function.threads.clear()
            session.map(make_items(20), max_in_flight=9)
    assert is_on_threads(function)


def stream_twice(session: pl.BlockingSession, number: int) -> list[list[float]]:
    """Return the results of two streams of items at the same time, each on a thread."""

    def run() -> list[float]:
        return [float(one["y"][1]) for one in session.stream(make_items(number))]

    with ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(run) for _ in range(2)]
        return [one.result(WAIT_S) for one in pending]


def test_items_of_two_streams_run_at_the_same_time() -> None:
    function = Called()
    function.wait_at[5] = Barrier(2)  # an item of each
    with pl.BlockingSession(make_called_plan(function)) as session:
        session.map(make_items(5))  # the loop opens the plan of streams
        function.threads.clear()
        assert stream_twice(session, 10) == [[*range(1, 11)]] * 2
    assert is_on_threads(function)


@pytest.mark.parametrize("lanes", [2, 3])
def test_ordered_steps_of_two_streams_are_not_called_at_the_same_time(lanes: int) -> None:
    running = threading.Lock()

    def end(x: Array) -> Array:
        assert running.acquire(blocking=False)
        try:
            return x + 1
        finally:
            running.release()

    builder = pl.GraphBuilder("two streams")
    called = builder.call(make_operator(Called()), builder.input("x", "float32", (2,)))
    name = f"test_stream_threads.end_{next(numbers)}"
    builder.output("y", builder.call(pl.operator(name=name, ordered=True)(end), called))
    with pl.BlockingSession(pl.plan(builder.build(), [f"cpu:0..{lanes - 1}"])) as session:
        assert stream_twice(session, 40) == [[*range(2, 42)]] * 2


def test_late_items_fail_between_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, late, last = threading.local(), {3.0, 7.0}, Called()

    def begin(x: Array) -> Array:
        if float(x[0]) in late:
            clock.ahead_ns = 2 * 10**12
        return x

    def read_clock() -> int:  # it is ahead once
        ahead_ns: int = vars(clock).pop("ahead_ns", 0)
        return time.perf_counter_ns() + ahead_ns

    monkeypatch.setattr(deadlines, "perf_counter_ns", read_clock)
    builder = pl.GraphBuilder("late")
    begun = pl.operator(name=f"test_stream_threads.begin_{next(numbers)}")(begin)
    called = builder.call(begun, builder.input("x", "float32", (2,)))
    builder.output("y", builder.call(make_operator(last), called))
    with pl.BlockingSession(pl.plan(builder.build(), ["cpu:0..1"])) as session:
        found = list(session.stream(make_items(20), deadline_s=1000.0))
        assert [type(one.error) for one in found] == [
            pl.DeadlineError if n in late else type(None) for n in range(20)
        ]
    assert is_on_threads(last)
    assert len(last.threads) == 18


def test_threads_end_if_the_session_is_closed_before_the_stream_ends() -> None:
    function, gate = Called(), Event()
    session = pl.BlockingSession(make_called_plan(function, 2, max_in_flight=4))
    list(session.stream(make_items(1), max_in_flight=4))  # the next one is opened when it has to be
    function.threads, function.wait_at = [], {0.0: gate, 1.0: gate}
    closing = threading.Thread(target=session.close)

    def close_between_items() -> None:
        while len(function.threads) < 2:
            pass
        closing.start()
        while not get_loop(session).is_closed:
            pass
        gate.set()

    closer = threading.Thread(target=close_between_items)
    closer.start()
    results = session.stream(make_items(9), max_in_flight=4)
    with pytest.raises(pl.SessionError):
        list(results)
    for thread in (closer, closing):
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert all(thread.ended.wait(WAIT_S) for thread in list_threads(session))


def test_several_items_run_at_the_same_time() -> None:
    function = Called()
    function.wait_at = dict.fromkeys((0.0, 1.0, 2.0), Barrier(3))
    with pl.BlockingSession(make_called_plan(function, 3, max_in_flight=2)) as session:
        assert len(session.map(make_items(3))) == 3
    assert len(set(function.threads)) == 3


def test_failures_stay_with_their_item_or_are_raised() -> None:
    function = Called()
    function.raise_at = {2.0}
    with pl.BlockingSession(make_called_plan(function)) as session:
        errors = [one.error for one in session.stream(make_items(5))]
        assert [error is not None for error in errors] == [False, False, True, False, False]
        with pytest.raises(pl.KernelError, match="2 is refused"):
            session.map(make_items(5), on_error="raise")
        assert session.status().failed == 2


def make_ordered_plan(
    function: Called, *last: Called, lanes: int = 2, slots: int = 1, effects: bool = False
) -> Plan:
    """Return a plan for a function and others that are called in the order of items."""
    builder = pl.GraphBuilder("ordered")
    called = builder.call(make_operator(function), builder.input("x", "float32", (2,)))
    for one in last:
        called = builder.call(make_operator(one, ordered=True, effects=effects), called)
    builder.output("y", called)
    return pl.plan(builder.build(), [f"cpu:0..{lanes - 1}"], max_in_flight=slots * lanes)


class Seen(Called):
    """The function of an ordered step: notes its values."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def __call__(self, x: Array) -> Array:
        self.values.append(float(x[0]))
        return super().__call__(x)


@given(
    st.integers(1, 30),
    st.integers(2, 4),
    st.sets(st.integers(0, 29)),
    st.sets(st.integers(1, 30)),
    st.booleans(),
)
def test_ordered_steps_follow_the_items_also_after_failures(
    number: int, lanes: int, failing: set[int], failing_later: set[int], effects: bool
) -> None:
    function, last = Called(), Seen()
    function.raise_at, last.raise_at = set(map(float, failing)), set(map(float, failing_later))
    plan = make_ordered_plan(function, last, lanes=lanes, effects=effects)
    with pl.BlockingSession(plan) as session:
        found = [one.error is None for one in session.stream(make_items(number), max_in_flight=7)]
    assert last.values == [n + 1 for n in range(number) if n not in failing]
    assert found == [n not in failing and n + 1 not in failing_later for n in range(number)]
    assert is_on_threads(function)


def test_a_later_item_waits_before_its_ordered_step() -> None:
    function, last = Called(), Seen()
    later = Event()
    function.wait_at[0.0] = later
    with pl.BlockingSession(make_ordered_plan(function, last)) as session:
        results = session.stream(make_items(6))
        function.inside = lambda: later.set() if len(function.threads) > 1 else None
        assert len(list(results)) == 6
    assert last.values == [1, 2, 3, 4, 5, 6]


class Started(Called):
    """A function that notes when each item has started, for others that wait for that."""

    def __init__(self) -> None:
        super().__init__()
        self.started = [Event() for _ in range(64)]
        self.after: dict[int, int] = {}

    def __call__(self, x: Array) -> Array:
        value = int(x[0])
        self.started[value].set()
        if value in self.after:
            assert self.started[self.after[value]].wait(WAIT_S)
        return super().__call__(x)


def test_an_item_that_waits_for_an_earlier_one_leaves_its_thread_to_later_ones() -> None:
    function, last = Started(), Seen()
    function.after[0] = 2
    is_second_done = Event()
    function.wait_at[2.0] = is_second_done  # in the context of a lane, which the second one left
    last.inside = lambda: is_second_done.set() if len(last.values) == 2 else None
    with pl.BlockingSession(make_ordered_plan(function, last, slots=2)) as session:
        assert [one["y"][0] for one in session.map(make_items(6))] == [2, 3, 4, 5, 6, 7]
        assert is_second_done.is_set()
        assert session.status().done == 6
    assert last.values == [1, 2, 3, 4, 5, 6]


@given(
    st.integers(1, 30),
    st.integers(2, 3),
    st.integers(2, 4),
    st.sets(st.integers(0, 29)),
    st.sets(st.integers(1, 30)),
    st.integers(1, 2),
)
def test_so_do_items_that_fail_and_those_that_wait_again(
    number: int, lanes: int, slots: int, failing: set[int], failing_later: set[int], steps: int
) -> None:
    function, last = Started(), [Seen() for _ in range(steps)]
    function.after = {n: n + 1 for n in range(0, number - 1, 2)}  # the later one is there first
    function.raise_at, last[0].raise_at = set(map(float, failing)), set(map(float, failing_later))
    with pl.BlockingSession(
        make_ordered_plan(function, *last, lanes=lanes, slots=slots)
    ) as session:
        for _ in range(2):
            found = [one.error is None for one in session.stream(make_items(number))]
            assert found == [n not in failing and n + 1 not in failing_later for n in range(number)]
    called = [n + 1 for n in range(number) if n not in failing]
    for index, one in enumerate(last):
        assert one.values == 2 * [n + index for n in called if not index or n not in failing_later]


def test_a_closed_stream_ends_items_that_wait_for_earlier_ones() -> None:
    function, last, gate = Started(), Seen(), Event()
    function.wait_at[0.0] = gate
    with pl.BlockingSession(make_ordered_plan(function, last, slots=2)) as session:
        results = session.stream(make_items(9))
        closing = threading.Thread(target=results.close)

        def close_when_the_third_starts() -> None:
            assert function.started[2].wait(WAIT_S)
            closing.start()
            while not results._is_closed:
                pass
            gate.set()

        closer = threading.Thread(target=close_when_the_third_starts)
        closer.start()
        with suppress(StopIteration, pl.SessionError):
            next(results)
        for thread in (closer, closing):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert last.values == [n + 1 for n in range(len(last.values))]
        assert session.run({"x": np.full(2, 7, np.float32)})["y"][0] == 9


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_items_with_rows_leave_their_threads_too(rows: list[int]) -> None:
    b, kept = pl.GraphBuilder("double"), list[int]()
    b.output("y", b.input("x", "float32", ("n", 2)) * 2.0)

    def make_row(number: int) -> Array:
        return np.full(2, number, np.float32)

    def keep(found: Array) -> list[float]:
        kept.append(len(found))
        return [float(one) for one in found[:, 0]]

    each = pl.each(make_row, b.build(), batch=2)
    with pl.pipeline(range, each, pl.step(keep, ordered=True), example=3) as pipe:
        pipe.open(pipe.plan(["cpu:0..1"], max_in_flight=6))
        kept.clear()
        assert pipe.map(rows) == [[2.0 * n for n in range(count)] for count in rows]
    assert kept == rows


def test_ordered_steps_keep_their_order_where_items_go_through_the_loop_in_between() -> None:
    function, last = Called(), Seen()
    with pl.BlockingSession(make_ordered_plan(function, last)) as session:
        for index, one in enumerate(session.stream(make_items(90), max_in_flight=5)):
            assert one["y"][0] == index + 2
            if index % 10 == 4:
                get_loop(session).claim(function)  # as if another thread waited for an item
            elif index % 10 == 0:  # this item was pulled after that
                get_loop(session).leave(function)
    assert last.values == [n + 1 for n in range(90)]
    assert {name.split(":")[0] for name in function.threads} > {"plait-item"}


def test_ordered_steps_keep_their_order_where_threads_refuse_items_while_another_is_pulled() -> (
    None
):
    function, last, gate = Called(), Seen(), Event()
    function.wait_at = {0.0: gate, 1.0: gate}
    with pl.BlockingSession(make_ordered_plan(function, last, slots=4)) as session:
        loop = get_loop(session)

        def pull() -> Iterator[Item]:
            for number, item in enumerate(make_items(8)):
                if number == 3:
                    loop.claim(function)  # as if another thread waited for an item
                    gate.set()
                    while not results._here.are_threads_refused:
                        pass
                elif number == 5:
                    loop.leave(function)
                yield item

        results = session.stream(pull(), max_in_flight=8)
        assert [one["y"][0] for one in results] == [n + 2 for n in range(8)]
    assert last.values == [n + 1 for n in range(8)]


def test_an_item_that_another_thread_runs_meanwhile_goes_first() -> None:
    """Its thread has the session then, so items of the stream go through the loop."""
    function = Called()
    function.wait_at[3.0] = reached = Barrier(2)
    found: list[float] = []

    def run_another(session: pl.BlockingSession) -> None:
        reached.wait(WAIT_S)
        found.append(float(session.run({"x": np.full(2, 70, np.float32)})["y"][0]))

    with pl.BlockingSession(make_called_plan(function)) as session:
        other = threading.Thread(target=run_another, args=(session,))
        other.start()
        assert [one["y"][0] for one in session.map(make_items(60))] == list(range(1, 61))
        other.join(WAIT_S)
    assert found == [71]


def test_functions_with_effects_run_on_the_thread_of_a_caller_in_order() -> None:
    function, last = Called(), Seen()
    with pl.BlockingSession(make_ordered_plan(function, last, effects=True)) as session:
        for value in range(20):
            assert session.run({"x": np.full(2, value, np.float32)})["y"][0] == value + 2
    assert last.values == [value + 1 for value in range(20)]
    assert last.threads[-1] == threading.current_thread().name


def test_each_item_has_the_lengths_that_its_function_decides() -> None:
    @pl.operator(
        [pl.TensorSpec("float32", ("k",))], name=f"test_stream_threads.grow_{next(numbers)}"
    )
    def grow(x: Array) -> Array:
        return np.full(int(x[0]) % 5, x[0], np.float32)

    function = Called()
    builder = pl.GraphBuilder("growing")
    called = builder.call(make_operator(function), builder.input("x", "float32", (2,)))
    builder.output("y", builder.op("Neg", builder.call(grow, called)))
    plan = pl.plan(builder.build(), ["cpu:0..1"], bounds={"k": 5})
    with pl.BlockingSession(plan) as session:
        found = session.map(make_items(40))
    for value, one in enumerate(found, start=1):
        np.testing.assert_array_equal(one["y"], np.full(value % 5, -value))
    assert is_on_threads(function)


def test_two_streams_of_a_session_take_turns() -> None:
    with pl.BlockingSession(make_called_plan(Called(), max_in_flight=3)) as session:
        pairs = zip(session.stream(make_items(50)), session.stream(make_items(50)), strict=True)
        assert all(one["y"][0] == other["y"][0] == n + 1 for n, (one, other) in enumerate(pairs))


def test_a_function_may_not_wait_for_the_session_that_runs_it() -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function)) as session:
        function.inside = partial(session.run, {"x": np.zeros(2, np.float32)})
        (only,) = session.stream(make_items(1))
        assert "would wait for the session" in str(only.error)


@pytest.mark.parametrize("inside", ["run", "map"])
def test_a_function_on_a_lane_may_not_wait_for_its_session(inside: str) -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function, 1)) as session:
        waits = {"run": partial(session.run, next(make_items(1))), "map": partial(session.map, [])}
        function.inside = waits[inside]
        with pytest.raises(pl.KernelError, match="would wait for the session"):
            session.submit(next(make_items(1))).result(WAIT_S)
    assert function.threads == ["plait-cpu:0"]


def test_a_closed_stream_waits_for_items_that_run_and_drops_others() -> None:
    function = Called()
    going_on = Event()
    function.wait_at = dict.fromkeys((2.0, 3.0), going_on)
    with pl.BlockingSession(make_called_plan(function, max_in_flight=8)) as session:
        results = session.stream(make_items(50))
        assert [next(results)["y"][0], next(results)["y"][0]] == [1, 2]
        going_on.set()
        results.close()
        assert list(results) == []
        ran = len(function.threads)
        assert ran < 25
        assert len(session.map(make_items(4))) == 4, "the session goes on"
    assert len(function.threads) == ran + 4


def test_a_stream_is_dropped_while_threads_have_its_items() -> None:
    function, gate = Called(), Event()
    with pl.BlockingSession(make_called_plan(function)) as session:
        function.wait_at = {1.0: gate}
        results = session.stream(make_items(50))
        next(results)
        dropped = weakref.ref(results)
        del results
        gc.collect()
        assert dropped() is None
        gate.set()
        assert len(session.map(make_items(5))) == 5


def test_closing_the_session_ends_its_streams() -> None:
    session = pl.BlockingSession(make_called_plan(Called(), max_in_flight=4))
    results = session.stream(make_items(10**9))
    next(results)
    session.close()
    with pytest.raises(pl.SessionError, match="closed"), suppress(StopIteration):
        while True:
            next(results)


def test_an_error_of_the_source_comes_after_its_items() -> None:
    def failing() -> Iterator[Item]:
        yield from make_items(5)
        raise OSError("torn")

    found: list[float] = []
    with pl.BlockingSession(make_called_plan(Called())) as session:
        with pytest.raises(OSError, match="torn"):
            found.extend(float(one["y"][0]) for one in session.stream(failing()))
    assert found == [1, 2, 3, 4, 5]


def test_an_item_of_a_session_that_is_busy_goes_to_the_loop() -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function)) as session:
        get_loop(session).claim(function)
        assert len(session.map(make_items(7))) == 7
        get_loop(session).leave(function)
    assert not any(name.startswith("plait-item") for name in function.threads)


def test_threads_begin_when_the_loop_has_ended_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    function, changed = Called(), Event()
    function.wait_at = {5.0: changed}
    handed = 0

    def hand_over(results: BlockingResults, pending: Any) -> None:
        nonlocal handed
        before(results, pending)
        handed += 1

    def uses_threads(here: StreamHere) -> bool:
        if handed < 6:
            return False
        changed.set()  # item 5 is at the loop until now
        return may_use_threads(here)

    before = BlockingResults._hand_over
    monkeypatch.setattr(BlockingResults, "_hand_over", hand_over)
    monkeypatch.setattr(StreamHere, "uses_threads", property(uses_threads))
    # The loop would run an item that is likely to be brief, and give back no other one meanwhile.
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, may_wait=False: may_wait)
    monkeypatch.setattr(Estimates, "is_quick", lambda *_: False)
    with pl.BlockingSession(make_called_plan(function)) as session:
        assert [float(one["y"][0]) for one in session.map(make_items(20))] == [*range(1, 21)]
    assert sum(name.startswith("plait-item") for name in function.threads) == 14


@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0..1", "compiled"]])
def test_plans_whose_items_share_a_device_have_no_threads(devices: list[str]) -> None:
    function = Called()
    builder = pl.GraphBuilder("called")
    called = make_operator(function)
    x = builder.input("x", "float32", (2,))
    builder.output("y", builder.op("Relu", builder.call(called, x), name="relu"))
    plan = pl.plan(builder.build(), devices, pin={"relu": devices[-1].split(":")[0]})
    with pl.BlockingSession(plan) as session:
        assert len(session.map(make_items(5))) == 5
    assert not any(name.startswith("plait-item") for name in function.threads)


def test_control_c_while_a_result_is_awaited_closes_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pl.BlockingSession(make_called_plan(Called(), max_in_flight=4)) as session:
        results = session.stream(make_items(10**9))
        next(results)
        receive = BlockingResults._receive

        def interrupt(stream: BlockingResults, delivery: object) -> None:
            monkeypatch.setattr(BlockingResults, "_receive", receive)
            raise KeyboardInterrupt

        monkeypatch.setattr(BlockingResults, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            for _ in results:
                pass
        assert list(results) == []
        assert len(session.map(make_items(5))) == 5


def test_a_source_that_exits_closes_the_stream() -> None:
    def leaving() -> Iterator[Item]:
        yield from make_items(3)
        raise SystemExit

    with pl.BlockingSession(make_called_plan(Called())) as session:
        results = session.stream(leaving())
        with pytest.raises(SystemExit):
            list(results)
        assert results._units.ended.is_set()
    assert not any(one.name.startswith("plait-item") for one in threading.enumerate())
