from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import pytest
from patience import WAIT_S
from plait.devices.errors import DeviceError
from plait.devices.event import CancelledWorkError, Event


def test_a_fresh_event_is_not_done() -> None:
    event = Event()
    assert (event.done, event.error, event.cancelled) == (False, None, False)
    assert (event.started_ns, event.ended_ns, event.node_ns) == (0, 0, None)


def test_an_event_carries_the_backend_s_own() -> None:
    native = object()
    assert Event(native=native).native is native


def test_a_callback_runs_when_the_event_completes() -> None:
    seen: list[Event] = []
    event = Event(seen.append)
    assert seen == []
    event.complete()
    assert seen == [event]


def test_a_callback_added_late_runs_at_once() -> None:
    seen: list[Event] = []
    event = Event()
    event.complete()
    event.on_done(seen.append)
    assert seen == [event]


def test_all_callbacks_run_once() -> None:
    seen: list[str] = []
    event = Event(lambda _: seen.append("first"))
    event.on_done(lambda _: seen.append("second"))
    event.complete()
    event.complete()
    event.on_done(lambda _: seen.append("third"))
    assert sorted(seen) == ["first", "second", "third"]


def test_a_callback_sees_the_error() -> None:
    seen: list[BaseException | None] = []
    event = Event(lambda done: seen.append(done.error))
    error = DeviceError("broken")
    event.complete(error)
    assert seen == [error]


def test_only_the_first_completion_counts() -> None:
    event = Event()
    event.complete()
    event.complete(DeviceError("too late"))
    assert event.error is None


def test_a_callback_may_add_another() -> None:
    seen: list[str] = []
    event = Event(lambda done: done.on_done(lambda _: seen.append("inner")))
    event.complete()
    assert seen == ["inner"]


def test_work_is_run_and_timed() -> None:
    seen: list[int] = []
    event = Event()
    event.run(lambda: seen.append(1))
    assert seen == [1]
    assert event.done
    assert 0 < event.started_ns <= event.ended_ns


