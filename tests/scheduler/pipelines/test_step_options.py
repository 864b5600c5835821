"""Options and inputs of steps: constants for models, and errors with fixes that work."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline_functions import double, wait_for

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")


def make_sum(*specs: tuple[str, tuple[int | str, ...]]) -> pl.Graph:
    """Make a model of inputs ``x0``, ``x1``, with the sum of all their elements."""
    b = pl.GraphBuilder("total")
    inputs = [b.input(f"x{n}", dtype, shape) for n, (dtype, shape) in enumerate(specs)]
    sums = [b.op("Cast", x, to="float64").reshape(-1).sum() for x in inputs]
    b.output("y", functools.reduce(lambda left, right: left + right, sums))
    return b.build()


def make_gain(shape: Sequence[int | str] = (), dtype: str = "float32") -> pl.Graph:
    b = pl.GraphBuilder("amplifier")
    gain = b.op("Cast", b.input("gain", dtype, shape), to="float32")
    b.output("y", b.input("x", "float32", (1, 3)) * gain)
    return b.build()


ROW = np.array([[1, 2, 3]], "float32")


@settings(max_examples=40)
@given(
    to=st.sampled_from(DTYPES),
    of=st.sampled_from(("float", *DTYPES)),
    number=st.one_of(st.integers(-300, 70_000), st.floats(width=32), st.just(1e300)),
)
@example(to="float64", of="int64", number=2**53 + 1)
@example(to="int8", of="uint8", number=255)
@example(to="float16", of="int32", number=-(2**31))
def test_a_constant_is_taken_if_its_dtype_has_it(to: str, of: str, number: float) -> None:
    with np.errstate(all="ignore"):
        value = float(number) if of == "float" else np.asarray(number).astype(of)[()]
        cast = np.asarray(value).astype(to)
    exact, found = np.asarray(value).item(), cast.item()  # compared without rounding
    is_kept = found == exact or (np.isnan(found) and np.isnan(exact))
    rounds = of == "float" and to.startswith("float") and np.isfinite(cast)
    given = {"x": "item", "gain": value}
    if not (is_kept or rounds):
        with pytest.raises(pl.GraphError, match=rf"does not fit {to}\[\] without loss"):
            pl.step(make_gain(dtype=to), inputs=given)
        return
    with pl.pipeline(pl.step(make_gain(dtype=to), inputs=given), example=ROW) as pipe:
        assert pipe.graph.inputs == ("item",)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(pipe(ROW), ROW * cast.astype("float32"))


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (1, "n")])
@pytest.mark.parametrize("options", [{}, {"batch": 4}], ids=str)
def test_constants_have_the_shape_of_their_input(shape: tuple[Any, ...], options: Any) -> None:
    gain = np.full([3 if n == "n" else n for n in shape], 2, "float32")
    for inputs in ({"x": "item", "gain": gain}, {"gain": gain}):  # x follows by default
        step = pl.step(make_gain(shape), inputs=inputs, **options)
        with pl.pipeline(step, example=ROW) as pipe:
            assert [one.tolist() for one in pipe.map([ROW, 3 * ROW])] == [
                [[2, 4, 6]],
                [[6, 12, 18]],
            ]
    with pytest.raises(pl.GraphError, match="does not fit"):
        pl.step(make_gain(shape), inputs={"x": "item", "gain": np.ones((2, 2, 2), "float32")})


def test_models_of_rows_take_constants() -> None:
    model = pl.step(make_gain(), inputs={"gain": 2.0})
    with pl.pipeline(pl.each(model, name="rows"), example=[ROW[0]]) as pipe:
        assert pipe([ROW[0], 2 * ROW[0]]).tolist() == [[2, 4, 6], [4, 8, 12]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": "item", "gian": 2.0}, r"no input 'gian'.*did you mean 'gain'"),
        ({"x": ROW, "gain": 2.0}, "all inputs of the model are constants"),
        (
            {"x": "item", "gain": np.array(["loud"])},
            r"constant str128\[1\] does not fit float32\[\]",
        ),
        ({"x": "item", "gain": 2j}, r"constant complex128\[\] does not fit"),
        ({"x": "item", "gain": None}, r"inputs has None.*'gain': 2\.0"),
        ({"x": "item", "gain": [2.0]}, r"inputs has \[2\.0\]"),
        ({}, "inputs is {}"),
        ((), r"inputs is \(\).*'item', the name of a step"),
        (2.0, r"inputs is 2\.0"),
        (True, "inputs is True"),
        (b"x", "inputs is b'x'"),
        ([["item"]], r"inputs has \['item'\]"),
        (-1, r"inputs has -1.*step before, from 0"),
    ],
)
def test_inputs_that_are_no_references_are_told(inputs: Any, message: str) -> None:
    with pytest.raises(pl.GraphError, match=rf"(?s){message}") as caught:
        pl.step(make_gain(), inputs=inputs, name="m")
    assert "step 'm'" in str(caught.value)
    if not isinstance(inputs, dict):
        with pytest.raises(pl.GraphError, match=rf"(?s){message}"):
            pl.each(double, inputs=inputs)


def test_a_whole_number_that_is_no_result_may_be_meant_as_a_constant() -> None:
    with pytest.raises(pl.GraphError, match=r"no result '2'(?s:.*)constant is np\.array\(2\)"):
        pl.pipeline(pl.step(make_gain(), inputs={"x": "item", "gain": 2}), example=ROW)


WRONG: dict[str, Sequence[Any]] = {
    "name": (3, "", "item"),
    "device": (0, ["ort"], ""),
    "workers": ("2", 1.5, -1, True),
    "pad": (3, ""),
    "most": (0, "8", 1.5),
    "cache": (3, ""),
    "max_bytes": (3,),
    "max_delay_s": (1,),
    "batch": (0, "8", 1.5, True),
    "nmae": ("x",),
}
"""Values that options of a step or an `each` may not have, or not without other options."""


@pytest.mark.parametrize("option", WRONG)
def test_wrong_options_are_told_where_they_are_written(option: str) -> None:
    makers: list[Callable[..., Any]] = [] if option == "most" else [pl.step]
    if option in ("name", "pad", "most", "nmae", "max_delay_s", "batch"):
        makers.append(pl.each)
    for make in makers:
        for value in WRONG[option]:
            with pytest.raises(pl.GraphError, match=option) as caught:
                make(double, **{option: value})
            assert caught.value.fix


def test_misspelled_options_get_the_nearest() -> None:
    for make in (pl.step, pl.each, functools.partial(pl.pipeline, example=1)):
        with pytest.raises(pl.GraphError, match=r"\(\) takes no nam=(?s:.*)use name="):
            make(double, nam="x")  # type: ignore[arg-type]


def test_options_of_runs_are_told() -> None:
    pipe = pl.pipeline(double, example=1)
    for items in (3, "abc", b"abc", {"x": 1}):
        kind = type(items).__name__
        with pytest.raises(pl.SessionError, match=rf"items are {kind}\n.*pipe\.run\(item\)"):
            pipe.map(items)  # type: ignore[arg-type]
    with pytest.raises(pl.SessionError, match=r"pl\.AsyncioSession\(pipe\.plan\(\)\)"):
        pipe.map(yield_under_asyncio(1))
    with pytest.raises(pl.SessionError, match=r"it has no async with\n.*pl\.AsyncioSession"):
        asyncio.run(pipe.__aenter__())
    with pl.pipeline(trio.sleep, example=0) as sleeping, pytest.raises(pl.DeadlineError):
        sleeping.run(60, deadline_s=0.01)
    with pytest.raises(pl.SessionError, match=r"takes no timeout=\n.*use deadline_s="):
        pipe.run(1, timeout=1)  # type: ignore[arg-type]
    with pytest.raises(pl.SessionError, match=r"results of its last step(?s:.*)fetches="):
        pipe.map([1], fetches=["item"])
    with pytest.raises(pl.SessionError, match="the outputs lack 'result'"):
        pipe.result({"item": 1})
    with pytest.raises(pl.PlanError, match=r"change device= or workers= of step 'double': '\w+"):
        pl.pipeline(pl.step(double, device="ort"), example=1).plan()
    with pytest.raises(pl.PlanError, match="3 is not a device"):
        pipe.plan(3)  # type: ignore[arg-type]


def test_a_function_called_item_gets_a_number() -> None:
    def item(value: int) -> int:
        return value + 1

    pipe = pl.pipeline(item, pl.step(lambda a, b: a - b, inputs=["item_2", "item"]), example=1)
    with pipe:
        assert pipe(5) == 1


SPECS = st.tuples(
    st.sampled_from(["float32", "int64"]), st.sampled_from([(), (2,), (1, "n"), ("n",)])
)


@settings(max_examples=60)
@given(data=st.data(), wanted=st.lists(SPECS, min_size=1, max_size=3))
def test_the_fix_for_missing_inputs_works(
    data: st.DataObject, wanted: list[tuple[str, tuple[int | str, ...]]]
) -> None:
    """Where values of other steps fit, the fix names them; where none do, it names no step."""
    made = data.draw(
        st.lists(SPECS, min_size=1, max_size=4).filter(lambda m: len(m) != len(wanted))
    )
    cut = data.draw(st.integers(0, len(made)))
    shapes = [[2 if n == "n" else int(n) for n in shape] for _, shape in made]
    arrays = [np.ones(shape, dtype) for shape, (dtype, _) in zip(shapes, made, strict=True)]

    def first(value: str) -> Any:
        return tuple(arrays[:cut]) or "no array"

    def second(*values: Any) -> Any:
        return tuple(arrays[cut:]) or b"no array"

    with pytest.raises(pl.GraphError) as caught:
        pl.pipeline(first, second, make_sum(*wanted), example="seven")
        raise pl.GraphError("by chance as many values as inputs", fix="")
    fix = caught.value.fix or ""
    found = re.search(r"by its step: step\(\.\.\., inputs=(.*)\)$", fix)
    if found is None:
        assert "by its step" not in fix
        return
    inputs = ast.literal_eval(found[1])
    assert len(set(inputs.values())) == len(wanted)
    with pl.pipeline(
        first, second, pl.step(make_sum(*wanted), inputs=inputs), example="seven"
    ) as pipe:
        assert pipe("seven") == sum(2 if shape else 1 for _, shape in wanted)


def test_a_dict_for_several_inputs_is_told_to_be_one_value() -> None:
    model = make_sum(("float32", ()), ("float32", ()))
    with pytest.raises(pl.GraphError, match="one array for each input: a dict is one value"):
        pl.pipeline(lambda _: {"x0": np.float32(1), "x1": np.float32(2)}, model, example=b"")
    with pytest.raises(pl.GraphError, match="give a mapping with x0, x1 as the example"):
        pl.pipeline(model, example=b"")
    with pytest.raises(pl.GraphError) as caught:
        pl.pipeline(lambda _: np.float32(1), model, example=b"")
    assert "give constants: step(..., inputs={'x1': np.array(...)})" in str(caught.value)
    step = pl.step(model, inputs={"x1": np.array(2, "float32")})
    with pl.pipeline(lambda _: np.float32(1), step, example=b"") as pipe:
        assert pipe(b"") == 3


def test_a_bound_in_an_error_is_raised_as_it_says(tmp_path: Path) -> None:
    def fill(count: int) -> Any:
        return np.ones(count, "float32")

    pipe = pl.pipeline(fill, make_sum(("float32", ("n",))), examples=[2, 5])
    with pipe:
        for fail in (lambda: pipe(40), lambda: pipe.map([1, 40])):
            with pytest.raises(pl.KernelError, match=r"pipe\.bounds\['\w+'\] = 40 after") as caught:
                fail()
        (error,) = pipe.map([40], return_exceptions=True)
        assert error.fix == caught.value.fix
    name, length = re.findall(r"bounds\['(\w+)'\] = (\d+) after pipe.close", str(error))[0]
    pipe.bounds[name] = int(length)
    with pipe:
        assert pipe(40) == 40


async def sleep_under_asyncio(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


async def yield_under_asyncio(value: int) -> Any:
    await asyncio.get_running_loop().run_in_executor(None, int)
    yield value


async def limit_under_asyncio(value: int) -> Any:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(abs, value)


@pytest.mark.parametrize(
    "step", [sleep_under_asyncio, yield_under_asyncio, limit_under_asyncio, wait_for]
)
@pytest.mark.parametrize("has_loop", [False, True])
def test_steps_may_need_the_loop_of_asyncio(step: Callable[..., Any], has_loop: bool) -> None:
    async def make() -> pl.Pipeline:
        return pl.pipeline(step, example=1)

    async def run(pipe: pl.Pipeline) -> Any:
        async with pl.AsyncioSession(pipe.plan()) as session:
            return pipe.result(await session.run(pipe.feeds(5)))

    pipe = asyncio.run(make()) if has_loop else pl.pipeline(step, example=1)
    assert asyncio.run(run(pipe)) in (5, 6, [5])
    if step is not wait_for:
        with pipe, pytest.raises(pl.KernelError, match=r"(?s)fix: .*AsyncioSession"):
            pipe(5)


def test_errors_of_async_steps_are_theirs() -> None:
    calls: list[int] = []

    async def fail(value: int) -> None:
        calls.append(value)
        raise RuntimeError("no such voice")

    with pytest.raises(pl.GraphError, match="no such voice"):
        pl.pipeline(fail, example=1)
    assert calls == [1]


def test_batches_need_their_rows_along_the_first_axis_of_each_output() -> None:
    b = pl.GraphBuilder("recurrent")
    b.output("scores", b.input("x", "float32", ("batch", 3)).transpose(1, 0))
    step = pl.step(b.build(), batch=4)
    wrong = (
        r"'scores' is float32\[3, rows\], and rows are along the first (?s:.*) that transposes it"
    )
    with pytest.raises(pl.GraphError, match=wrong):
        pl.pipeline(lambda n: np.full((1, 3), n, "float32"), step, example=1)


def test_a_callable_whose_results_no_step_gets_is_called_in_order_or_refused() -> None:
    kept: list[int] = []
    last = pl.step(str, inputs="double")
    for unread in (kept.append, pl.each(kept.append, inputs="rows"), pl.step(wait_for)):
        with pytest.raises(pl.GraphError, match=r"no step gets its results(?s:.*)ordered=True"):
            pl.pipeline(double, pl.step(lambda n: [n, n], name="rows"), unread, last, example=1)
    with pl.pipeline(double, pl.step(kept.append, ordered=True), last, example=1) as pipe:
        kept.clear()
        assert pipe.map([1, 2]) == ["2", "4"]
        assert kept == [2, 4]
