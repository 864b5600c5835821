"""Pipelines of callables and models: their results are those of a plain loop."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_functions import (
    AddItem,
    count_and_reverse,
    double,
    list_all,
    round_sum,
    tell_process,
    to_row,
    to_whole_row,
    wait_for,
    yield_twice,
)
from plait.scheduler.pipelines import api

CALLABLES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "double": (double, double),
    "list": (list_all, list),
    "yield_twice": (yield_twice, lambda values: [one for one in values for _ in range(2)]),
    "async": (wait_for, lambda values: values),
    "object": (AddItem(7), lambda values: [*values, 7]),
    "method": (AddItem(8).add, lambda values: [*values, 8]),
    "partial": (functools.partial(sorted, reverse=True), lambda v: sorted(v, reverse=True)),
    "builtin": (list.copy, list.copy),
}
"""Callables of all kinds on lists, and the same by hand."""


@settings(max_examples=15)
@given(
    names=st.lists(st.sampled_from(list(CALLABLES)), min_size=1, max_size=5),
    items=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6),
)
def test_a_chain_of_callables_computes_what_a_loop_does(
    names: list[str], items: list[list[int]]
) -> None:
    steps = [CALLABLES[name][0] for name in names]
    with pl.pipeline(*steps, example=[1, 2]) as pipe:
        found = pipe.map(items)
    for item, result in zip(items, found, strict=True):
        expected: Any = item
        for name in names:
            expected = CALLABLES[name][1](expected)
        assert result == expected


def make_network(name: str = "net", rows: int | str = 1) -> pl.Graph:
    b = pl.GraphBuilder(name)
    x = b.input("x", "float32", (rows, 3))
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    b.output("scores", x @ weights)
    b.output("total", x.sum(axis=1))
    return b.build()


def run_network(x: Any) -> tuple[Any, Any]:
    return x @ np.arange(6, dtype=np.float32).reshape(3, 2), x.sum(axis=1)


@pytest.mark.parametrize("rows", [1, "n"])
@pytest.mark.parametrize("batch", [None, 4])
def test_a_model_gets_arrays_and_gives_them(rows: int | str, batch: int | None) -> None:
    pipe = pl.pipeline(
        to_whole_row, pl.step(make_network(rows=rows), batch=batch), lambda s, t: (s, t), example=1
    )
    with pipe:
        for number, (scores, total) in enumerate(pipe.stream(range(9))):
            expected = run_network(to_whole_row(number))
            np.testing.assert_allclose(scores, expected[0])
            np.testing.assert_allclose(total, expected[1])


@settings(max_examples=12)
@given(
    before=st.sampled_from([to_row, to_whole_row]),
    batch=st.none() | st.integers(1, 4),
    is_last=st.booleans(),
    models=st.integers(1, 2),
    items=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5),
)
def test_each_computes_what_a_loop_over_rows_does(
    before: Any, batch: int | None, is_last: bool, models: int, items: list[list[int]]
) -> None:
    scores_only = pl.GraphBuilder("scores")
    scores_only.output("y", scores_only.input("x", "float32", (1, 3)) * 2.0)
    model = scores_only.build()
    steps = [before, *[model] * models, *([] if is_last else [round_sum])]
    with pl.pipeline(pl.each(*steps, batch=batch, name="rows"), example=[1, 2, 3]) as pipe:
        found = pipe.map(items)
    for item, result in zip(items, found, strict=True):
        arrays = [np.float32(2**models) * to_row(number) for number in item]
        if is_last:
            np.testing.assert_allclose(result, np.reshape(arrays, (len(item), 3)))
        else:
            assert result == [round_sum(one) for one in arrays]


def test_rows_may_be_one_array() -> None:
    b, row = pl.GraphBuilder("double"), np.ones(3, "float32")
    b.output("y", b.input("x", "float32", ("n", 3)) * 2.0)
    with pl.pipeline(pl.each(lambda _: row, b.build(), batch=4), example=[1, 2]) as pipe:
        np.testing.assert_array_equal(pipe.run([1, 2, 3]), np.full((3, 3), 2.0))


def make_row_model(shape: Sequence[int | str], last: str) -> pl.Graph:
    b = pl.GraphBuilder(last)
    x = b.input("x", "float32", shape)
    made: dict[str, Callable[[], Any]] = {
        "scale": lambda: 2 * x,
        "flatten": lambda: x.reshape(1, -1),
        "append": lambda: b.op("Concat", x, np.ones((1, 3), "float32"), axis=1),
        "sum": lambda: x.sum(),
        "rank": lambda: b.op("Softmax", x, axis=0),
        "turn": lambda: x.transpose(1, 0),
        "alone": lambda: b.op("Reshape", x.reshape(3, 1), b.op("Shape", x)),
    }
    b.output("y", made[last]())
    return b.build()


@pytest.mark.parametrize(
    ("shape", "last", "has_axis"),
    [
        ((1, 3), "scale", True),
        (("n", 3), "scale", True),
        ((1, 3), "flatten", True),
        ((1, 3), "append", True),
        ((1, 3), "rank", True),
        ((3,), "scale", False),
        (("n",), "rank", False),
        ((3,), "sum", False),
        ((2, 3), "scale", False),
        ((1, "n"), "turn", False),
    ],
)
@pytest.mark.parametrize("is_whole", [False, True])
def test_each_runs_models_that_are_not_for_batches(
    shape: Sequence[int | str], last: str, has_axis: bool, is_whole: bool
) -> None:
    model = make_row_model(shape, last)

    def make_row(value: int) -> Any:
        row = np.arange(6, dtype=np.float32).reshape(2, 3)[: 2 if shape[0] == 2 else 1]
        return value + (row if len(shape) > 1 and (is_whole or not has_axis) else row[0])

    def run_by_hand(row: Any) -> Any:
        found = pl.run(model, {"x": row if row.ndim == len(shape) else row[None]})["y"]
        return found[0] if has_axis else found

    items = [[3], [4, 5, 6], []]
    step = pl.step(model, device="cpu")
    with pl.pipeline(pl.each(make_row, step, name="rows"), example=[1, 2]) as pipe:
        for item, found in zip(items, pipe.map(items), strict=True):
            assert len(found) == len(item)
            for value, row in zip(item, found, strict=True):
                np.testing.assert_allclose(row, run_by_hand(make_row(value)), rtol=1e-6)


@pytest.mark.parametrize("last", ["flatten", "append", "rank", "scale", "alone"])
def test_models_for_one_row_have_no_batches(last: str) -> None:
    shapes: dict[str, tuple[int | str, ...]] = {"scale": (3,), "alone": ("n", 3)}
    model = make_row_model(shape := shapes.get(last, (1, 3)), last)
    with pytest.raises(pl.GraphError, match=r"computes one row at a time: (?s:.*)leave batch= out"):
        pl.pipeline(pl.each(to_row, model, batch=4), example=[1])
    with pl.pipeline(pl.each(to_row, model, batch=1), example=[1]) as pipe:
        assert len(pipe.run([1, 2])) == 2
    if len(shape) > 1:
        with pytest.raises(pl.GraphError, match="computes one row at a time"):
            pl.pipeline(to_whole_row, pl.step(model, batch=4), example=1)


def test_rows_that_no_model_takes_are_told_with_what_it_takes() -> None:
    with pytest.raises(pl.GraphError, match=r"takes x float32\[2, 3\], and a row is float32\[3\]"):
        pl.pipeline(pl.each(to_row, make_row_model((2, 3), "scale")), example=[1])


def test_an_example_is_needed() -> None:
    with pytest.raises(pl.GraphError, match=r"no example shows(?s:.*)example=files\[0\]"):
        pl.pipeline(double)
    with pytest.raises(pl.GraphError, match="no example shows"):
        pl.pipeline(double, examples=[])
    with pl.pipeline(lambda value: value, example=None) as pipe:  # None is an item like any other
        assert pipe.map([None, 1]) == [None, 1]


def test_rows_get_values_of_the_whole_item_along() -> None:
    def crop(index: int, image: Any) -> Any:
        return image[index : index + 3].astype(np.float32)

    pipe = pl.pipeline(
        pl.step(lambda image: list(range(len(image) - 2)), name="boxes"),
        pl.each(crop, make_network(), inputs=["boxes", "item"], name="crops"),
        example=np.arange(5),
    )
    with pipe:
        for image in (np.arange(7), np.arange(3), np.arange(2)):
            scores, _ = pipe.run(image)
            expected = [run_network(crop(n, image)[None])[0][0] for n in range(len(image) - 2)]
            np.testing.assert_allclose(scores, np.reshape(expected, (len(expected), 2)))


def test_steps_refer_to_results_of_any_step_before() -> None:
    pipe = pl.pipeline(
        pl.step(count_and_reverse, name="first"),
        pl.step(lambda reverse, count: (reverse, count), inputs=[1, 0], name="swap"),
        pl.step(lambda *values: list(values), inputs=["item", "first.0", "swap", "first"]),
        example="abc",
    )
    with pipe:
        assert pipe.run("xy") == ["xy", 2, "yx", 2, 2, "yx"]


def test_outputs_of_models_are_referred_to_by_name(tmp_path: Path) -> None:
    pl.save(make_network(), tmp_path / "scorer.onnx")
    pipe = pl.pipeline(
        pl.step(to_whole_row, name="row"),
        tmp_path / "scorer.onnx",
        pl.step(lambda total, scores: (float(total[0]), scores.tolist()),
                inputs=["scorer.total", "scorer.scores"]),
        example=1,
    )  # fmt: skip
    with pipe:
        assert pipe(2) == (6.0, run_network(to_whole_row(2))[0].tolist())


def test_a_model_alone_is_fed_by_mappings() -> None:
    b = pl.GraphBuilder("sum")
    b.output("y", b.input("a", "float32", (2,)) + b.input("b", "float32", (2,)))
    ones = np.ones(2, np.float32)
    with pl.pipeline(b.build(), example={"a": ones, "b": ones}) as pipe:
        assert pipe.run({"a": ones, "b": 2 * ones}).tolist() == [3, 3]
        with pytest.raises(pl.GraphError, match="an item is of type list"):
            pipe.run([1, 2])
    with pl.pipeline(pl.step(b.build(), inputs={"b": "item", "a": "item"}), example=ones) as pipe:
        assert pipe.run(3 * ones).tolist() == [6, 6]


def test_lengths_that_differ_between_examples_may_vary() -> None:
    b = pl.GraphBuilder("mean")
    b.output("y", b.input("x", "float32", ("n",)).mean(axis=0))
    model = b.build()

    def fill(count: int) -> Any:
        return np.arange(count, dtype=np.float32)

    with pl.pipeline(fill, model, float, examples=[2, 5]) as pipe:
        assert list(pipe.bounds.values()) == [32]
        assert "at most 32" in str(pipe)
        assert pipe.map([1, 9, 32]) == [0, 4, 15.5]
        with pytest.raises(pl.KernelError, match=r"(?s)its bound is 32.*longest of its examples="):
            pipe.run(33)
    with pl.pipeline(fill, model, float, example=2) as pipe:
        with pytest.raises(pl.KernelError, match="declared was float32"):
            pipe.run(3)


def test_lengths_that_agree_in_all_examples_by_chance_are_told_how_to_differ() -> None:
    b = pl.GraphBuilder("mean")
    b.output("y", b.input("x", "float32", ("h", "w")).mean())
    model = b.build()

    def fill(shape: tuple[int, int]) -> Any:
        return np.ones(shape, np.float32)

    with pl.pipeline(fill, model, examples=[(2, 2), (3, 3)]) as pipe:
        with pytest.raises(pl.KernelError, match=r"(?s)is 5 in.*and 2 in.*an example in which"):
            pipe.run((2, 5))
    with pl.pipeline(fill, model, examples=[(2, 2), (3, 3), (2, 5)]) as pipe:
        assert pipe.run((4, 5)).tolist() == 1


def test_more_rows_than_the_bound_fail_an_item_and_name_the_bound() -> None:
    pipe = pl.pipeline(pl.each(to_row, make_network(), most=3, name="rows"), example=[1])
    with pipe:
        results = list(pipe.stream([[1] * 3, [1] * 4, [1]], return_exceptions=True))
    assert isinstance(results[1], pl.KernelError)
    assert "rows_rows" in str(results[1])
    assert [len(results[n][0]) for n in (0, 2)] == [3, 1]


def test_workers_run_callables_of_all_kinds() -> None:
    pipe = pl.pipeline(
        pl.step(AddItem(3), workers=2),
        pl.step(tell_process, workers=1, name="tell"),
        pl.step(lambda process, values: (process, values), device="cpu"),
        example=[1],
    )
    assert pipe.pins["additem" if "additem" in pipe.pins else "AddItem"] == "worker:0..1"
    assert pipe.pins["tell"] == "worker:2"
    with pipe:
        found = pipe.map([[n] for n in range(5)])
    assert [values for _, values in found] == [[n, 3] for n in range(5)]
    assert len({process for process, _ in found}) == 1


class Locked:
    """Holds an object that no process can give to another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, value: int) -> int:
        return value


