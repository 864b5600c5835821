"""Classes among the steps of a pipeline: instances for each stream and key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.ort import device as ort_device
from plait.scheduler.dispatch import core_shares
from plait.scheduler.pipelines import api
from plait.scheduler.plans import replicas
from plait.scheduler.simulation import lanes


class Total:
    """Adds up its arguments; fails for negative numbers, after counting them."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def __call__(self, value: Any) -> int:
        self.total += int(np.sum(value))
        if np.min(value) < 0:
            raise ValueError("negative")
        return self.total


def make_net() -> pl.Graph:
    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", (1, "n")) * 1.0)
    return b.build()


def count_up(value: int) -> Any:
    return np.full((1, value % 3 + 1), 1, "float32") if value >= 0 else np.full((1, 1), -1, "f4")


def list_rows(item: Any) -> list[Any]:
    whole = count_up(item["value"])
    return [whole[:, n : n + 1] for n in range(whole.shape[1])]


EXAMPLES = [{"value": 1, "key": 0}, {"value": 2, "key": 0}]

WAYS: dict[str, Callable[[], pl.Pipeline]] = {
    "first": lambda: pl.pipeline(pl.step(Total, inputs="item.value"), examples=EXAMPLES),
    "lengths that vary": lambda: pl.pipeline(
        lambda item: count_up(item["value"]), make_net(), Total, examples=EXAMPLES
    ),
    "after rows": lambda: pl.pipeline(
        list_rows, pl.each(make_net(), np.sum, batch=2), Total, examples=EXAMPLES
    ),
}
"""Pipelines with a class, which gets an item's value or an array made of it."""


@pytest.mark.parametrize("way", WAYS)
def test_each_key_of_a_stream_has_an_instance(way: str) -> None:
    @settings(max_examples=15)
    @given(
        stream=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 2)), max_size=12),
        has_keys=st.booleans(),
    )
    def check(stream: list[tuple[int, int]], has_keys: bool) -> None:
        totals = defaultdict[int, int](int)
        items = [{"value": value, "key": key} for value, key in stream]
        options: dict[str, Any] = {"key": "key"} if has_keys else {}
        found = list(pipe.stream(items, return_exceptions=True, **options))
        assert len(found) == len(stream)
        for (value, key), result in zip(stream, found, strict=True):
            added = value if way == "first" else int(count_up(value).sum())
            totals[key if has_keys else 0] += added
            if value < 0:
                assert isinstance(result, pl.KernelError)
            else:
                assert result == totals[key if has_keys else 0]

    with WAYS[way]() as pipe:
        check()


def test_runs_share_an_instance_until_the_pipeline_is_closed() -> None:
    with pl.pipeline(partial(Total, 10), example=1) as pipe:
        assert [pipe.run(1), pipe.run(1), pipe.map([1]), pipe.run(1)] == [11, 12, [11], 13]
    with pipe:
        assert pipe.run(1) == 11


def test_an_item_without_a_usable_key_fails_alone() -> None:
    with pl.pipeline(lambda item: item["value"], Total, example={"value": 1}) as pipe:
        items: list[Any] = [{"value": 1, "key": 0}, {"value": 1}, {"value": 1, "key": 0}]
        found = list(pipe.stream(items, key="key", return_exceptions=True))
    assert found[::2] == [1, 2]
    assert "has no 'key'" in str(found[1])


async def test_sessions_of_other_loops_keep_instances_where_they_are_told() -> None:
    pipe = pl.pipeline(Total, example=1)
    first, second = dict[str, Any](), dict[str, Any]()
    async with pl.Session(pipe.plan()) as session:
        feeds = [pipe.feeds(value, state) for value in (1, 2) for state in (first, second)]
        async with session.stream(feeds) as results:
            found = [pipe.result(item.outputs) async for item in results]
    assert found == [1, 1, 3, 3]


def test_models_with_variables_have_the_same_keys() -> None:
    b = pl.GraphBuilder("sums")
    total = b.variable("total", np.zeros(1, "float32"))
    b.output("y", total.assign(total + b.input("x", "float32", (1,))))
    steps = lambda value: np.array([value], "float32"), b.build(), Total
    with pl.pipeline(*steps, example=1) as pipe:
        assert pipe.map([1, 2, 4, 8], key=lambda value: value in (1, 4)) == [1, 2, 6, 12]


