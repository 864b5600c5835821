"""Callables that get lists of several items: the results are those of one item at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pandas as pd
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from job_cases import read_lines
from patience import WAIT_S
from pipeline_functions import halve_all, tell_process_of_all
from plait.scheduler.bridges.listed_rows import ListedRows
from plait.scheduler.pipelines.item_blocks import ItemBlocks, ItemList

Rows = list[Any]


def negate(number: Any) -> Any:
    return -number


def add_all(numbers: Rows, *, most: int = 10**9) -> Rows:
    assert 0 < len(numbers) <= most
    return [number + 1 for number in numbers]


async def add_all_later(numbers: Rows) -> Rows:
    await trio.lowlevel.checkpoint()
    return add_all(numbers)


def to_array(numbers: Rows) -> Any:
    return np.array(numbers, np.float32)[:, None]


def split_all(numbers: Rows) -> Rows:
    return [(number, number * 10) for number in numbers]


def add_pair(first: Any, second: Any) -> Any:
    return first + second


def refuse_sevens(numbers: Rows) -> Rows:
    if 7 in numbers:
        raise ValueError("a seven")
    return numbers


def make_net() -> Any:
    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", (1,)) * 2)
    return b.build()


def make_batch(function: Callable[..., Any], size: int = 3, **options: Any) -> Any:
    return pl.step(function, batch=size, ordered=False, **options)


KINDS: dict[str, tuple[Sequence[Any], Callable[[Any], Any]]] = {
    "row": ([negate], negate),
    "batch": ([make_batch(partial(add_all, most=3), name="add")], lambda n: n + 1),
    "async": ([make_batch(add_all_later, 2)], lambda n: n + 1),
    "array": ([make_batch(to_array, 4), make_net(), lambda y: float(y[0])], lambda n: n * 2.0),
    "several results": ([make_batch(split_all, 5), add_pair], lambda n: n * 11),
    "several arguments": (
        [
            make_batch(split_all),
            make_batch(lambda a, b: [x + y for x, y in zip(a, b, strict=True)]),
        ],
        lambda n: n * 11,
    ),
}
"""Steps on numbers, and the same by hand."""

kinds = st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3)
numbers = st.lists(st.integers(-9, 9), max_size=12)


def chain(names: Sequence[str]) -> tuple[list[Any], Callable[[Any], Any]]:
    def by_hand(value: Any) -> Any:
        for name in names:
            value = KINDS[name][1](value)
        return value

    return [step for name in names for step in KINDS[name][0]], by_hand


@settings(max_examples=20)
@given(names=kinds, items=numbers)
def test_items_have_the_results_that_they_have_alone(names: list[str], items: list[int]) -> None:
    steps, by_hand = chain(names)
    with pl.pipeline(*steps, example=2) as pipe:
        assert pipe.map(items) == [by_hand(item) for item in items]
        assert pipe.run(3) == by_hand(3)


@settings(max_examples=20)
@given(names=kinds, items=st.lists(numbers, max_size=5))
def test_so_have_rows_in_each(names: list[str], items: list[list[int]]) -> None:
    steps, by_hand = chain([name for name in names if name != "array"] or ["batch"])
    with pl.pipeline(pl.each(*steps), example=[1, 2]) as pipe:
        assert pipe.map(items) == [[by_hand(row) for row in item] for item in items]


def test_in_each_a_model_follows_or_comes_before() -> None:
    each = pl.each(
        make_batch(to_array), make_net(), make_batch(lambda ys: [float(y[0]) for y in ys])
    )
    with pl.pipeline(each, example=[1, 2]) as pipe:
        assert pipe.map([[3, 4], [], [5]]) == [[6.0, 8.0], [], [10.0]]
    with pl.pipeline(pl.each(make_batch(to_array), make_net()), example=[1, 2]) as pipe:
        full, empty = pipe.map([[3, 4], []])
    np.testing.assert_array_equal(full, [6.0, 8.0])
    assert empty.shape == (0,)


def test_a_model_after_a_batch_is_said_to_lack_the_axis_of_an_item() -> None:
    def embed(numbers: Rows) -> Any:
        return np.array([numbers] * 3, np.float32).T

    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", ("n", 3)) * 2)
    net = b.build()
    fix = r"value\[None\]; for all values that step 'embed' returns: values\[:, None\]$"
    with pytest.raises(pl.GraphError, match=fix):
        pl.pipeline(make_batch(embed), net, example=1)
    with pl.pipeline(make_batch(lambda all_: embed(all_)[:, None]), net, example=1) as pipe:
        assert [one.tolist() for one in pipe.map(range(5))] == [[[2 * n] * 3] for n in range(5)]


def test_items_share_calls() -> None:
    sizes: list[int] = []
    gate = Barrier(2)

    def wait_once(numbers: Rows) -> Rows:
        sizes.append(len(numbers))
        if len(sizes) == 2:  # the call for the example is the first
            gate.wait(WAIT_S)  # until all others wait for the next batch
        return numbers

    def read() -> Any:
        yield from range(6)
        gate.wait(WAIT_S)
        yield 6

    with pl.pipeline(make_batch(wait_once, 8), example=0) as pipe:
        session = pipe.open(pipe.plan("cpu"))
        pending = [session.submit(pipe.feeds(n)) for n in range(6)]
        gate.wait(WAIT_S)
        assert [pipe.result(one.result(WAIT_S)) for one in pending] == [*range(6)]
    assert sum(sizes) == 7
    assert max(sizes) > 1


@pytest.mark.parametrize("in_each", [False, True])
def test_an_item_that_fails_a_batch_fails_alone(in_each: bool) -> None:
    step = make_batch(refuse_sevens, 4, name="refuse")
    items = [n % 10 for n in range(40)]
    with pl.pipeline(pl.each(step) if in_each else step, example=[1] if in_each else 1) as pipe:
        found = pipe.map([[n] for n in items] if in_each else items, return_exceptions=True)
    for number, result in zip(items, found, strict=True):
        if number != 7:
            assert result == ([number] if in_each else number)
        else:
            assert "step 'refuse' called with list" in str(result)
            assert "ValueError: a seven" in str(result)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (len, "a value of type int"),
        (str, "a value of type str"),
        (lambda numbers: (numbers, numbers), "a value of type tuple"),
        (lambda numbers: dict.fromkeys(numbers), "a value of type dict"),
        (set, "a value of type set"),
        (lambda numbers: pd.DataFrame({"n": numbers}), "a value of type pandas.DataFrame"),
        (lambda numbers: [], "0 results"),
        (lambda numbers: numbers * 2, "2 results"),
    ],
)
def test_results_that_are_not_one_for_each_item_are_refused(function: Any, got: str) -> None:
    message = rf"it returns {got} for a batch of 1 item\n  at:  step 'f'\n(?s:.*)list\(zip\("
    with pytest.raises(pl.GraphError, match=message):
        pl.pipeline(make_batch(function, name="f"), example=1)


def test_a_wrong_number_of_results_later_fails_the_item() -> None:
    with pl.pipeline(make_batch(lambda ns: [n for n in ns if n], name="f"), example=1) as pipe:
        found = pipe.map([1, 0, 2], return_exceptions=True)
    assert (found[0], found[2]) == (1, 2)
    assert "it returns 0 results for a batch of 1 item" in str(found[1])


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, numbers: Rows) -> Rows:
        self.count += len(numbers)
        return numbers


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (add_all, {"ordered": True}, "step 'add_all' is called in order, and batches"),
        (Counter, {}, "step 'Counter' is called in order, and batches"),
        (Counter(), {}, r"keeps state in 'self'(?s:.*)ordered=False if that does no"),
        (add_all, {"cache": "results.sqlite"}, "it has cache= and batch="),
        (add_all, {"pad": "tokens"}, "has pad=, which is for models"),
        (add_all, {"batch": 0}, "batch"),
    ],
)
def test_options_that_batches_do_not_allow_are_refused(
    target: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(pl.GraphError, match=message):
        pl.pipeline(pl.step(target, **{"batch": 4, **options}), example=1)


def test_workers_get_batches() -> None:
    step = pl.step(tell_process_of_all, batch=4, workers=2)
    with pl.pipeline(step, pl.step(halve_all, batch=3), example=2) as pipe:
        found = pipe.map(range(30))
    assert [half for half, _ in found] == [n / 2 for n in range(30)]
    assert os.getpid() not in {process for _, process in found}


async def test_a_session_under_trio_runs_batches() -> None:
    pipe = pl.pipeline(negate, make_batch(add_all), example=1)
    async with pl.Session(pipe.plan()) as session:
        async with session.stream([pipe.feeds(n) for n in range(9)]) as results:
            assert [pipe.result(one.outputs) async for one in results] == [1 - n for n in range(9)]


def test_one_batch_of_functions_runs_while_the_next_one_fills() -> None:
    made = pl.pipeline(make_batch(add_all), make_batch(to_array), make_net(), example=1).plan("cpu")
    assert [body.in_flight for body in made.bodies.values()] == [1, 1]


@pytest.mark.parametrize("several", [False, True])
def test_jobs_call_them_for_the_rows_of_a_block(tmp_path: Path, several: bool) -> None:
    sizes: list[int] = []

    def note(numbers: Rows) -> Rows:
        sizes.append(len(numbers))
        return [(n, n + 1) if several else n for n in refuse_sevens(numbers)]

    last = add_pair if several else negate
    pipe = pl.pipeline(negate, make_batch(note, 16), last, example=1)
    job = pl.Job(pipe, [-n for n in range(100)], "jsonl", tmp_path, max_failed=1)
    assert isinstance(job.blocks.begin(), ListedRows)
    assert job.run().failed == 1
    good = [n for n in range(100) if n != 7]
    expected = [2 * n + 1 if several else -n for n in good]
    assert [row["result"] for row in read_lines(job)] == expected
    (error,) = read_lines(job, job.status().errors)
    assert error["position"] == 7
    assert "ValueError: a seven" in error["error"]
    assert max(sizes) <= 16


@pytest.fixture
def calls() -> list[int]:
    """The sizes of the batches of `note_size`."""
    return []


@pytest.fixture
def noting(calls: list[int]) -> pl.Pipeline:
    def note_size(numbers: Rows) -> Rows:
        calls.append(len(numbers))
        return refuse_sevens(numbers)

    pipe = pl.pipeline(negate, make_batch(note_size, 8), negate, example=1)
    calls.clear()
    return pipe


def test_streams_of_functions_alone_fill_batches(noting: pl.Pipeline, calls: list[int]) -> None:
    with noting as pipe:
        assert pipe.map(range(20)) == [*range(20)]
        assert sorted(calls) == [4, 8, 8]
        assert pipe.profile().table().startswith("1 item in")  # a block
        assert pipe.run(5) == 5
        assert sorted(pipe.stream(range(20), ordered=False)) == [*range(20)]


def test_a_block_does_not_wait_for_a_slow_source(
    noting: pl.Pipeline, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.scheduler.pipelines.item_blocks.HAND_OVERS", 0)
    with noting as pipe:
        assert pipe.map(range(5)) == [*range(5)]
    assert calls == [1] * 5


@pytest.mark.parametrize("most", [1, 2, 5, 40])
def test_no_more_items_are_read_than_may_be_in_flight(noting: pl.Pipeline, most: int) -> None:
    done, ahead = 0, list[int]()

    def read() -> Iterator[int]:
        for number in range(100):
            ahead.append(number - done)
            yield number

    with noting as pipe:
        for number in pipe.stream(read(), max_in_flight=most):
            assert number == done
            done += 1
    # A result counts as done when the next one is asked for.
    assert max(ahead) <= most


def test_errors_of_items_in_blocks_are_those_of_single_items(noting: pl.Pipeline) -> None:
    items = [-n % 10 for n in range(30)]
    with noting as pipe:
        found = pipe.map([-n for n in items], return_exceptions=True)
        alone = pipe.map([-n for n in items], return_exceptions=True, on_error="yield")
        with pytest.raises(pl.KernelError) as caught:
            pipe.map([-n for n in items])
    for number, item in enumerate(items):
        if item != 7:
            assert found[number] == alone[number] == -item
        else:
            assert found[number].item == alone[number].item == number
            assert str(found[number]).splitlines()[0] == "ValueError: a seven"
            assert f"item {number}, step 'note_size' called with list" in str(found[number])
            assert found[number].__cause__.args == ("a seven",)
    assert caught.value.item == items.index(7)


def test_an_error_of_the_source_comes_after_the_results_before_it(noting: pl.Pipeline) -> None:
    def read() -> Iterator[int]:
        yield from range(11)
        raise LookupError("the end")

    found = list[int]()
    with noting as pipe:
        with pytest.raises(LookupError, match="the end"):
            found.extend(pipe.stream(read()))
        assert found == [*range(11)]
        assert pipe.map([3]) == [3]


def test_blocks_follow_the_plan_of_the_open_session(noting: pl.Pipeline) -> None:
    with noting as pipe:
        assert pipe.map([3]) == [3]
        session = pipe.open(pipe.plan("cpu"))
        assert pipe.map([4]) == [4]
        assert pipe.open() is session
    assert pipe.map([5]) == [5]  # it opens again
    with pipe, closing(pipe.stream(range(100))) as results:
        assert next(results) == 0


def make_scorer(rows: Any = "rows") -> Any:
    b = pl.GraphBuilder("scorer")
    b.output("y", b.input("x", "float32", (rows, 2)) * 2)
    b.output("sum", b.input("z", "float32", (rows, 2)).sum(1, keepdims=True))
    return b.build()


def to_rows(number: int) -> tuple[Any, Any]:
    if number == 7:
        raise ValueError("a seven")
    return np.full((1, 2), number, np.float32), np.ones((1, 2), np.float32)


def tell(y: Any, total: Any) -> Any:
    return float(y[0, 0]), float(total[0, 0])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every item is predicted to be short. The lengths of lists that run as one item."""
    lengths: list[int] = []

    def note(block: ItemList) -> Any:
        lengths.append(len(block.rows))
        return {"item": [one["item"] for one in block.rows]}

    monkeypatch.setattr(ItemList, "join", note)
    monkeypatch.setattr("plait.scheduler.pipelines.item_blocks.HAND_OVERS", 10**6)
    monkeypatch.setattr("plait.scheduler.pipelines.api.HAND_OVERS", 10**6)
    return lengths