def test_a_callable_that_cannot_be_sent_to_a_worker_is_named_with_the_reason() -> None:
    pytest.importorskip("cloudpickle")
    with pl.pipeline(pl.step(Locked(), workers=1), example=1) as pipe:
        with pytest.raises(pl.PlaitError, match="Locked uses 'lock', a lock: ") as caught:
            pipe.run(1)
    assert "without workers=" in str(caught.value)


def test_an_ordered_step_sees_items_in_order() -> None:
    seen: list[int] = []

    def track(value: int) -> int:
        seen.append(value)
        return sum(seen)

    with pl.pipeline(double, pl.step(track, ordered=True), example=0) as pipe:
        seen.clear()
        assert pipe.map(range(20)) == [n * (n + 1) for n in range(20)]


class Numbering:
    """Numbers its calls; a lock cannot be copied."""

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self.lock, self.count = lock, 0

    def __call__(self, value: Any) -> tuple[int, Any]:
        self.count += 1
        return self.count, value


@pytest.mark.parametrize("wrap", [pl.step, pl.each, lambda one: functools.partial(one.__call__)])
def test_the_example_leaves_objects_with_state_as_they_are(wrap: Callable[..., Any]) -> None:
    numbering = Numbering()
    with pl.pipeline(wrap(numbering), example=[4]) as pipe:
        assert numbering.count == 0
        (first, *_) = pipe.map([[5], [6]])
    assert numbering.count == 2
    assert first in ((1, [5]), [(1, 5)])