class AsyncTotal:
    """Would have to be awaited."""

    async def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pl.step(Total, workers=1), "leave workers= and"),
        (lambda: pl.step(Total, ordered=False), "leave workers= and"),
        (lambda: pl.step(AsyncTotal), "without await"),
        (
            lambda: pl.step(Total, cache="results.sqlite"),
            "a class or a step with ordered=True has no cache=",
        ),
        (lambda: pl.each(Total), "give an instance"),
    ],
)
def test_classes_that_cannot_keep_state_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        make()


def test_classes_that_convert_are_called() -> None:
    with pl.pipeline(str.split, list, set, len, example="a b a") as pipe:
        assert pipe.map(["a b a", "c"]) == [2, 1]


def test_a_class_that_takes_arguments_is_to_be_a_partial() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, value: int) -> str:
            return f"{self.name} {value}"

    with pytest.raises(pl.GraphError, match="missing 1 required positional argument") as caught:
        pl.pipeline(Named, example=1)
    assert "functools.partial(Named, ...)" in str(caught.value.fix)
    with pl.pipeline(partial(Named, "item"), example=1) as pipe:
        assert pipe.run(1) == "item 1"


def sum_keys(**options: Any) -> list[Any]:
    items = [{"value": 1, "key": key} for key in "abacaba"]
    with pl.pipeline(lambda item: item["value"], Total, example=items[0]) as pipe:
        return list(pipe.stream(items, key="key", return_exceptions=True, **options))


def test_a_stream_has_instances_for_as_many_keys_as_it_may() -> None:
    assert sum_keys() == sum_keys(max_keys=3) == [1, 1, 2, 1, 3, 2, 4]
    # b goes for c, which goes for b: a was used after both.
    assert sum_keys(max_keys=2, evict="drop") == [1, 1, 2, 1, 3, 1, 4]
    found = sum_keys(max_keys=2)
    assert found[:3] + found[4:] == [1, 1, 2, 3, 2, 4]
    assert "2 keys have a state, and 'c' is one more" in str(found[3])
    assert "evict='drop'" in str(found[3].fix)


def test_limits_of_keys_are_checked(tmp_path: Path) -> None:
    for options, message in (
        ({"max_keys": 0}, "max_keys is 0"),
        ({"max_keys": 2, "key": None}, "without key="),
        ({"evict": tmp_path}, "not written to files"),
    ):
        with (
            pl.pipeline(Total, example=1) as pipe,
            pytest.raises(pl.SessionError, match=message),
        ):
            pipe.map([1], **{"key": lambda item: item, **options})


def test_keys_for_an_object_lead_to_its_class() -> None:
    with pl.pipeline(Total(), example=1) as pipe:
        with pytest.raises(pl.SessionError, match="no state for keys") as caught:
            pipe.map([1], key=lambda item: item)
        assert "give the class, not an object" in str(caught.value.fix)


def test_an_item_without_entries_leads_to_a_function_as_key() -> None:
    with pl.pipeline(Total, example=1) as pipe:
        with pytest.raises(pl.KernelError, match=r"has no 'camera'(?s:.*)give a function of it"):
            pipe.map([1], key="camera")


def test_a_batch_of_objects_leads_to_the_step_that_has_batches() -> None:
    with pl.pipeline(Total, example=1) as pipe, pytest.raises(pl.SessionError) as caught:
        pipe.map([1, 2], batch=2)
    assert "pl.step(model, batch=...)" in str(caught.value.fix)


def test_two_classes_beside_a_model_leave_replicas_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    for module in (api, core_shares, replicas, lanes, ort_device):
        monkeypatch.setattr(module, "count_cores", lambda: 2)
    b, side = pl.GraphBuilder("products"), 256
    last = b.input("x", "float32", (side, side))
    for _ in range(10):
        last = b.op("MatMul", last, np.eye(side, dtype="float32"))
    b.output("y", last)

    class Fill:
        def __call__(self, value: int) -> Any:
            return np.full((side, side), value, "float32")

    with pl.pipeline(Fill, b.build(), Total, example=1) as pipe:
        assert pipe.open(pipe.plan(["ort", "cpu"])).plan.variants == 2
        sums = pipe.map(range(8), key=lambda value: value % 2)
    totals = [sum(range(value % 2, value + 1, 2)) for value in range(8)]
    assert sums == [side * side * total for total in totals]
