"""Errors of items name the item, the step and the types of values, never the values."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_functions import refuse_negative


def make_net(lengths: tuple[int | str, ...] = (1, 3)) -> pl.Graph:
    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", lengths) * 2.0)
    return b.build()


def to_row(value: int) -> Any:
    return np.full((1, 3), value, "float32")


async def wait_and_refuse(value: Any) -> Any:
    return refuse_negative(value)


def yield_until_negative(value: Any) -> Any:
    yield refuse_negative(value)


STEPS: dict[str, tuple[list[Any], str]] = {
    "function": ([refuse_negative], "step 'refuse_negative' called with int"),
    "async": ([wait_and_refuse], "step 'wait_and_refuse' called with int"),
    "generator": ([yield_until_negative], "step 'yield_until_negative' called with int"),
    "after a model": (
        [to_row, make_net(), refuse_negative],
        "step 'refuse_negative' called with float32[1, 3]",
    ),
    "worker": (
        [pl.step(refuse_negative, workers=1)],
        "step 'refuse_negative' called with int",
    ),
}
"""Steps of all kinds, and where they fail."""


@pytest.mark.parametrize("kind", STEPS)
def test_an_error_names_its_item_and_step(kind: str) -> None:
    @settings(max_examples=15)
    @given(values=st.lists(st.integers(-1, 3), max_size=20))
    def check(values: list[int]) -> None:
        found = list(pipe.stream(values, return_exceptions=True))
        assert len(found) == len(values)
        for number, (value, result) in enumerate(zip(values, found, strict=True)):
            assert isinstance(result, pl.KernelError) == (value < 0)
            if value < 0:
                assert f"ValueError: negative\n  at:  item {number}, {place}, node " in str(result)

    steps, place = STEPS[kind]
    with pl.pipeline(*steps, example=1) as pipe:
        check()


ARRAYS_OF_OTHER_DTYPES = {
    "str[1]": np.array(["text"]),
    "bytes32[1]": np.array([b"text"]),
    "datetime64[D][1]": np.array(["2020-02-29"], "datetime64[D]"),
    "void96[2]": np.zeros(2, [("x", "float32"), ("y", "float64")]),
    "object[1]": np.array([{}], object),
}
"""Values of functions that no tensor can have, by their descriptions."""


@pytest.mark.parametrize("described", ARRAYS_OF_OTHER_DTYPES)
def test_an_error_names_arrays_that_no_tensor_can_have(described: str) -> None:
    def refuse(value: Any) -> Any:
        if value is not None:
            raise ValueError("wrong")
        return value

    array = ARRAYS_OF_OTHER_DTYPES[described]
    with pytest.raises(pl.GraphError, match="ValueError: wrong") as in_example:
        pl.pipeline(refuse, example=array)
    with pl.pipeline(refuse, example=None) as pipe:
        with pytest.raises(pl.KernelError, match="ValueError: wrong") as in_item:
            pipe.run(array)
    for caught in in_example, in_item:
        assert f"step 'refuse' called with {described}" in str(caught.value)


def list_frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_an_error_shows_the_call_of_the_pipeline_and_the_frames_of_the_function() -> None:
    with pl.pipeline(
        to_row, make_net(), lambda row: refuse_negative(int(row.min())), example=1
    ) as pipe:
        for call in (lambda: pipe.run(-1), lambda: pipe.map([1, -1])):
            with pytest.raises(pl.KernelError) as caught:
                call()
            assert caught.value.__cause__ is not None
            assert list_frames(caught.value)[2:] in (["run"], ["map", "stream"])
            assert list_frames(caught.value.__cause__)[-1] == "refuse_negative"
        failed = pipe.map([-1], return_exceptions=True)[0]
        assert failed.__traceback__ is None
        assert failed.__cause__ is not None


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"ordered": False}], ids=str)
def test_streams_of_sessions_number_their_items(options: dict[str, Any]) -> None:
    feeds = [{"x": np.zeros((1, 2 if n % 3 == 1 else 3), "float32")} for n in range(50)]
    with pl.BlockingSession(pl.plan(make_net(("n", 3)), max_in_flight=8)) as session:
        for item in session.stream(feeds, **options):
            assert isinstance(item.error, pl.PlaitError) == (item.index % 3 == 1)
            if item.error is not None:
                assert f"  at:  item {item.index}" in str(item.error).splitlines()[1]


@pytest.mark.parametrize("batch", [None, 4])
def test_an_error_of_a_row_names_the_row_and_its_own_step(batch: int | None) -> None:
    def halve(row: Any) -> Any:
        return row / 2

    each = pl.each(to_row, refuse_negative, make_net(), halve, batch=batch, name="rows")
    with pl.pipeline(each, example=[1]) as pipe:
        pipe.map([[1, 2]])
        with pytest.raises(pl.KernelError) as caught:
            pipe.map([[1], [1, 2, -1]])
    place = "item 1, row 2, step 'refuse_negative' called with float32[1, 3], node 'rows/"
    assert place in str(caught.value)


def clip_large(y: Any) -> Any:
    if y.max() > 5:
        y[y > 5] = 5
    return y


@pytest.mark.parametrize("is_each", [False, True])
def test_who_changes_results_of_a_model_is_told_to_copy_them(is_each: bool) -> None:
    steps: list[Any] = [to_row, make_net(), clip_large]
    if is_each:
        steps = [lambda value: [value], pl.each(*steps, batch=4)]
    with pytest.raises(pl.GraphError, match="fails on an example: ValueError") as caught:
        pl.pipeline(*steps, example=3)
    assert "y = y.copy()" in str(caught.value.fix)
    with pl.pipeline(*steps, example=1) as pipe, pytest.raises(pl.KernelError) as failed:
        pipe.run(3)
    assert failed.value.fix == caught.value.fix


@settings(max_examples=60)
@given(
    rank=st.integers(3, 4),
    is_first=st.booleans(),
    is_image=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "uint8"]),
)
def test_a_fix_for_an_example_makes_what_the_model_takes(
    rank: int, is_first: bool, is_image: bool, dtype: str
) -> None:
    shape = (3, 8, "w") if is_first else (8, "w", 3)
    model = make_net((1, *shape))
    own = (3, 8, 5) if is_first != is_image else (8, 5, 3)
    value = np.ones(own if rank == 3 else (1, *own), dtype)
    if rank == 4 and not is_image and dtype == "float32":
        return  # it fits
    with pytest.raises(pl.GraphError, match="does not take the example") as caught:
        pl.pipeline(lambda item: value, model, example=1)
    fix = str(caught.value.fix).removeprefix("convert it: ")
    converted = eval(fix, {"np": np, "value": value})
    with pl.pipeline(lambda item: converted, model, example=1) as pipe:
        assert pipe.graph.outputs == ("result",)
    if rank == 3 and (is_image or dtype != "float32"):  # rows need no first axis
        with pytest.raises(pl.GraphError, match="does not take the example") as caught:
            pl.pipeline(pl.each(lambda item: value, model), example=[1])
        row = eval(str(caught.value.fix).removeprefix("convert it: "), {"np": np, "value": value})
        with pl.pipeline(pl.each(lambda item: row, model), example=[1]) as pipe:
            assert row.ndim == 3


@settings(max_examples=20)
@given(stride=st.sampled_from([2, 8, 32, 128]), size=st.integers(1, 500), batch=st.integers(1, 5))
def test_an_example_of_a_bad_size_is_told_what_size_would_do(
    stride: int, size: int, batch: int
) -> None:
    b = pl.GraphBuilder("net")
    image = b.input("image", "float32", ("batch", "size", 3))
    b.output("y", b.op("Reshape", image, np.array([0, stride, -1, 3]), name="tiles"))
    if size % stride == 0:
        return
    with pytest.raises(pl.GraphError, match="step 'net', node 'tiles'") as caught:
        pl.pipeline(lambda n: np.zeros((batch, n, 3), "float32"), b.build(), example=size)
    padded = [batch, -(-size // stride) * stride, 3]
    assert caught.value.fix is not None
    assert caught.value.fix.endswith(f"image from {[batch, size, 3]} to {padded}")


class Unreadable:
    """An array of a library that refuses to give it away."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("detach it first")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must be float32[1, 3], got None"),
        ("abc", "must be float32[1, 3], got str"),
        ([[1, 2], [3]], "must be float32[1, 3], got list: "),
        ([[1.0, 2.0, 3.0]], "got list, as an array float64[1, 3]"),
        (np.ones((4, 4), "float32"), "resize or reshape it to [1, 3], dtype float32"),
        (Unreadable(), "Unreadable: detach it first"),
    ],
    ids=["None", "text", "uneven", "list", "shape", "library"],
)
def test_an_example_that_a_model_does_not_take_is_named(value: Any, message: str) -> None:
    with pytest.raises(pl.GraphError) as caught:
        pl.pipeline(lambda item: value, make_net(), example=1)
    assert message in str(caught.value)
    assert "at:  step 'net'" in str(caught.value)


