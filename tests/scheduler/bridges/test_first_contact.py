"""The first hour: sessions of models, arrays alone, arguments in another library's order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices import automatic
from plait.devices.automatic import find_automatic_devices

X = np.array([-1, 2, 3], np.float32)


def make_graph() -> pl.Graph:
    b = pl.GraphBuilder("relu")
    b.output("y", b.input("x", "float32", (3,)).relu())
    return b.build()


def make_sum() -> pl.Graph:
    b = pl.GraphBuilder("sum")
    b.output("y", b.input("a", "float32", (3,)) + b.input("b", "float32", (3,)))
    return b.build()


@pytest.mark.parametrize("kind", ["graph", "path", "pipeline", "plan"])
def test_a_session_plans_what_it_is_given(kind: str, tmp_path: Path) -> None:
    pl.save(make_graph(), tmp_path / "relu.onnx")
    makers: dict[str, Callable[[], Any]] = {
        "graph": make_graph,
        "path": lambda: tmp_path / "relu.onnx",
        "pipeline": lambda: pl.pipeline(make_graph(), example=X),
        "plan": lambda: pl.plan(make_graph()),
    }
    given = makers[kind]()
    with pl.BlockingSession(given) as session:
        (found,) = session.run(X).values()
        assert found.tolist() == [0, 2, 3]
        assert [str(spec) for spec in session.plan.inputs.values()] == ["float32[3]"]
        assert [str(spec) for spec in session.plan.outputs.values()] == ["float32[3]"]


async def test_the_array_alone_is_the_only_input() -> None:
    async with pl.Session(make_graph()) as session:
        assert (await session(X))["y"].tolist() == [0, 2, 3]
        assert (await session.run(X, "y")).tolist() == [0, 2, 3]


def test_the_array_alone_is_the_only_input_elsewhere() -> None:
    async def in_asyncio() -> Any:
        async with pl.AsyncioSession(make_graph()) as session:
            return (await session(X))["y"].tolist()

    assert asyncio.run(in_asyncio()) == [0, 2, 3]
    with pl.BlockingSession(make_graph()) as blocking:
        assert blocking(X)["y"].tolist() == [0, 2, 3]
        assert blocking.submit(X).result()["y"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"keep": 8}, {"deadline_s": WAIT_S}])
def test_items_of_streams_may_be_arrays_alone(options: dict[str, Any]) -> None:
    b = pl.GraphBuilder("rows")
    b.output("y", b.input("x", "float32", ("n", 3)).relu())
    plan = pl.plan(b.build())
    rows = [n * X[None] for n in range(4)]

    async def in_asyncio() -> Any:
        async with pl.AsyncioSession(plan) as session, session.stream(rows, **options) as stream:
            return [item["y"].tolist() async for item in stream]

    wanted = [[[0, 2 * n, 3 * n]] for n in range(4)]
    assert asyncio.run(in_asyncio()) == wanted
    with pl.BlockingSession(plan) as session:
        assert [item["y"].tolist() for item in session.stream(rows, **options)] == wanted
        assert [one["y"].tolist() for one in session.map(rows, **options)] == wanted


def test_an_array_alone_is_refused_where_there_are_several_inputs() -> None:
    with pl.BlockingSession(make_sum()) as session:
        with pytest.raises(pl.FeedError, match=r"has 2 inputs\n.*feed a mapping with a, b"):
            session.run(X)
        (item,) = session.stream([X])
        with pytest.raises(pl.FeedError, match="an item is a ndarray"):
            item["y"]


@pytest.mark.parametrize("outputs", [None, ["y"]])
def test_the_order_of_onnx_runtime_is_recognized(outputs: Any) -> None:
    with pl.BlockingSession(make_graph()) as session:
        with pytest.raises(pl.FeedError, match=r"feeds come second.*\n.*run\(feeds"):
            session.run(outputs, {"x": X})


def test_errors_do_not_print_arrays() -> None:
    with pl.BlockingSession(make_graph()) as session:
        with pytest.raises(pl.FetchError) as caught:
            session.run({"x": X}, np.zeros(10_000))  # type: ignore[call-overload]
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("fed", [[-1, 2, 3], (-1.0, 2.0, 3.0), [True, 2, 3.5]])
def test_python_numbers_become_what_the_input_is(fed: Any) -> None:
    with pl.BlockingSession(make_graph()) as session:
        assert session.run({"x": fed})["y"].tolist() == np.maximum(fed, 0).tolist()


@pytest.mark.parametrize("fed", [[-1, 2, 3], (-1.0, 2.0, 3.0)])
def test_python_numbers_become_what_the_input_is_on_another_thread(fed: Any) -> None:
    plan = pl.plan(make_graph(), ["worker:0"], max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        assert session.submit({"x": fed}).result()["y"].tolist() == np.maximum(fed, 0).tolist()
        for item in session.stream([{"x": fed}] * 3):
            assert item["y"].tolist() == np.maximum(fed, 0).tolist()


def test_a_list_may_be_changed_once_its_item_is_submitted() -> None:
    with pl.BlockingSession(pl.plan(make_graph(), ["worker:0"])) as session:
        fed = [1, 2, 3]
        pending = [session.submit({"x": fed}) for _ in range(3)]
        fed[0] = 9
        assert [one.result()["y"].tolist() for one in pending] == [[1, 2, 3]] * 3


@pytest.mark.parametrize(
    ("dtype", "fed"), [("int32", [0.5]), ("uint8", [256]), ("float32", ["a"]), ("float32", [1j])]
)
def test_numbers_that_do_not_fit_are_refused(dtype: str, fed: Any) -> None:
    b = pl.GraphBuilder("same")
    b.output("y", b.input("x", dtype, (1,)) + b.constant(np.zeros(1, dtype)))
    with pl.BlockingSession(pl.plan(b.build())) as session:
        with pytest.raises(pl.FeedError):
            session.run({"x": fed})
        with pytest.raises(pl.FeedError, match="got dtype"):
            session.run({"x": np.zeros(1, "complex64")})


def test_all_items_are_mapped_in_order_and_counted() -> None:
    counts: list[int] = []
    with pl.BlockingSession(make_graph()) as session:
        found = session.map(({"x": n * X} for n in range(4)), progress=counts.append)
    assert [one["y"][1] for one in found] == [0, 2, 4, 6]
    assert counts == [1, 2, 3, 4]


def test_a_trio_session_in_a_plain_with_block_names_the_blocking_one() -> None:
    with pytest.raises(pl.SessionError, match=r"async with.*\n.*BlockingSession"):
        with pl.Session(make_graph()):
            pass


@pytest.mark.parametrize("keyword", ["devices", "bounds", "max_in_flight"])
def test_a_session_says_which_function_takes_keywords_of_plans(keyword: str) -> None:
    given: dict[str, Any] = {keyword: 2}
    with pytest.raises(pl.SessionError, match=rf"takes no {keyword}=\n.*use {keyword}= of "):
        pl.BlockingSession(make_graph(), **given)


@pytest.mark.parametrize(
    ("keyword", "fix"),
    [
        ("timeout", "deadline_s="),
        ("batch_size", "batch="),
        ("num_workers", "worker:0..3"),
        ("max_in_flihgt", "max_in_flight="),
    ],
)
def test_keywords_of_other_libraries_get_the_word_of_plait(keyword: str, fix: str) -> None:
    given: dict[str, Any] = {keyword: 2}
    with pytest.raises(pl.PlanError, match=rf"plan\(\) takes no {keyword}=(.|\n)*{fix}"):
        pl.plan(make_graph(), **given)
    with pytest.raises(pl.SessionError, match=rf"Session\(\) takes no {keyword}="):
        pl.BlockingSession(make_graph(), **given)
    with pl.BlockingSession(make_graph()) as session:
        with pytest.raises(pl.SessionError, match=rf"run\(\) takes no {keyword}="):
            session.run({"x": X}, **given)
        with (
            pytest.raises(pl.SessionError, match=rf"stream\(\) takes no {keyword}=(.|\n)*{fix}"),
            session.stream([], **given),
        ):
            pass


def test_sessions_and_builders_print_in_a_line_with_their_inputs() -> None:
    with pl.BlockingSession(make_graph()) as session:
        assert repr(session) == "<BlockingSession 'relu' on cpu: x -> y>"
        assert (list(session.inputs), list(session.outputs)) == (["x"], ["y"])
    assert repr(pl.GraphBuilder("b")) == "<GraphBuilder 'b': inputs 0, outputs 0, nodes 0>"


def test_completions_list_what_belongs_to_a_module_and_to_a_tensor() -> None:
    assert set(dir(pl)) == set(pl.__all__)
    listed = dir(pl.GraphBuilder().input("x", "float32", (2,)))
    assert {"relu", "sum", "shape"} <= set(listed)
    assert not {"capitalize", "casefold", "zfill"} & set(listed)
    assert " at 0x" not in str(inspect.signature(pl.plan))


def test_tuning_takes_several_items_in_turn_and_prints_in_a_line() -> None:
    shown: list[int] = []

    spec = pl.TensorSpec("float32", ("n",))

    @pl.operator(spec, inputs=[spec])
    def look(x: Any) -> Any:
        shown.append(len(x))
        return x + 1

    b = pl.GraphBuilder("g")
    b.output("y", b.call(look, b.input("x", "float32", ("n",))))
    tuned = pl.tune(b.build(), ["cpu"], feeds=[{"x": np.ones(n, "f4")} for n in (2, 3)])
    assert {2, 3} == set(shown)
    assert repr(tuned).startswith("<Tuned: 'all on cpu")
    assert "<pre>" in tuned._repr_html_()
    with pytest.raises(pl.PlanError, match="neither an item nor a list"):
        pl.tune(b.build(), ["cpu"], feeds=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({"ort", "compiled"}, ("ort", "cpu")),
        ({"compiled"}, ("compiled", "cpu")),
        (set(), ("cpu",)),
        ({"cuda:0", "cuda:1", "ort"}, ("cuda:0", "cuda:1", "ort", "cpu")),
    ],
)
def test_auto_stands_for_the_devices_of_this_machine(
    there: set[str], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLAIT_DEVICES")
    monkeypatch.setattr(automatic, "list_workers", lambda kind: (f"{kind}:0", f"{kind}:1"))
    monkeypatch.setattr(automatic, "_is_usable", there.__contains__)
    automatic._find_usable_devices.cache_clear()
    assert find_automatic_devices() == expected
    automatic._find_usable_devices.cache_clear()


def test_the_environment_lists_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_DEVICES", "compiled,cpu")
    assert pl.plan(make_graph()).device_names == ("compiled", "cpu")
    assert pl.plan(make_graph(), "exact").device_names == ("cpu",)


def test_auto_is_the_default_and_is_planned_as_those_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PLAIT_DEVICES")
    here = find_automatic_devices()
    assert pl.plan(make_graph(), "auto").device_names == here
    assert pl.plan(make_graph()).device_names == here
    others = pl.plan(make_graph(), ["worker:0", "auto"]).device_names
    assert others == ("worker:0", *here)
    assert pl.plan(make_graph(), ["cpu", "auto"]).device_names[0] == "cpu"
    assert pl.run(make_graph(), {"x": X}, "auto")["y"].tolist() == [0, 2, 3]
