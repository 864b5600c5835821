"""Calls that other threads have the trio thread make."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio
from patience import WAIT_S
from plait.scheduler.errors import SessionError
from plait.scheduler.runtime import loop_inbox
from plait.scheduler.runtime.loop_inbox import LoopInbox, LoopQueue
from resources import held, left_since

WAYS = ["eventfd", "trio's own"]


def raise_it(error: BaseException) -> None:
    raise error


@pytest.fixture(params=WAYS)
def opened(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], LoopInbox]:
    if request.param != "eventfd":
        monkeypatch.setattr(loop_inbox, "write_eventfd", None)

    def make() -> LoopInbox:
        inbox = LoopInbox(raise_it)
        inbox.start()
        inbox.open()
        return inbox

    return make


def test_a_loop_is_woken_once_for_the_values_before_its_turn_and_again_for_later_ones() -> None:
    woken: list[int] = []
    taken: list[int] = []

    def take(value: int) -> None:
        taken.append(value)
        if value == 1:
            queue.post(3)

    queue: LoopQueue[int] = LoopQueue(lambda: woken.append(len(taken)), take)
    queue.post(1)
    queue.post(2)
    assert (woken, taken) == ([0], [])
    queue.drain()
    assert (woken, taken) == ([0, 1], [1, 2])
    queue.drain()
    assert taken == [1, 2, 3]


@pytest.mark.parametrize("error", [RuntimeError(), SessionError("the session is closed")])
def test_a_loop_that_has_ended_takes_nothing(error: Exception) -> None:
    queue: LoopQueue[int] = LoopQueue(
        lambda: raise_it(error), lambda value: pytest.fail(f"{value} was taken")
    )
    queue.post(1)


async def test_calls_are_made_on_the_loops_thread_in_their_order(
    opened: Callable[[], LoopInbox],
) -> None:
    inbox, done = opened(), trio.Event()
    made: list[tuple[int, int, int]] = []

    def post(poster: int) -> None:
        for number in range(200):
            inbox.post(partial(note, poster, number))

    def note(poster: int, number: int) -> None:
        made.append((poster, number, threading.get_ident()))
        if len(made) == 800:
            done.set()

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for poster in range(4):
                nursery.start_soon(trio.to_thread.run_sync, post, poster)
        await done.wait()
        await inbox.close()
    assert {ident for *_, ident in made} == {threading.get_ident()}
    for poster in range(4):
        assert [number for one, number, _ in made if one == poster] == list(range(200))


async def test_what_a_call_posts_is_called_after_others_had_their_turn(
    opened: Callable[[], LoopInbox],
) -> None:
    inbox, done = opened(), trio.Event()
    made: list[str] = []

    def first() -> None:
        made.append("first")
        inbox.post(last)

    def last() -> None:
        made.append("last")
        done.set()

    with trio.fail_after(WAIT_S):
        inbox.post(first)
        inbox.post(lambda: made.append("second"))
        await done.wait()
        await inbox.close()
    assert made == ["first", "second", "last"]


async def test_what_comes_when_it_is_closed_is_called_all_the_same(
    opened: Callable[[], LoopInbox],
) -> None:
    inbox, done = opened(), trio.Event()
    made: list[str] = []
    with trio.fail_after(WAIT_S):
        inbox.post(lambda: made.append("before"))
        await inbox.close()
        inbox.post(done.set)
        await done.wait()
    assert made == ["before"]


async def test_closing_gives_up_the_descriptor_and_the_task(
    opened: Callable[[], LoopInbox],
) -> None:
    tasks = trio.lowlevel.current_statistics().tasks_living
    before = held()
    inbox = opened()
    await inbox.close()
    await trio.lowlevel.checkpoint()
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert not left_since(before)


def test_nothing_is_called_once_the_loop_has_ended(opened: Callable[[], LoopInbox]) -> None:
    async def leave() -> LoopInbox:
        return opened()

    inbox = trio.run(leave)
    inbox.post(pytest.fail)


@pytest.mark.skipif(loop_inbox.write_eventfd is None, reason="there is no eventfd here")
async def test_the_loop_is_told_once_for_all_that_comes_before_it_is_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    write = loop_inbox.write_eventfd
    assert write is not None

    def counted(fd: int, value: int) -> object:
        written.append(value)
        return write(fd, value)

    monkeypatch.setattr(loop_inbox, "write_eventfd", counted)
    inbox, done = LoopInbox(raise_it), trio.Event()
    inbox.start()
    inbox.open()
    for call in (lambda: None, lambda: None, done.set):
        inbox.post(call)
    with trio.fail_after(WAIT_S):
        await done.wait()
        await inbox.close()
    assert written == [1]


async def test_no_call_is_lost_however_many_threads_post(opened: Callable[[], LoopInbox]) -> None:
    """Each thread waits for its call before the next, so that one that is not told of hangs."""
    threads, rounds = 4, 200
    inbox, made = opened(), [0] * threads
    start = threading.Barrier(threads)

    def post(number: int) -> None:
        start.wait()
        for _ in range(rounds):
            called = threading.Event()

            def call(called: threading.Event = called) -> None:
                made[number] += 1
                called.set()

            inbox.post(call)
            assert called.wait(WAIT_S)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        async with trio.open_nursery() as nursery:
            for number in range(threads):
                nursery.start_soon(trio.to_thread.run_sync, post, number)
    finally:
        sys.setswitchinterval(interval)
    assert made == [rounds] * threads
    await inbox.close()