def test_a_model_of_two_inputs_is_given_values_by_name() -> None:
    b = pl.GraphBuilder("sum")
    b.output("y", b.input("a", "float32", (1, 3)) + b.input("b", "float32", (1, 3)))
    with pytest.raises(pl.GraphError, match=r"inputs=\{'a': 'to_row', 'b': 'item'\}"):
        pl.pipeline(to_row, b.build(), example=to_row(1))


def test_rows_of_several_shapes_are_told_with_a_way_out() -> None:
    wide = pl.each(lambda n: np.ones((1, n), "float32"), make_net((1, "w")))
    with pytest.raises(pl.GraphError, match=r"differ in shape(?s:.*)pad='width'"):
        pl.pipeline(wide, example=[2, 3])
    with pytest.raises(pl.ShapeError, match=r"one row gives(?s:.*)call a BlockingSession"):
        pl.pipeline(pl.each(*wide.steps, np.sum), example=[2, 3])
    with pl.pipeline(wide, example=[2]) as pipe:
        with pytest.raises(pl.KernelError, match=r"(?s)item 0, .*pad='width'"):
            pipe.map([[2, 3]])


def test_rows_without_an_axis_are_refused_where_results_have_none_to_drop() -> None:
    b = pl.GraphBuilder("steps first")
    b.output("y", b.input("x", "float32", (1, 4, "steps")).transpose(2, 0, 1))
    each = pl.each(lambda n: np.full((4, 5), n, "float32"), b.build())
    with pytest.raises(pl.GraphError, match=r"row is float32\[4, 5\](?s:.*)if the outputs have it"):
        pl.pipeline(each, example=[1, 2])


