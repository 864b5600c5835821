"""The clocks: what is due runs in order, on the right thread, at the right time."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.errors import DeviceError
from plait.devices.sim.clock import RealClock, VirtualClock


@given(st.lists(st.integers(0, 20), max_size=30))
def test_what_is_due_runs_by_time_and_then_in_the_order_asked_for(times: list[int]) -> None:
    clock = VirtualClock()
    ran: list[tuple[int, int]] = []

    def note(number: int) -> None:
        ran.append((clock.now_ns(), number))

    for number, t_ns in enumerate(times):
        clock.call_at(t_ns, partial(note, number))
    clock.run_until_idle()
    assert ran == sorted((t_ns, number) for number, t_ns in enumerate(times))


def test_advance_runs_what_is_due_by_then_and_no_more() -> None:
    clock = VirtualClock()
    ran: list[str] = []
    clock.call_at(1_000, lambda: ran.append("early"))
    clock.call_at(3_000, lambda: ran.append("just in time"))
    clock.call_at(3_001, lambda: ran.append("late"))
    clock.advance(3e-6)
    assert ran == ["early", "just in time"]
    assert clock.now_ns() == 3_000


def test_what_is_asked_for_on_the_way_runs_on_the_way() -> None:
    clock = VirtualClock()
    ran: list[int] = []

    def again() -> None:
        ran.append(clock.now_ns())
        if len(ran) < 3:
            clock.call_at(clock.now_ns() + 10, again)

    clock.call_at(10, again)
    clock.advance(1e-6)
    assert ran == [10, 20, 30]


def test_time_asked_for_in_the_past_is_now() -> None:
    clock = VirtualClock()
    clock.advance(1.0)
    ran: list[int] = []
    clock.call_at(5, lambda: ran.append(clock.now_ns()))
    clock.run_until_idle()
    assert ran == [1_000_000_000]


def test_a_virtual_clock_calls_back_on_the_thread_that_moves_it() -> None:
    clock = VirtualClock()
    threads: list[threading.Thread] = []
    clock.call_at(1, lambda: threads.append(threading.current_thread()))
    assert threads == []
    clock.run_until_idle()
    assert threads == [threading.current_thread()]


def test_run_next_moves_by_one_thing_and_says_when_there_is_none() -> None:
    clock = VirtualClock()
    clock.call_at(7, lambda: None)
    assert clock.run_next(until_ns=6) is False
    assert clock.run_next() is True
    assert clock.now_ns() == 7
    assert clock.run_next() is False


def test_a_virtual_clock_does_not_move_backwards() -> None:
    with pytest.raises(DeviceError, match=r"does not move by -1") as raised:
        VirtualClock().advance(-1)
    assert raised.value.fix == "advance by 0 or more"


def test_a_real_clock_calls_back_in_order_and_not_early() -> None:
    clock = RealClock("plait-test-clock")
    clock.open()
    done = threading.Event()
    ran: list[tuple[str, int]] = []
    start = time.perf_counter_ns()

    def note(name: str) -> None:
        ran.append((name, time.perf_counter_ns()))
        if len(ran) == 3:
            done.set()

    clock.call_at(start + 2_000_000, lambda: note("last"))
    clock.call_at(start + 1_000_000, lambda: note("second"))
    clock.call_at(0, lambda: note("first"))
    assert done.wait(WAIT_S)
    clock.close()
    assert [name for name, _ in ran] == ["first", "second", "last"]
    assert ran[1][1] >= start + 1_000_000
    assert ran[2][1] >= start + 2_000_000


def test_a_real_clock_ends_its_thread_with_its_last_user_and_forgets_what_is_due() -> None:
    clock = RealClock("plait-test-clock")
    clock.open()
    clock.open()
    far = time.perf_counter_ns() + 3_600_000_000_000
    clock.call_at(far, lambda: pytest.fail("an hour passed"))
    clock.close()
    assert "plait-test-clock" in {thread.name for thread in threading.enumerate()}
    clock.close()
    assert "plait-test-clock" not in {thread.name for thread in threading.enumerate()}


def test_a_real_clock_can_be_opened_again() -> None:
    clock = RealClock("plait-test-clock")
    for _ in range(3):
        clock.open()
        done = threading.Event()
        clock.call_at(0, done.set)
        assert done.wait(WAIT_S)
        clock.close()


def test_a_real_clock_does_not_keep_what_it_called() -> None:
    clock = RealClock("plait-test-clock")
    clock.open()
    freed, called = threading.Event(), threading.Event()

    class Callback:
        def __call__(self) -> None:
            called.set()

        def __del__(self) -> None:
            freed.set()

    clock.call_at(0, Callback())
    assert called.wait(WAIT_S)
    assert freed.wait(WAIT_S)
    clock.close()