ENDS: dict[str, tuple[Sequence[Any], Callable[[int], Any]]] = {
    "function": ([lambda y, _: float(y.sum())], lambda n: 4.0 * n),
    "several results": ([tell], lambda n: (2.0 * n, 2.0)),
    "batch": ([make_batch(lambda ys, _: [float(y.sum()) for y in ys])], lambda n: 4.0 * n),
    "model": ([], lambda n: (np.full((1, 2), 2 * n, "float32"), np.ones((1, 1), "float32") * 2)),
}


@pytest.mark.parametrize("end", ENDS)
def test_steps_with_batched_models_run_for_lists_of_items(end: str, short: list[int]) -> None:
    last, expect = ENDS[end]
    items = [n % 10 for n in range(45)]
    with pl.pipeline(to_rows, pl.step(make_scorer(), batch=4), *last, example=1) as pipe:
        found = pipe.map(items, return_exceptions=True)
        assert short == [32, 13]
        assert pipe.run(3) is not None  # it opens a session of single items
        again = pipe.map(items[:7], max_in_flight=4)
        assert short[2:] == [2, 2, 2, 1]
        with pytest.raises(pl.KernelError, match="a seven"):
            pipe.map(items)
    for number, (item, one) in enumerate(zip(items, found, strict=True)):
        if item == 7:
            assert one.item == number
            assert f"item {number}, step 'to_rows' called with int" in str(one)
        else:
            assert (type(one) is tuple) == (end in ("several results", "model"))
            assert str(one) == str(expect(item))
    assert str(again) == str(found[:7])