def test_values_are_not_told() -> None:
    with pl.pipeline(lambda text: text.index("a"), example="a") as pipe:
        with pytest.raises(pl.KernelError, match="called with str") as caught:
            pipe.map(["secret"])
    assert "secret" not in str(caught.value)


def test_a_copied_or_sent_error_keeps_what_it_should() -> None:
    error = pl.KernelError("it failed", at="node 'y'")
    error.item = 3
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == "it failed\n  at:  item 3, node 'y'"
    assert error.again().item is None  # a copy is for another item
    plain = pl.KernelError("it failed")
    plain.item = 0
    assert str(plain) == "it failed\n  at:  item 0"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n: None if n > 1 else to_row(n), "row 1 is None\n"),
        (lambda n: float(n) if n > 1 else to_row(n), "row 1 is float\n"),
        (lambda n: to_row(n).repeat(n, 0), r"row 1 is float32\[2, \d+\]\n"),
    ],
)
def test_a_row_that_is_no_array_is_named(function: Callable[[int], Any], message: str) -> None:
    with pl.pipeline(pl.each(function, make_net()), example=[1]) as pipe:
        with pytest.raises(pl.KernelError, match=message):
            pipe.map([[1, 2]])
        with pytest.raises(pl.KernelError, match="the value is int, which has no rows"):
            pipe.map([3])


def pass_all(values: list[Any]) -> list[Any]:
    return values


class Last:
    """Returns its argument: a class, so that items have states."""

    def __call__(self, value: Any) -> Any:
        return value