def test_steps_that_change_what_they_get_leave_the_example_as_it_is() -> None:
    rows = [{"x": 10}, {"x": 20}]
    change = dict[str, int].popitem
    pl.pipeline(change, examples=rows)
    pl.pipeline(pl.each(change), example=rows)
    pl.pipeline(pl.step(change, inputs="item.row"), example={"row": rows[0]})
    assert rows == [{"x": 10}, {"x": 20}]
    pl.pipeline(type, example=threading.Lock())  # which cannot be copied


def test_an_object_that_cannot_be_copied_runs_on_the_example_itself() -> None:
    numbering = Numbering(threading.Lock())
    pl.pipeline(numbering, example=4)
    assert numbering.count == 1


def test_an_item_that_fails_is_raised_or_returned() -> None:
    def invert(value: int) -> float:
        return 1 / value

    with pl.pipeline(invert, example=1) as pipe:
        results = list(pipe.stream([1, 0, 2], return_exceptions=True))
        assert results[::2] == [1, 0.5]
        assert isinstance(results[1], pl.KernelError)
        assert "invert" in str(results[1])
        with pytest.raises(pl.KernelError, match="ZeroDivisionError"):
            pipe.map([1, 0, 2])
        assert pipe.map([4]) == [0.25]


def test_types_stand_below_each_other() -> None:
    lines = str(pl.pipeline(pl.step(double, name="x"), example=1)).splitlines()
    assert lines[1:] == ["  item  an object", "  x     an object"]