SINGLE: dict[str, Sequence[Any]] = {
    "no step takes several": [to_rows, make_scorer(), tell],
    "a device": [pl.step(to_rows, device="cpu:0"), pl.step(make_scorer(), batch=4)],
    "an order": [to_rows, pl.step(make_scorer(), batch=4), pl.step(tell, ordered=True)],
    "references": [to_rows, pl.step(make_scorer(), inputs=[0, 1], batch=4)],
    "a model for one row": [to_rows, make_scorer(1), make_batch(lambda ys, _: ys)],
}


@pytest.mark.parametrize("why", SINGLE)
def test_other_steps_run_for_single_items(why: str, short: list[int]) -> None:
    with pl.pipeline(*SINGLE[why], example=1) as pipe:
        assert len(pipe.map(range(5))) == 5
    assert short == []


def test_long_items_run_alone(short: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.scheduler.pipelines.api.HAND_OVERS", 0)
    with pl.pipeline(to_rows, pl.step(make_scorer(), batch=4), tell, example=1) as pipe:
        assert pipe.map(range(5)) == [(2.0 * n, 2.0) for n in range(5)]
    assert short == []


CHANGING: dict[str, Callable[[Any], Any]] = {
    "a tuple for one result": lambda y: (1, 2) if y[0, 0] == 6 else 5,
    "one result for a tuple": lambda y: 5 if y[0, 0] == 6 else (1, 2),
    "a longer tuple": lambda y: (1, 2, 3) if y[0, 0] == 6 else (1, 2),
    "an empty tuple": lambda y: () if y[0, 0] == 6 else 5,
}


@pytest.mark.parametrize("in_middle", [False, True])
@pytest.mark.parametrize("change", CHANGING)
def test_lists_of_items_have_the_results_of_single_items(
    change: str, in_middle: bool, short: list[int]
) -> None:
    b = pl.GraphBuilder("doubled")
    b.output("y", b.input("x", "float32", ("rows", 2)) * 2)
    steps = [CHANGING[change], lambda *values: values] if in_middle else [CHANGING[change]]
    first = lambda n: np.full((1, 2), n, np.float32)  # noqa: E731
    with pl.pipeline(first, pl.step(b.build(), batch=4), *steps, example=1) as pipe:
        found = pipe.map(range(1, 6), return_exceptions=True)
        assert short == [5]
        single = pipe.map(range(1, 6), return_exceptions=True, on_error="yield")
    assert [*map(str, found)] == [*map(str, single)]


@pytest.mark.parametrize("kind", [pl.SessionError, pl.KernelError])
def test_items_of_a_closed_pipeline_do_not_open_it_again(kind: type[pl.PlaitError]) -> None:
    session: Any = None
    again = {"result": 2}
    blocks = ItemBlocks(session, lambda: ItemList(["result"]), 4, 0.0, lambda feeds: again)
    failure = kind("over")
    expected: Any = failure if kind is pl.SessionError else again
    assert blocks._run_again(failure, {"item": 1}) is expected


def test_streams_that_begin_at_once_find_that_items_run_alone(short: list[int]) -> None:
    net = pl.step(make_scorer(), inputs=[0, 1], batch=4)
    with pl.pipeline(to_rows, net, example=1) as pipe, ThreadPoolExecutor(4) as pool:
        found = [*pool.map(pipe.map, [range(5)] * 4)]
    assert [len(one) for one in found] == [5] * 4
    assert short == []


def test_lists_have_room_for_the_largest_batch_of_a_step(short: list[int]) -> None:
    called: list[int] = []

    def note(number: int) -> tuple[Any, Any]:
        called.append(number)
        return to_rows(1)

    last = make_batch(lambda ys, _: [*map(len, ys)], 64)
    noted = pl.step(note, ordered=False)
    with pl.pipeline(noted, pl.step(make_scorer(), batch=4), last, example=1) as pipe:
        pipe.map(range(64))
        called.clear()
        assert pipe.map(range(64)) == [1] * 64
    assert short == [64, 64]
    assert sorted(called) == [*range(64)]  # none again, alone


@pytest.mark.parametrize("is_each", [False, True])
@pytest.mark.parametrize("rows", [0, 2])
def test_functions_that_return_other_than_one_row_for_a_model_are_refused(
    is_each: bool, rows: int
) -> None:
    b = pl.GraphBuilder("double")
    b.output("y", b.input("x", "float32", ("n", 4)) * 2.0)

    def make(number: int) -> Any:
        return np.full((number, 4), number, "float32")

    steps = [pl.each(make, b.build())] if is_each else [make, pl.step(b.build(), batch=4)]
    with pl.pipeline(*steps, example=[1] if is_each else 1) as pipe:
        items = [[1], [1, rows]] if is_each else [1, rows, 1]
        found = pipe.map(items, return_exceptions=True)
    assert [isinstance(one, pl.PlaitError) for one in found] == [False, True, False][: len(items)]