ARRAY = np.zeros(2, np.float32)
PARTS: dict[str, list[Any]] = {
    "function": [pl.step(abs, inputs="item.a")],
    "function of lists": [pl.step(pass_all, inputs="item.a", batch=4)],
    "class": [pl.step(Last, inputs="item.a")],
    "model": [pl.step(to_row, inputs="item.a"), make_net(), lambda y: int(y[0, 0]) // 2],
}
"""Steps that get a part of an item, and return it."""


@pytest.mark.parametrize("kind", PARTS)
def test_items_without_the_parts_that_steps_name_fail_alone(kind: str) -> None:
    @settings(max_examples=15)
    @given(
        st.lists(
            st.sampled_from([{"a": 1}, {"a": 2, "c": 3}, {"b": 1}, {}, None, 5, [("a", 1)], ARRAY]),
            max_size=20,
        )
    )
    def check(items: list[Any]) -> None:
        found = pipe.map(items, return_exceptions=True)
        assert len(found) == len(items)
        for number, (item, result) in enumerate(zip(items, found, strict=True)):
            if isinstance(item, dict) and "a" in item:
                assert result == item["a"]
                continue
            lacking = isinstance(item, dict | np.ndarray)
            text = "no value for input 'a'" if lacking else f"an item is a {type(item).__name__}"
            assert isinstance(result, pl.FeedError)
            assert f"at:  item {number}" in str(result)
            assert str(result).startswith(text)
            with pytest.raises(pl.PlaitError):
                pipe.map(items[: number + 1])
            with pytest.raises(pl.PlaitError):
                pipe.run(item)

    with pl.pipeline(*PARTS[kind], example={"a": 1}) as pipe:
        check()


def test_a_misspelt_option_of_a_stream_is_named_with_the_right_one() -> None:
    with pl.pipeline(abs, example=1) as pipe:
        with pytest.raises(pl.SessionError, match=r"return_exeptions=\n.*use return_exceptions="):
            pipe.map([1], return_exeptions=True)
        with pytest.raises(pl.SessionError, match=r"(?s)progress is 3\n.*progress=print"):
            pipe.map([1], progress=3)


@pytest.mark.parametrize("examples", [3, "text", b"text", {"a": 1}])
def test_examples_are_several(examples: Any) -> None:
    with pytest.raises(pl.GraphError, match=r"the examples are \w+\n.*example=item"):
        pl.pipeline(abs, examples=examples)
    assert pl.pipeline(abs, examples=range(2)).map([-3]) == [3]


def test_a_pipeline_in_place_of_a_graph_is_refused_with_the_way() -> None:
    pipe = pl.pipeline(abs, example=1)
    with pytest.raises(pl.PlanError, match=r"by pipe\.plan\(\)"):
        pl.plan(pipe)  # type: ignore[arg-type]
    with pytest.raises(pl.GraphError, match="or a pipeline's graph"):
        pl.save(pipe, "pipe.plait")  # type: ignore[arg-type]


def test_no_rows_are_an_array_of_the_shape_that_the_examples_show() -> None:
    b = pl.GraphBuilder("sums")
    b.output("y", b.input("x", "float32", ("n", 4)).sum(axis=1))

    def list_rows(count: int) -> list[Any]:
        return [np.full(4, n, "float32") for n in range(count)]

    def yield_rows(count: int) -> Iterator[Any]:
        yield from list_rows(count)

    for function in (list_rows, yield_rows):
        with pl.pipeline(function, b.build(), np.ndarray.tolist, examples=[2, 5]) as pipe:
            assert pipe.map([0, 3, 0]) == [[], [0, 4, 8], []]


def test_an_empty_list_where_two_lengths_are_open_is_refused() -> None:
    b = pl.GraphBuilder("sums")
    b.output("y", b.input("x", "float32", ("n", "m")).sum())

    def list_rows(shape: tuple[int, int]) -> Any:
        return np.ones(shape, "float32") if shape[1] else []

    with pl.pipeline(list_rows, b.build(), examples=[(2, 3), (4, 5)]) as pipe:
        with pytest.raises(pl.KernelError, match=r"is float64\[0\], declared was float32"):
            pipe.run((0, 0))