def test_progress_counts_results() -> None:
    counts: list[int] = []
    with pl.pipeline(double, example=1) as pipe:
        pipe.map(range(3), progress=counts.append)
    assert counts == [1, 2, 3]


def test_the_graph_is_one_like_any_other() -> None:
    pipe = pl.pipeline(to_whole_row, make_network("net"), example=1, name="numbers")
    assert isinstance(pipe.graph, pl.Graph)
    plan = pipe.plan(["cpu"], max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        outputs = session.run(pipe.feeds(2))
    assert pipe.result(outputs)[1].tolist() == [6]
    assert "to_whole_row" in plan.report()
    assert repr(pipe) == "<Pipeline 'numbers': to_whole_row -> net>"


@pytest.mark.parametrize("held", [{"concurrency": 20}, {"workers": 20}, {"batch": 10}], ids=str)
def test_as_many_items_are_in_flight_as_a_step_can_hold(held: dict[str, Any]) -> None:
    async def ask(value: int) -> int:
        return value

    kinds: dict[str, Any] = {"concurrency": ask, "workers": sorted, "batch": make_network("net")}
    (target,) = (kinds[name] for name in held)
    pipe = pl.pipeline(to_whole_row, pl.step(target, **held), example=1)
    assert pipe.plan("cpu").in_flight > 20


def test_equal_names_are_told_apart_and_pipelines_do_not_share_functions() -> None:
    def make(factor: int) -> pl.Pipeline:
        def scale(value: int) -> int:
            return factor * value

        return pl.pipeline(scale, scale, example=1)

    with make(2) as doubled, make(3) as tripled:
        assert doubled.map([1, 2]) == [4, 8]
        assert tripled.map([1, 2]) == [9, 18]
        assert [node.name for node in doubled.graph.nodes] == ["scale", "scale_2"]


def give_text(_: Any) -> str:
    return "text"


def give_lists_of_two_lengths(count: int) -> Any:
    return tuple(range(count))


@pytest.mark.parametrize(
    ("steps", "example", "message"),
    [
        ([], 1, "has no step"),
        ([len, len], "abc", r"fails on an example: TypeError.*\n.*step 'len_2'"),
        ([double, pl.step(double, inputs="dubble")], 1, "did you mean 'double'"),
        ([double, pl.step(double, inputs=3)], 1, r"has no result '3'(?s:.*)it has 1 result,"),
        ([dict, pl.step(len, inputs="dict.a")], {"a": 1}, "a dict is one value; read its entries"),
        ([[double, len]], 1, r"a step is list\n.*pl\.pipeline\(f, g\)"),
        ([give_text, make_network()], 1, "does not take the example"),
        ([to_row, make_network()], 1, "does not take the example"),
        ([count_and_reverse, make_network()], "ab", "has 1 input, x; it gets 2 values"),
        ([pl.each(to_row, make_network())], [], "no example has a row"),
        ([pl.each(to_row, make_network())], 3, "int, which has no rows"),
        ([pl.each(lambda n: np.zeros(n, np.float32), make_network())], [3, 2], "does not take"),
        ([pl.each(wait_for)], [1], "it is async"),
        ([pl.step(double, name="a.b")], 1, "use a name without dots"),
    ],
)  # fmt: skip
def test_mistakes_name_the_step(steps: Sequence[Any], example: Any, message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        pl.pipeline(*steps, example=example)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "n"}, "which is for models"),
        ({"workers": 1, "device": "cpu"}, "has workers= and device="),
    ],
)
def test_options_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        pl.step(double, **options)


