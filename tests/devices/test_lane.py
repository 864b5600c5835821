from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from patience import WAIT_S
from plait.devices.errors import DeviceUnavailableError
from plait.devices.event import Event
from plait.devices.lane import ThreadLane


@pytest.fixture
def lane() -> Iterator[ThreadLane]:
    made = ThreadLane("plait-test")
    made.open()
    yield made
    made.close()


def test_work_runs_on_a_thread_of_the_lane_s_name(lane: ThreadLane) -> None:
    names: list[str] = []
    event = Event()
    lane.put(event, lambda: names.append(threading.current_thread().name))
    event.wait(WAIT_S)
    assert names == ["plait-test"]


def test_work_runs_in_order(lane: ThreadLane) -> None:
    seen: list[int] = []
    events = [Event() for _ in range(100)]
    for number, event in enumerate(events):
        lane.put(event, lambda number=number: seen.append(number))  # type: ignore[misc]
    events[-1].wait(WAIT_S)
    assert seen == list(range(100))
    assert all(event.done for event in events)


def test_a_lane_without_work_can_be_kept_from_it(lane: ThreadLane) -> None:
    entered, going, ended = threading.Event(), threading.Event(), Event()

    def wait() -> None:
        entered.set()
        going.wait(WAIT_S)

    held = lane.hold()
    assert held is not None
    try:
        assert lane.hold() is None
        lane.put(ended, wait)
        assert not entered.is_set()
    finally:
        held.release()
    assert entered.wait(WAIT_S)
    assert lane.hold() is None
    going.set()
    ended.wait(WAIT_S)
    lane.close()
    assert lane.hold() is None


def test_one_piece_of_work_runs_at_a_time(lane: ThreadLane) -> None:
    first, second = Event(), Event()
    lane.put(first, lambda: None)
    lane.put(second, lambda: None)
    second.wait(WAIT_S)
    assert first.ended_ns <= second.started_ns


