"""Streams by key: results and state of each key are those of a loop with an oracle for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import overlapping_graphs as functions
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overlapping_graphs import faults, feed, pairs, waits
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch import way_choice
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.streaming.batching import Pace
from stateful_graphs import ROW, SHAPE, Oracle, stateful

N_ITEMS = 24

Results = list[dict[str, Array] | None]


def run_loop(
    graph: Graph, keys: list[str], most: int | None = None, shape: tuple[int, int] = SHAPE
) -> tuple[Results, dict[str, list[Mapping[str, Array]]]]:
    """Return the results of one item after the other, and for each key its values in turn.

    Of more keys than `most`, the least recently used one is forgotten.
    """
    oracles: dict[str, Oracle] = {}
    histories: dict[str, list[Mapping[str, Array]]] = {}
    found: Results = []
    for number, key in enumerate(keys):
        if key not in oracles and len(oracles) == most:
            forgotten = next(iter(oracles))
            del oracles[forgotten], histories[forgotten]
        oracle = oracles.pop(key) if key in oracles else Oracle(graph)
        oracles[key] = oracle
        history = histories.setdefault(key, [dict(oracle.values)])
        found.append(None if number in faults else oracle.run(feed(number, shape)))
        history.append(dict(oracle.values))
    return found, histories


def compare(found: Results, wanted: Results) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        for name, array in (other or {}).items():
            assert one is not None
            np.testing.assert_array_equal(one[name], array, name)


def is_equal(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> bool:
    return all(np.array_equal(found[f"stateful/{name}"], one) for name, one in wanted.items())


def set_up(random: Random, faulty: dict[int, str]) -> None:
    faults.clear()
    faults.update(faulty)
    waits.clear()
    # Items after a faulty one read its versions before it fails.
    waits.update({n: 0.004 if n in faulty else random.choice([0, 0.001]) for n in range(N_ITEMS)})


def plan_graph(graph: Graph, devices: list[str], in_flight: int) -> pl.Plan:
    return pl.plan(graph, devices, max_in_flight=in_flight, strategy="preference")


def has_state(graph: Graph) -> bool:
    return any(node.op == "Assign" for node in graph.nodes)


def draw_cases(*, of_rows: bool) -> Callable[..., Any]:
    return given(
        graphs=pairs(of_rows=of_rows).filter(lambda drawn: has_state(drawn[0])),
        in_flight=st.integers(1, 6),
        faulty=st.dictionaries(
            st.integers(0, N_ITEMS - 1), st.sampled_from(["first", "last", "last"]), max_size=8
        ),
        keys=st.lists(st.sampled_from("abc"), min_size=N_ITEMS, max_size=N_ITEMS),
        seed=st.integers(0, 1 << 20),
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu:0..2"], ["cpu"]])
@pytest.mark.parametrize("evict", ["error", "drop", "spill"])
@settings(max_examples=45, deadline=None)
@draw_cases(of_rows=False)
def test_each_key_is_as_alone(
    tmp_path_factory: pytest.TempPathFactory, devices: list[str], evict: Any, **case: Any
) -> None:
    check_keys(tmp_path_factory.mktemp("states"), devices, evict, **case)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0..2"]])
@pytest.mark.parametrize("evict", ["error", "drop", "spill"])
@settings(max_examples=45, deadline=None)
@draw_cases(of_rows=True)
def test_each_key_is_as_alone_in_batches(
    tmp_path_factory: pytest.TempPathFactory, devices: list[str], evict: Any, **case: Any
) -> None:
    options = {"batch": 1 + case["seed"] % 4, "max_in_flight": 4 + case["seed"] % 7}
    with pytest.MonkeyPatch.context() as patch:
        if case["seed"] % 3:  # the thread that asks runs them, but for some now and then
            patch.setattr(Estimates, "are_brief", lambda *_, **__: True)
            patch.setattr(Pace, "row_ns", 1 << 60)
            patch.setattr(Pace, "note", lambda *_: None)
            patch.setattr(WayChoice, "advance", lambda ways, *_: ways._use(True))
            patch.setattr(way_choice, "LEAST_PATIENCE", case["seed"] % 2 + 1)
        check_keys(tmp_path_factory.mktemp("states"), devices, evict, ROW, options, **case)


def check_keys(
    folder: Path,
    devices: list[str],
    evict: Any,
    shape: tuple[int, int] = SHAPE,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    graphs: tuple[Graph, Graph],
    in_flight: int,
    faulty: dict[int, str],
    keys: list[str],
    seed: int,
) -> None:
    set_up(Random(seed), faulty)
    inner, graph = graphs
    most = 3 if evict == "error" else 1 + seed % 2
    wanted, histories = run_loop(inner, keys, most if evict == "drop" else None, shape)
    evict = folder if evict == "spill" else evict
    with pl.BlockingSession(plan_graph(graph, devices, in_flight)) as session:
        fed = ({**feed(number, shape), "camera": key} for number, key in enumerate(keys))
        items = session.stream(fed, key="camera", max_keys=most, evict=evict, **options)
        compare([None if item.error else dict(item.outputs) for item in items], wanted)
        assert {*session.list_keys()} == {*histories}
        for key, history in histories.items():
            assert is_equal(session.fetch_variables(key=key), history[-1])
        assert is_equal(session.variables, Oracle(inner).values)
    assert not [*folder.iterdir()]


@settings(max_examples=45, deadline=None)
@draw_cases(of_rows=False)
def test_what_a_stream_that_is_left_has_committed_is_a_prefix_of_each_key(**case: Any) -> None:
    check_prefixes(SHAPE, {"max_in_flight": 3 * case["in_flight"]}, **case)


@settings(max_examples=45, deadline=None)
@draw_cases(of_rows=True)
def test_so_it_is_in_batches(**case: Any) -> None:
    options = {"batch": 1 + case["seed"] % 4, "max_in_flight": 4 * case["in_flight"]}
    check_prefixes(ROW, options, **case)


@settings(max_examples=45, deadline=None)
@given(
    graph=stateful(transposes=False).filter(has_state),
    keys=st.lists(st.sampled_from("abcd"), min_size=N_ITEMS, max_size=N_ITEMS),
    batch=st.integers(2, 5),
)
def test_elementwise_graphs_need_no_axis_of_1(graph: Graph, keys: list[str], batch: int) -> None:
    set_up(Random(0), {})
    wanted, _ = run_loop(graph, keys)
    with pl.BlockingSession(pl.plan(graph, "cpu")) as session:
        fed = ({**feed(number), "camera": key} for number, key in enumerate(keys))
        items = session.stream(fed, key="camera", batch=batch)
        compare([dict(item.outputs) for item in items], wanted)


def check_prefixes(
    shape: tuple[int, int],
    options: Mapping[str, Any],
    *,
    graphs: tuple[Graph, Graph],
    in_flight: int,
    faulty: dict[int, str],
    keys: list[str],
    seed: int,
) -> None:
    set_up(Random(seed), faulty)
    inner, graph = graphs
    n_taken = seed % N_ITEMS + 1
    wanted, histories = run_loop(inner, keys, shape=shape)
    with pl.BlockingSession(plan_graph(graph, ["cpu:0..2"], in_flight)) as session:
        fed = ({**feed(number, shape), "camera": key} for number, key in enumerate(keys))
        with session.stream(fed, key=read_camera, **options) as items:
            taken = [next(items) for _ in range(n_taken)]
        compare([None if i.error else dict(i.outputs) for i in taken], wanted[:n_taken])
        for key in session.list_keys():
            values = session.fetch_variables(key=key)
            left = histories[str(key)][keys[:n_taken].count(str(key)) :]
            assert any(is_equal(values, one) for one in left)


def read_camera(item: dict[str, Any]) -> Hashable:
    key: Hashable = item.pop("camera")
    return key


@pl.operator(functions.SPEC, inputs=[functions.SPEC], name="test_keyed_state.Tracker", ordered=True)
class Tracker:
    """Return the numbers of items so far."""

    def open(self, inputs: object) -> None:
        self.calls = 0

    def run(self, x: Array) -> Array:
        self.calls += 1
        return np.full_like(x, self.calls)


@settings(max_examples=45, deadline=None)
@given(
    faulty=st.dictionaries(
        st.integers(0, N_ITEMS - 1), st.sampled_from(["first", "last", "last"]), max_size=8
    ),
    keys=st.lists(st.sampled_from("abc"), min_size=N_ITEMS, max_size=N_ITEMS),
    seed=st.integers(0, 1 << 20),
)
def test_instances_count_the_items_of_their_key_that_have_not_failed(
    faulty: dict[int, str], keys: list[str], seed: int
) -> None:
    set_up(Random(seed), faulty)
    b = pl.GraphBuilder("tracked")
    x = b.input("x", "int32", SHAPE)
    h = b.call(functions.first, x)
    total = b.variable("total", np.zeros(SHAPE, "int32"))
    now = total.assign(total + h)
    done = b.call(functions.last, b.after(x, now))
    b.output("sum", now)
    b.output("count", b.call(Tracker, b.after(h, done)))
    most, counts = 1 + seed % 3, dict[str, tuple[int, int]]()
    with pl.BlockingSession(plan_graph(b.build(), ["cpu:0..2"], 6)) as session:
        fed = ({**feed(number), "key": key} for number, key in enumerate(keys))
        for item in session.stream(fed, key="key", max_keys=most, evict="drop"):
            key = keys[item.index]
            if key not in counts and len(counts) == most:
                del counts[next(iter(counts))]
            sum_now, count = counts.pop(key, (0, 0))
            if item.error is None:
                sum_now, count = sum_now + item.index, count + 1
                assert (item["sum"][0, 0], item["count"][0, 0]) == (sum_now, count)
            assert (item.error is not None) == (item.index in faulty)
            counts[key] = sum_now, count
