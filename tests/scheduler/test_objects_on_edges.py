"""Python objects between functions: by reference in one process, by pickles to workers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_functions import (
    OBJECT,
    Box,
    gather,
    join,
    listed,
    measure,
    pair,
    return_lambda,
    return_unmade,
    split,
    split_one_by_one,
    wrap,
)
from plait.devices.memory import Arena
from plait.graph.formats.native import dump_bytes, load_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
STEPS = {"wrap": wrap, "pair": pair, "listed": listed}
PLACES = ("cpu", "worker:0", "worker:1")


def make_chain(names: Sequence[str]) -> pl.Graph:
    b = pl.GraphBuilder("chain")
    value = b.input("x", "object", ())
    for number, name in enumerate(names):
        value = b.call(STEPS[name], value, name=f"step{number}")
    value, length = b.call(measure, b.call(join, value, "x", name="join"), name="measure")
    b.output("y", value)
    b.output("length", length)
    return b.build()


@settings(max_examples=6)  # each example starts processes
@given(
    names=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4),
    places=st.permutations(PLACES * 2),
    values=st.lists(VALUES, min_size=4, max_size=8),
)
def test_chains_compute_what_python_does_wherever_they_run(
    names: list[str], places: list[str], values: list[Any]
) -> None:
    graph = make_chain(names)
    pins = dict(zip((node.name for node in graph.nodes), places, strict=False))
    plan = pl.plan(graph, PLACES, pin=pins, max_in_flight=2)
    with pl.BlockingSession(plan) as session, session.stream({"x": one} for one in values) as items:
        found = [(item["y"], item["length"]) for item in items]
    for value, (y, length) in zip(values, found, strict=True):
        expected = value
        for name in names:
            expected = STEPS[name](expected)
        assert y == (expected, value)
        assert length == len(repr(y))


def test_objects_go_by_reference_in_one_process() -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise AssertionError("is pickled")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("is compared")

        __hash__ = None  # type: ignore[assignment]

    value = Unpicklable()
    with pl.BlockingSession(pl.plan(make_chain(["wrap"]))) as session:
        wrapped, same = session.run({"x": value})["y"]
        assert same is value
        assert wrapped["value"] is value
        with session.stream({"x": one} for one in [value] * 5) as items:
            assert all(item["y"][1] is value for item in items)
        assert session.submit({"x": value}).result()["y"][1] is value


def test_an_array_that_is_fed_as_an_object_is_not_copied() -> None:
    array = np.arange(3)
    with pl.BlockingSession(pl.plan(make_chain([]), max_in_flight=3)) as session:
        with session.stream({"x": array} for _ in range(9)) as items:
            assert all(item["y"][0] is array for item in items)


def make_rows(function: Any) -> pl.Graph:
    b = pl.GraphBuilder("rows")
    found = b.call(function, b.input("count", "object", ()), name="split")
    b.output("rows", found)
    b.output("gathered", b.call(gather, found, name="gather"))
    return b.build()


@pytest.mark.parametrize("place", ["cpu", "worker:0"])
def test_rows_of_objects_are_lists(place: str) -> None:
    plan = pl.plan(make_rows(split), ["cpu", "worker:0"], pin={"split": place}, bounds={"rows": 5})
    with pl.BlockingSession(plan) as session:
        for count in (3, 0, 5, 1):
            item = session.run({"count": count})
            assert [box.corner for box in item["rows"]] == [(n, n + 1) for n in range(count)]
            for box, other in zip(item["rows"], item["gathered"], strict=True):
                assert isinstance(box, Box)
                np.testing.assert_array_equal(box.pixels, other.pixels)
        with pytest.raises(pl.KernelError, match="'rows' is 6"):
            session.run({"count": 6})


def test_generators_yield_objects_tuples_among_them() -> None:
    plan = pl.plan(make_rows(split_one_by_one), bounds={"rows": 4})
    with pl.BlockingSession(plan) as session:
        for count in (0, 4, 2):
            expected = [(n, [n]) for n in range(count)]
            assert session.run({"count": count}) == {"rows": expected, "gathered": expected}


@pl.operator(pl.TensorSpec("float32", ("n",)), inputs=[OBJECT], name="objects.fill")
def fill(value: Any) -> Any:
    return np.full(len(value), len(value), np.float32)


def test_objects_and_tensors_meet_in_one_graph() -> None:
    b = pl.GraphBuilder("mixed")
    value = b.input("x", "object", ())
    b.output("total", b.call(fill, value).sum(axis=0))
    b.output("x again", b.call(wrap, value))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"n": 8})) as session:
        for text in ("abc", "", "abcdefgh"):
            item = session.run({"x": text})
            assert item["total"] == len(text) ** 2
            assert item["x again"] == {"value": text}


def make_plan(function: Any, place: str) -> pl.Plan:
    b = pl.GraphBuilder("sent")
    sent = b.call(function, b.input("x", "object", ()), name="make")
    b.output("y", b.call(wrap, sent, name="wrap"))
    return pl.plan(b.build(), ["cpu", "worker:0"], pin={"make": "cpu", "wrap": place})


@pytest.mark.parametrize("function", [return_lambda, return_unmade])
def test_an_object_that_cannot_be_sent_fails_its_item_alone(function: Any) -> None:
    with pl.BlockingSession(make_plan(function, "worker:0")) as session:
        for _ in range(3):
            with pytest.raises(pl.KernelError) as caught:
                session.run({"x": 0})
            assert "make" in str(caught.value)
            assert caught.value.fix
    with pl.BlockingSession(make_plan(function, "cpu")) as session:
        session.run({"x": 0})


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_cancelled_item_takes_its_objects_along(size: int) -> None:
    """A file that was sent for it is not taken for that of the next one."""
    plan = pl.plan(make_chain(["pair"]), ["worker:0"], max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        futures = [session.submit({"x": bytes([n]) * size}) for n in range(8)]
        for future in futures[1::2]:
            future.cancel()
        for number, future in enumerate(futures):
            if not future.cancelled():
                assert future.result()["y"][1] == bytes([number]) * size
        assert session.run({"x": b"z" * size})["y"][1] == b"z" * size


def test_values_without_rows_are_refused_where_rows_are_wanted() -> None:
    b = pl.GraphBuilder("fed")
    b.output("y", b.call(gather, b.input("boxes", "object", ("rows",))))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"rows": 4})) as session:
        assert session.run({"boxes": [1, "a"]})["y"] == [1, "a"]
        with pytest.raises(pl.FeedError, match="fed was one int"):
            session.run({"boxes": 3})
        with pytest.raises(pl.FeedError, match=r"object\[rows\]|rows"):
            session.run({"boxes": [0] * 5})


def test_objects_and_text_are_different_types() -> None:
    text, thing = pl.TensorSpec("str", ()), pl.TensorSpec("object", ())
    assert text != thing
    assert str(thing) == "object[]"
    assert {text: 1, thing: 2}[pl.TensorSpec(object, ())] == 2
    assert pickle.loads(pickle.dumps(thing)) == thing
    b = pl.GraphBuilder("text")
    with pytest.raises(pl.ShapeError, match=r"must be object\[\], got str\[\]"):
        b.call(wrap, b.input("x", "str", ()))


@pytest.mark.parametrize("device", ["ort", "formal"])
def test_only_functions_of_this_process_and_of_workers_take_objects(device: str) -> None:
    with pytest.raises(pl.UnsupportedOpError, match=rf"Python objects do not go to '{device}'"):
        pl.plan(make_chain(["wrap"]), [device])


def test_graphs_with_objects_are_saved_by_plait_and_refused_by_onnx(tmp_path: Path) -> None:
    graph = make_chain(["wrap"])
    again = load_bytes(dump_bytes(graph), at="memory")
    assert again.tensors == graph.tensors
    assert run(again, {"x": 1}) == run(graph, {"x": 1})
    with pytest.raises(pl.GraphError, match="ONNX has no object"):
        pl.save(graph, tmp_path / "chain.onnx")


def run(graph: pl.Graph, feeds: Mapping[str, Any]) -> Any:
    with pl.BlockingSession(pl.plan(graph)) as session:
        return session.run(feeds)


@pl.operator(pl.TensorSpec("object", ("n",)), inputs=[pl.TensorSpec("float32", ("n", 4096))])
def name_rows(rows: Any) -> Any:
    return [f"row {row.sum()}" for row in rows]


@pytest.mark.parametrize("bounds", [{"n": 8}, None])
def test_objects_take_no_memory_for_the_bytes_of_others(
    monkeypatch: pytest.MonkeyPatch, bounds: Mapping[str, int] | None
) -> None:
    cells: list[int] = []
    close = Arena.close

    def count(arena: Arena) -> None:
        cells.append(0 if arena.texts is None else arena.texts.size)
        close(arena)

    monkeypatch.setattr(Arena, "close", count)
    b = pl.GraphBuilder("rows")
    image = b.op("Exp", b.input("x", "float32", ("n", 4096)))
    b.output("y", b.call(name_rows, image))
    with pl.BlockingSession(pl.plan(b.build(), "cpu", bounds=bounds)) as session:
        for length in (2, 3, 2):
            found = session.run({"x": np.zeros((length, 4096), np.float32)})["y"]
            assert list(found) == ["row 4096.0"] * length
    assert 2 <= sum(cells) <= 64, cells