def test_a_lane_survives_work_that_raises(lane: ThreadLane) -> None:
    bad, good = Event(), Event()
    lane.put(bad, lambda: 1 // 0)
    lane.put(good, lambda: None)
    good.wait(WAIT_S)
    assert isinstance(bad.error, ZeroDivisionError)


def test_a_callback_may_put_more_work(lane: ThreadLane) -> None:
    seen: list[str] = []
    second = Event()
    lane.put(Event(lambda _: lane.put(second, lambda: seen.append("second"))), lambda: None)
    second.wait(WAIT_S)
    assert seen == ["second"]


def test_numpy_does_not_warn_on_a_lane(lane: ThreadLane) -> None:
    event = Event()
    lane.put(event, lambda: np.float32(1) / np.float32(0))
    event.wait(WAIT_S)


def test_a_waiting_lane_holds_on_to_nothing(lane: ThreadLane) -> None:
    class Payload:
        pass

    payload = Payload()
    alive = weakref.ref(payload)
    event = Event()
    lane.put(event, lambda payload=payload: None)  # type: ignore[misc]
    event.wait(WAIT_S)
    after = Event()
    lane.put(after, lambda: None)
    after.wait(WAIT_S)
    del payload, event
    gc.collect()
    assert alive() is None


def threads() -> int:
    """Return how many threads of the lane there are."""
    return [thread.name for thread in threading.enumerate()].count("plait-test")


def test_a_thread_starts_with_the_first_work_that_is_queued(lane: ThreadLane) -> None:
    lane.open()  # for the second time
    assert lane.run_inline(Event(), lambda: None)
    assert threads() == 0
    for _ in range(2):
        lane.call(lambda: None)
        assert threads() == 1


def test_a_system_that_has_no_thread_left_says_so(
    lane: ThreadLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", start)
        with pytest.raises(DeviceUnavailableError, match="no thread: can't start new thread"):
            lane.put(Event(), lambda: None)
    lane.call(lambda: None)


def test_closing_finishes_what_is_queued() -> None:
    lane = ThreadLane("plait-test")
    lane.open()
    gate = threading.Event()
    seen: list[int] = []
    lane.put(Event(), gate.wait)
    for number in range(10):
        lane.put(Event(), lambda number=number: seen.append(number))  # type: ignore[misc]
    gate.set()
    lane.close()
    assert seen == list(range(10))


def test_closing_ends_the_thread() -> None:
    lane = ThreadLane("plait-test")
    lane.open()
    lane.call(lambda: None)
    lane.close()
    assert threads() == 0


def test_closing_twice_is_allowed() -> None:
    lane = ThreadLane("plait-test")
    lane.open()
    lane.close()
    lane.close()


def test_a_lane_can_be_opened_again(lane: ThreadLane) -> None:
    lane.close()
    lane.open()
    event = Event()
    lane.put(event, lambda: None)
    event.wait(WAIT_S)


def test_a_closed_lane_takes_no_work() -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        ThreadLane("plait-test").put(Event(), lambda: None)
    assert str(caught.value) == "lane 'plait-test' is closed\n  fix: open its device"


def test_work_put_while_closing_is_refused_rather_than_lost() -> None:
    """The lane is busy with work that closes it from another thread, then puts more."""
    lane = ThreadLane("plait-test")
    lane.open()
    late = Event()

    def close_elsewhere_then_put() -> None:
        closer.start()
        while lane._queue is not None:  # no condition tells that close() has begun to wait
            threading.Event().wait(0.001)
        lane.put(late, lambda: None)

    closer = threading.Thread(target=lane.close)
    event = Event()
    lane.put(event, close_elsewhere_then_put)
    with pytest.raises(DeviceUnavailableError, match="is closed"):
        event.wait(WAIT_S)
    closer.join()
    assert not late.done


def test_every_accepted_piece_of_work_completes_however_closing_races() -> None:
    for _ in range(50):
        lane = ThreadLane("plait-test")
        lane.open()
        accepted: list[Event] = []
        start = threading.Barrier(2)

        def produce(
            lane: ThreadLane = lane,
            accepted: list[Event] = accepted,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            try:
                while True:
                    event = Event()
                    lane.put(event, lambda: None)
                    accepted.append(event)
            except DeviceUnavailableError:
                return

        producer = threading.Thread(target=produce)
        producer.start()
        start.wait()
        lane.close()
        producer.join()
        assert all(event.done for event in accepted)


def test_work_runs_on_the_calling_thread_if_the_lane_is_idle(lane: ThreadLane) -> None:
    event, names = Event(), list[str]()
    assert lane.run_inline(event, lambda: names.append(threading.current_thread().name))
    assert event.done
    assert names == [threading.current_thread().name]


def test_work_does_not_run_on_the_calling_thread_beside_the_lane_s(lane: ThreadLane) -> None:
    running, going, queued = threading.Event(), threading.Event(), Event()

    def work() -> None:
        running.set()
        assert going.wait(WAIT_S)

    lane.put(queued, work)
    assert running.wait(WAIT_S)
    refused = Event()
    assert not lane.run_inline(refused, lambda: None)
    assert not refused.done
    going.set()
    queued.wait(WAIT_S)


def test_the_lane_does_not_begin_beside_work_on_another_thread(lane: ThreadLane) -> None:
    order, queued = list[str](), Event()

    def work() -> None:
        lane.put(queued, lambda: order.append("lane"))
        assert not lane.run_inline(Event(), lambda: order.append("nested"))
        order.append("here")

    assert lane.run_inline(Event(), work)
    queued.wait(WAIT_S)
    assert order == ["here", "lane"]


def test_numpy_does_not_warn_of_work_on_the_calling_thread(lane: ThreadLane) -> None:
    event, before = Event(), np.geterr()
    assert lane.run_inline(event, lambda: np.divide(1, np.zeros(1)))
    assert event.error is None
    assert np.geterr() == before


def test_a_closed_lane_runs_nothing_on_the_calling_thread() -> None:
    lane = ThreadLane("plait-test")
    assert not lane.run_inline(Event(), lambda: None)


def test_a_call_waits_for_work_on_the_lane_s_thread(lane: ThreadLane) -> None:
    names: list[str] = []
    lane.call(lambda: names.append(threading.current_thread().name))
    assert names == ["plait-test"]


def test_what_a_call_raises_is_raised_here_and_kept_by_nobody(lane: ThreadLane) -> None:
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)

    def fail(held: Held) -> None:
        raise ValueError("injected")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="injected"):
            lane.call(partial(fail, held))
        lane.call(lambda: None)  # by now the lane has let go of what it ran before
        del held
        assert gone() is None
    finally:
        gc.enable()


def test_a_closed_lane_refuses_calls() -> None:
    with pytest.raises(DeviceUnavailableError, match="is closed"):
        ThreadLane("plait-test").call(lambda: None)
