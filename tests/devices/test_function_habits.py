"""Functions that keep the arrays they are given, or return arrays that they keep."""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices import function_habits
from plait.graph.values.tensor import Array

N_ITEMS = 9
LATE = 5
Values = list[Any]

numbers = count()

pytestmark = pytest.mark.usefixtures("forget_operators")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "plait")


def run(function: Callable[[Array], Any], devices: Any = "cpu", **options: Any) -> Values:
    """Return the first number of each item's result, or its error; item n is fed n."""
    b = pl.GraphBuilder("g")
    spec = pl.TensorSpec("float32", (2, 4))
    name = f"test_function_habits.{next(numbers)}"
    operator = pl.operator(spec, inputs=[spec], name=name)(function)
    # A kernel on either side: the function reads and writes planned memory.
    x = b.op("Add", b.input("x", "float32", (2, 4)), np.float32(0))
    b.output("y", b.op("Add", b.call(operator, x, name="call"), np.float32(0)))
    plan = pl.plan(b.build(), devices, max_in_flight=3, **options)
    feeds = ({"x": np.full((2, 4), value, "float32")} for value in range(N_ITEMS))
    with pl.BlockingSession(plan) as session:
        return [item.error or float(item["y"][0, 0]) for item in session.stream(feeds)]


KEPT_PARTS: dict[str, Callable[[Array], Any]] = {
    "itself": lambda x: x,
    "a view": lambda x: x[1:],
    "a view of a view": lambda x: x.reshape(-1)[2:][::2],
    "a transposed view": lambda x: x.T,
    "a memoryview": memoryview,
    "another dtype's view": lambda x: x.view(np.int32).view(np.float32),
}


@pytest.mark.parametrize("part", KEPT_PARTS)
def test_one_that_keeps_its_last_inputs_sees_them_unchanged(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept: deque[Any] = deque(maxlen=3)

    def average(x: Array) -> Array:
        kept.append(KEPT_PARTS[part](x))
        return np.full_like(x, np.mean([np.asarray(one).flat[0] for one in kept]))

    want = [np.mean(range(max(0, n - 2), n + 1)) for n in range(N_ITEMS)]
    assert run(average) == pytest.approx(want)
    assert caplog.text.count("keeps its input 'x'") == 1


@pytest.mark.parametrize("part", KEPT_PARTS)
def test_one_that_keeps_an_input_only_later_fails_that_item_alone(part: str) -> None:
    kept: list[Any] = []

    def track(x: Array) -> Array:
        if x.flat[0] >= LATE:
            kept.append(KEPT_PARTS[part](x))
        return x + 1

    results = run(track)
    failed = results.pop(LATE)
    assert isinstance(failed, pl.KernelError)
    assert "keeps its input 'x'" in failed.what
    assert "copy()" in str(failed.fix)
    assert results == [n + 1 for n in range(N_ITEMS) if n != LATE]
    later = [float(np.asarray(one).flat[0]) for one in kept[1:]]
    assert later == list(range(LATE + 1, N_ITEMS))


def test_one_that_sends_its_input_to_a_thread_gets_copies() -> None:
    go_on, seen, threads = threading.Event(), dict[float, float](), list[threading.Thread]()

    def send(x: Array) -> Array:
        def look(x: Array, value: float) -> None:
            assert go_on.wait(WAIT_S)
            seen[value] = float(x.flat[0])

        threads.append(threading.Thread(target=look, args=(x, float(x.flat[0]))))
        threads[-1].start()
        return x + 1

    assert run(send) == list(range(1, N_ITEMS + 1))
    go_on.set()
    for thread in threads:
        thread.join()
    assert seen == {n: n for n in range(N_ITEMS)}


def test_a_caught_exception_that_holds_an_input_fails_nothing() -> None:
    def catch(x: Array) -> Array:
        if x.flat[0] >= LATE:
            try:
                raise ValueError(x)
            except ValueError as error:
                cycle = error  # which knows this frame
                assert cycle
        return x + 1

    assert run(catch) == list(range(1, N_ITEMS + 1))


def test_one_that_keeps_nothing_is_lent_the_planned_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[Array] = []
    copy = function_habits._copy

    def note_copy(x: Array) -> Array:
        copies.append(x)
        return copy(x)

    monkeypatch.setattr(function_habits, "_copy", note_copy)
    assert run(lambda x: np.negative(x)[::-1]) == [-n for n in range(N_ITEMS)]
    assert len(copies) == 1  # by the first call, which shows its habits


async def keep_async(kept: deque[Array], x: Array) -> Array:
    kept.append(x)
    return np.full_like(x, np.mean([one.flat[0] for one in kept]))


def test_async_functions_that_keep_inputs_get_copies() -> None:
    kept: deque[Array] = deque(maxlen=2)

    async def average(x: Array) -> Array:
        return await keep_async(kept, x)

    spec = pl.TensorSpec("float32", (4,))
    operator = pl.operator(spec, inputs=[spec], name="test_function_habits.async")(average)
    b = pl.GraphBuilder("g")
    b.output("y", b.call(operator, b.input("x", "float32", (4,))))
    with pl.BlockingSession(pl.plan(b.build())) as session:
        found = [session.run({"x": np.full(4, n, "float32")})["y"][0] for n in range(5)]
    assert found == [0, 0.5, 1.5, 2.5, 3.5]


def test_generators_that_keep_inputs_get_copies() -> None:
    kept: deque[Array] = deque(maxlen=2)

    def halves(x: Array) -> Iterator[Array]:
        kept.append(x)
        for half in np.split(x, 2):
            yield half + kept[0][0]

    rows = pl.TensorSpec("float32", ("rows", 2))
    operator = pl.operator(
        rows, inputs=[pl.TensorSpec("float32", (4,))], name="test_function_habits.rows"
    )(halves)
    b = pl.GraphBuilder("g")
    b.output("y", b.call(operator, b.input("x", "float32", (4,))))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"rows": 2})) as session:
        found = [session.run({"x": np.full(4, n, "float32")})["y"][0, 0] for n in range(5)]
    assert found == [0, 1, 3, 5, 7]