def test_work_that_raises_completes_the_event_with_its_error() -> None:
    event = Event()
    event.run(lambda: 1 // 0)
    assert event.done
    assert isinstance(event.error, ZeroDivisionError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_work_may_raise_anything(kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind

    event = Event()
    event.run(work)
    assert isinstance(event.error, kind)


def test_cancelled_work_does_not_run() -> None:
    seen: list[int] = []
    event = Event()
    event.cancel()
    event.run(lambda: seen.append(1))
    assert seen == []
    assert isinstance(event.error, CancelledWorkError)
    assert str(event.error) == "the work was cancelled before it started"


def test_cancelling_does_not_complete() -> None:
    event = Event()
    event.cancel()
    assert not event.done


def test_cancelling_finished_work_changes_nothing() -> None:
    event = Event()
    event.run(lambda: None)
    event.cancel()
    assert event.error is None


def test_running_work_is_told_when_it_is_cancelled() -> None:
    event, stops = Event(), list[str]()

    def work() -> None:
        event.stop_by(lambda: stops.append("stopped"))
        assert stops == []
        event.cancel()
        assert stops == ["stopped"]
        raise CancelledWorkError("the work was cancelled while it ran")

    event.run(work)
    assert isinstance(event.error, CancelledWorkError)


def test_work_that_was_cancelled_just_before_it_could_be_stopped_is_told_at_once() -> None:
    event, stops = Event(), list[str]()
    event.cancel()
    event.stop_by(lambda: stops.append("stopped"))
    assert stops == ["stopped"]


def test_work_that_has_ended_is_not_stopped_any_more() -> None:
    event, stops = Event(), list[str]()
    event.run(lambda: event.stop_by(lambda: stops.append("stopped")))
    event.cancel()
    assert stops == []


def test_waiting_for_a_complete_event_returns() -> None:
    event = Event()
    event.complete()
    event.wait(0)


def test_waiting_raises_the_error() -> None:
    event = Event()
    event.complete(DeviceError("broken"))
    with pytest.raises(DeviceError, match="broken"):
        event.wait(0)


def test_waiting_gives_up_after_its_time() -> None:
    with pytest.raises(TimeoutError, match="not complete after 0 s"):
        Event().wait(0)


def test_waiting_ends_when_another_thread_completes() -> None:
    event = Event()
    other = threading.Thread(target=event.complete)
    other.start()
    event.wait(WAIT_S)
    other.join()


@pytest.fixture
def _threads_switch_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_threads_switch_often")
def test_callbacks_run_once_however_adding_and_completing_race() -> None:
    """Adders on two threads race with the completing third: no callback is lost or doubled."""
    count, rounds = 20, 100
    for _ in range(rounds):
        event, start = Event(), threading.Barrier(3)
        seen: list[int] = []

        def add(first: int, event: Event = event, seen: list[int] = seen) -> None:
            start.wait()  # noqa: B023 - joined before the next round
            for number in range(first, first + count):
                event.on_done(lambda _, number=number: seen.append(number))  # type: ignore[misc]

        adders = [threading.Thread(target=add, args=(first,)) for first in (0, count)]
        for thread in adders:
            thread.start()
        start.wait()
        event.complete()
        for thread in adders:
            thread.join()
        assert sorted(seen) == list(range(2 * count))


class Turns:
    """Threads that run one at a time, and stop at points; the choice of who goes on is replayed.

    Parameters
    ----------
    choices : sequence of int
        Who goes on at each point, of those that have not ended; the first of them after the last.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self._own = threading.local()
        self._back = threading.Semaphore(0)
        self.options: list[int] = []

    def pause(self) -> None:
        """Let the others run until it is the calling thread's turn; others do not stop here."""
        turn = getattr(self._own, "turn", None)
        if turn is not None:
            self._back.release()
            turn.acquire()

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        """Run works, each on its thread, to their ends."""
        turns = [threading.Semaphore(0) for _ in works]
        left = dict(enumerate(works))

        def follow(number: int) -> None:
            self._own.turn = turns[number]
            turns[number].acquire()
            works[number]()
            del left[number]
            self._back.release()

        threads = [threading.Thread(target=follow, args=(number,)) for number in left]
        for thread in threads:
            thread.start()
        while left:
            step = len(self.options)
            choice = self._choices[step] if step < len(self._choices) else 0
            self.options.append(len(left))
            turns[sorted(left)[choice]].release()
            assert self._back.acquire(timeout=WAIT_S)
        for thread in threads:
            thread.join()


class SteppedList(list[Any]):
    """A list whose users may be interrupted before and after each change of it, but not within."""

    def __init__(self, items: Iterable[Any], pause: Callable[[], None]) -> None:
        super().__init__(items)
        self._pause = pause

    def append(self, item: Any) -> None:
        self._pause()
        super().append(item)
        self._pause()

    def pop(self, index: SupportsIndex = -1) -> Any:
        self._pause()
        try:
            return super().pop(index)
        finally:
            self._pause()


def every_order(run: Callable[[Turns], None]) -> int:
    """Run what takes turns in every order that there is; return how many there are."""
    choices: list[int] = []
    for count in itertools.count(1):
        turns = Turns(choices)
        run(turns)
        choices = [*choices, *[0] * (len(turns.options) - len(choices))]
        while choices and choices[-1] + 1 == turns.options[len(choices) - 1]:
            choices.pop()
        if not choices:
            return count
        choices[-1] += 1
    raise AssertionError


@pytest.mark.slow
def test_callbacks_run_once_in_every_order_of_adding_and_completing() -> None:
    """With changes of the list as what is atomic, as it is with a GIL and without."""

    def race(turns: Turns) -> None:
        seen: list[str] = []
        event = Event(lambda _: seen.append("first"))
        event._callbacks = SteppedList(event._callbacks, turns.pause)
        turns.run([event.complete, lambda: event.on_done(lambda _: seen.append("second"))])
        assert sorted(seen) == ["first", "second"]

    assert every_order(race) > 100