def test_options_of_models_and_of_each_are_checked() -> None:
    with pytest.raises(pl.GraphError, match=r"in pl\.pipeline\(\.\.\.\): rows have no rows"):
        pl.each(pl.each(double))  # type: ignore[arg-type]
    with pytest.raises(pl.GraphError, match="which is for callables"):
        pl.step(make_network(), ordered=True)
    with pytest.raises(pl.GraphError, match="inside each"):
        pl.each(pl.step(make_network(), batch=2))
    with pytest.raises(pl.GraphError, match="has no step"):
        pl.each()
    with pytest.raises(pl.GraphError, match="a step is int"):
        pl.step(3)  # type: ignore[arg-type]
    with pytest.raises(pl.GraphError, match="example= and examples="):
        pl.pipeline(double, example=1, examples=[2])
    with pytest.raises(pl.GraphError, match="different lengths"):
        pl.pipeline(give_lists_of_two_lengths, examples=[2, 3])


def test_a_closed_pipeline_opens_again() -> None:
    pipe = pl.pipeline(double, example=1)
    with pipe:
        assert pipe.run(1) == 2
    with pipe:
        assert pipe.run(2) == 4
        with pipe.open() as session:
            assert session.run(pipe.feeds(3)) == {"result": 6}
        assert session.is_closed
        assert pipe.run(4) == 8
        assert not pipe.open().is_closed