def test_one_in_a_worker_gets_copies_there() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.call(average_of_three, b.input("x", "float32", (4,))))
    with pl.BlockingSession(pl.plan(b.build(), ["worker"], max_in_flight=3)) as session:
        feeds = ({"x": np.full(4, n, "float32")} for n in range(5))
        assert [item["y"][0] for item in session.stream(feeds)] == [0, 0.5, 1, 2, 3]


_kept: deque[Array] = deque(maxlen=3)


@pl.operator(
    pl.TensorSpec("float32", (4,)),
    inputs=[pl.TensorSpec("float32", (4,))],
    name="test_function_habits.average_of_three",
)
def average_of_three(x: Array) -> Array:
    _kept.append(x)
    averaged: Array = np.mean(list(_kept), axis=0).astype("float32")
    return averaged


def test_calls_that_return_a_buffer_they_keep_take_turns() -> None:
    buffer, at_once, most = np.zeros((2, 4), "float32"), [0], [0]

    def fill(x: Array) -> Array:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0] if x.flat[0] > 2 else 0)
        np.add(x, 1, out=buffer)
        at_once[0] -= 1
        return buffer

    for _ in range(10):
        assert run(fill, "cpu:0..1")[3:] == list(range(4, N_ITEMS + 1))
    assert most == [1]


ACTIONS = ["none", "keep", "keep view", "return input", "return view", "resize", "write"]


@given(st.lists(st.sampled_from(ACTIONS), min_size=N_ITEMS, max_size=N_ITEMS), st.booleans())
def test_whatever_functions_do_results_are_right_or_their_item_fails(
    actions: list[str], is_in_two_lanes: bool
) -> None:
    kept: list[tuple[Any, float]] = []

    def act(x: Array) -> Array:
        value = float(x.flat[0])
        action = actions[int(value)]
        if action.startswith("keep"):
            kept.append((x if action == "keep" else x[1:], value))
        if action.startswith("return"):
            return x if action == "return input" else x[::-1][::-1]
        if action == "resize":
            made = np.empty(12, "float32")
            made.resize(8, refcheck=False)
            made[...] = value
            return made.reshape(2, 4)
        if action == "write":
            with pytest.raises(ValueError, match="read-only"):
                x[...] = -1
        return x + 0

    found = run(act, "cpu:0..1" if is_in_two_lanes else "cpu")
    failed = {n for n, one in enumerate(found) if isinstance(one, BaseException)}
    assert [one for n, one in enumerate(found) if n not in failed] == [
        n for n in range(N_ITEMS) if n not in failed
    ]
    assert len(failed) <= 1 + is_in_two_lanes
    gc.collect()
    sound = [(one, value) for one, value in kept if value not in failed]
    assert all(float(np.asarray(one).flat[0]) == value for one, value in sound)


def test_an_input_that_the_frames_of_an_earlier_error_hold_is_not_taken_for_kept() -> None:
    def raise_first(x: Array) -> Array:
        if x.flat[0] in (LATE, LATE + 2):
            raise ValueError("no such number")
        return x + 1

    found = run(raise_first)  # the errors are kept, with the frames of their calls
    for error in (found.pop(LATE), found.pop(LATE + 1)):
        assert "no such number" in str(error)
    assert found == [n + 1 for n in range(N_ITEMS) if n not in (LATE, LATE + 2)]