async def test_sessions_of_other_loops_run_its_plan() -> None:
    pipe = pl.pipeline(double, count_and_reverse, example=[1])
    async with pl.Session(pipe.plan()) as session:
        async with session.stream(pipe.feeds(item) for item in ([1, 2], [3])) as results:
            found = [pipe.result(item.outputs) async for item in results]
    assert found == [(4, [2, 1, 2, 1]), (2, [3, 3])]


def test_a_mapping_is_one_value_unless_a_step_names_its_parts() -> None:
    def count(record: dict[str, str]) -> int:
        return len(record)

    with pl.pipeline(count, example={"a": "x", "b": "y"}) as pipe:
        assert pipe.graph.inputs == ("item",)
        assert pipe.map([{"a": "x"}, {}]) == [1, 0]
    join = pl.step("{}{}".format, inputs=["item.b", "item.a"])
    with pl.pipeline(join, example={"a": "x", "b": "y"}) as pipe:
        assert pipe.run({"a": "1", "b": "2"}) == "21"


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: int) -> int:
        self.calls += 1
        return self.calls


def add_one(value: int) -> int:
    return value + 1


def test_callables_alone_run_on_replicas_and_those_with_state_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "count_cores", lambda: 2)
    with pl.pipeline(add_one, Counter(), example=1) as pipe:
        planned = pipe.plan()
        assert planned.device_names == ("cpu:0..1",)
        assert "Counter is called for one item after the other" in planned.report()
        assert pipe.map(range(50)) == list(range(1, 51))
        assert pipe.plan("cpu").replicas == ()


def test_a_callable_with_state_need_not_be_ordered() -> None:
    with pl.pipeline(pl.step(Counter(), ordered=False), example=1) as pipe:
        assert "one item after the other" not in pipe.plan().report()


@pytest.mark.parametrize("example", [1, 2, 3])
def test_rows_keep_tuples_of_any_length(example: int) -> None:
    def count_up(n: int) -> tuple[int, ...]:
        return tuple(range(n))

    rows = pl.each(lambda n: (n,), count_up)  # a tuple of one is one argument
    with pl.pipeline(lambda n: list(range(n)), rows, example=example) as pipe:
        assert pipe.map([0, 1, 4]) == [[], [()], [(), (0,), (0, 1), (0, 1, 2)]]


ROWS: dict[str, tuple[Callable[[int], Any], Callable[[int], list[Any]]]] = {
    "set": (lambda n: set(range(n)), lambda n: [*range(n)]),
    "generator": (lambda n: (n - k for k in range(n)), lambda n: [*range(n, 0, -1)]),
    "dict": (lambda n: dict.fromkeys("abcdef"[:n]), lambda n: [*"abcdef"[:n]]),
    "map": (lambda n: map(str, range(n)), lambda n: [str(k) for k in range(n)]),
}
"""Functions that return rows without numbers as indices, and these rows in a list."""


@pytest.mark.parametrize("kind", ROWS)
def test_each_takes_anything_that_can_be_iterated(kind: str) -> None:
    make, rows = ROWS[kind]
    with pl.pipeline(make, pl.each(lambda row: row * 2), example=3) as pipe:
        assert pipe.map([0, 2, 5]) == [[row * 2 for row in rows(n)] for n in (0, 2, 5)]


async def pack(value: int) -> tuple[int]:
    return (value,)


@pytest.mark.parametrize("wrap", [lambda value: (value,), pack], ids=["function", "async"])
def test_a_tuple_of_one_is_one_argument_of_the_next_step(wrap: Callable[..., Any]) -> None:
    with pl.pipeline(wrap, lambda value: value + 1, wrap, example=1) as pipe:
        assert pipe.map([1, 5]) == [(2,), (6,)]
