"""Variables of which items write a part: the rest is neither copied nor changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.opened import open_plan

ROWS, WIDTH = 7, 3
FLAG = pl.TensorSpec("int64", ())
CACHE = pl.TensorSpec("float32", (1, ROWS, WIDTH))


@pl.operator(CACHE, inputs=[CACHE, FLAG], name="test_partial.fail_if")
def fail_if(x: Array, flag: Array) -> Array:
    if flag:
        raise ValueError("as asked")
    return x


def make_graph(op: str, *, negates: bool, reads: bool = True, **attributes: Any) -> pl.Graph:
    """Return a graph that writes two rows of a cache, and may fail afterwards."""
    b = pl.GraphBuilder("cache")
    at = b.input("at", "int64", (1, 2))
    update = b.input("update", "float32", (1, 2, WIDTH))
    cache = b.variable("cache", np.zeros((1, ROWS, WIDTH), "float32"))
    if op == "TensorScatter":
        start = b.op("Slice", at, np.array([0]), np.array([1]), np.array([1]))
        written = b.op(op, cache, update, b.op("Reshape", start, np.array([1])), **attributes)
    elif op == "ScatterND":
        rows = b.op("Reshape", at, np.array([1, 2, 1]))
        indices = b.op("Concat", b.op("Sub", rows, rows), rows, axis=2)
        written = b.op(op, cache, indices, update, **attributes)
    else:
        rows = b.op("Reshape", at, np.array([1, 2, 1]))
        indices = b.op("Expand", rows, np.array([1, 2, WIDTH]))
        written = b.op(op, cache, indices, update, axis=1, **attributes)
    # Negated in place, in which case all of the arena changes.
    value = cache.assign(b.op("Neg", written) if negates else written)
    if reads:
        b.output("before", b.op("Neg", cache))
    b.output("y", b.op("Neg", b.op("test_partial.fail_if", value, b.input("fails", "int64", ()))))
    return b.build()


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("TensorScatter", {"axis": 1}),
    ("TensorScatter", {"axis": 1, "mode": "circular"}),
    ("ScatterND", {}),
    ("ScatterND", {"reduction": "add"}),
    ("ScatterElements", {}),
    ("ScatterElements", {"reduction": "max"}),
]


def write(cache: Array, kind: tuple[str, dict[str, Any]], at: list[int], update: Array) -> Array:
    """Return the cache after an item, computed row by row."""
    op, attributes = kind
    found = cache.copy()
    for place, row in enumerate(update[0]):
        index = at[place] if op != "TensorScatter" else (at[0] + place) % ROWS
        how = attributes.get("reduction")
        old = found[0, index]
        found[0, index] = old + row if how == "add" else np.maximum(old, row) if how else row
    return found


EVERY = ["item", "item", "failure", "item", "assign", "item", "fetch", "reset", "item", "read"]
events = st.tuples(
    st.sampled_from(EVERY),
    st.permutations(range(ROWS - 1)).map(lambda rows: rows[:2]),
)


@pytest.mark.parametrize("device", ["cpu", "compiled", "formal"])
@settings(max_examples=40, deadline=None)
@example(KINDS[0], [(what, [number % 5, 5]) for number, what in enumerate(EVERY * 2)], False)
@example(KINDS[3], [(what, [number % 5, 5]) for number, what in enumerate(EVERY * 2)], True)
@given(st.sampled_from(KINDS), st.lists(events, min_size=1, max_size=14), st.booleans())
def test_values_are_those_of_a_loop(
    device: str, kind: tuple[str, dict[str, Any]], told: list[tuple[str, list[int]]], negates: bool
) -> None:
    random = np.random.default_rng(len(told))
    plan = pl.plan(
        make_graph(kind[0], negates=negates, **kind[1]), [*dict.fromkeys((device, "cpu"))]
    )
    cache = np.zeros((1, ROWS, WIDTH), "float32")
    with pl.BlockingSession(plan) as session:
        for what, at in told:
            update = random.integers(-9, 9, (1, 2, WIDTH)).astype("float32")
            feeds = {"at": np.array([at]), "update": update, "fails": np.int64(what == "failure")}
            if what == "assign":
                cache = random.integers(-9, 9, cache.shape).astype("float32")
                session.assign({"cache": cache})
            elif what == "reset":
                session.reset_variables()
                cache = np.zeros_like(cache)
            elif what == "read":
                assert (session.variables["cache"] == cache).all()
            elif what == "failure":
                with pytest.raises(pl.KernelError, match="as asked"):
                    session.run(feeds)
            elif what == "fetch":  # by another plan
                (found,) = session.run(feeds, ["y"])
                cache = write(cache, kind, at, update) * (-1 if negates else 1)
                assert (found == -cache).all()
            else:
                results = session.run(feeds)
                assert (results["before"] == -cache).all()
                cache = write(cache, kind, at, update) * (-1 if negates else 1)
                assert (results["y"] == -cache).all()
        assert (session.variables["cache"] == cache).all()


KEYS = "abc"


@pytest.mark.parametrize("devices", [["cpu"], ["compiled", "cpu"], ["cpu:0..1"]])
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    told=st.lists(
        st.tuples(st.sampled_from(KEYS), st.permutations(range(ROWS - 1)), st.integers(0, 3)),
        min_size=1,
        max_size=24,
    ),
    ways=st.lists(st.sampled_from(["stream", "leave", "assign", "drop"]), max_size=5),
    in_flight=st.integers(1, 4),
    most=st.integers(1, 3),
)
def test_values_of_keys_are_those_of_loops(
    tmp_path_factory: pytest.TempPathFactory,
    devices: list[str],
    kind: tuple[str, dict[str, Any]],
    told: list[tuple[str, list[int], int]],
    ways: list[str],
    in_flight: int,
    most: int,
) -> None:
    random, folder = np.random.default_rng(len(told)), tmp_path_factory.mktemp("states")
    plan = pl.plan(
        make_graph(kind[0], negates=False, reads=False, **kind[1]),
        devices,
        max_in_flight=in_flight,
        strategy="preference",
    )
    caches: dict[str, Array] = {}
    with pl.BlockingSession(plan) as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_plan, "LEAST_IN_PLACE", 0)
        for way in (*ways, "stream"):
            if way in ("assign", "drop"):
                for key in {*caches}:
                    caches[key] = np.full((1, ROWS, WIDTH), len(told), "float32")
                    session.assign({"cache": caches[key]}, key=key)
                if way == "drop":
                    session.drop_keys()
                    caches.clear()
                continue
            histories = {key: [caches.get(key, np.zeros((1, ROWS, WIDTH), "f"))] for key in KEYS}
            items, wanted = [], list[Array | None]()
            for key, at, fault in told:
                update = random.integers(-9, 9, (1, 2, WIDTH)).astype("float32")
                fed = {"at": np.array([at[:2]]), "update": update, "key": key}
                items.append({**fed, "fails": np.int64(fault == 3)})
                now = write(histories[key][-1], kind, at, update)
                wanted.append(None if fault == 3 else now)
                histories[key].append(histories[key][-1] if fault == 3 else now)
            results = session.stream(items, key="key", max_keys=most, evict=folder)
            with results:
                for item in results:
                    value = wanted[item.index]
                    assert (item.error is None) == (value is not None)
                    assert value is None or (item["y"] == -value).all()
                    if way == "leave" and item.index == len(items) // 2:
                        break
            for key in map(str, session.list_keys()):
                caches[key] = found = session.fetch_variables(key=key)["cache"]
                ends = histories[key] if way == "leave" else histories[key][-1:]
                assert any((found == one).all() for one in ends)
    assert not [*folder.iterdir()]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of elements that whole copies took."""
    found: list[int] = []
    copy = np.copyto

    def note(target: Array, source: Any, **options: Any) -> None:
        found.append(np.size(target))
        copy(target, source, **options)

    monkeypatch.setattr(np, "copyto", note)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_rows_that_differ_are_copied(
    copied: list[int], kind: tuple[str, dict[str, Any]]
) -> None:
    b = pl.GraphBuilder("writes")
    x = b.input("x", "float32", (1, 1, WIDTH))
    cache = b.variable("cache", np.zeros((1, 1000, WIDTH), "float32"))
    op, attributes = kind
    if op == "TensorScatter":
        written = b.op(op, cache, x, np.array([5]), **attributes)
    elif op == "ScatterND":
        written = b.op(op, cache, np.array([[[0, 5]]]), x, **attributes)
    else:
        written = b.op(op, cache, np.full((1, 1, WIDTH), 5), x, axis=1, **attributes)
    cache.assign(written)
    b.output("y", b.op("Slice", written, np.array([5]), np.array([6]), np.array([1])))
    with pl.BlockingSession(pl.plan(b.build(), ["cpu"])) as session:
        for number in range(10):
            session.run({"x": np.full((1, 1, WIDTH), number, "float32")})
        # The initial value, and each of both arenas once.
        assert copied.count(1000 * WIDTH) <= 3
        before = copied.count(1000 * WIDTH)
        session.assign({"cache": np.ones((1, 1000, WIDTH), "float32")})
        session.run({"x": np.zeros((1, 1, WIDTH), "float32")})
        assert copied.count(1000 * WIDTH) > before
        assert session.variables["cache"][0, 6, 0] == 1


def test_attention_reads_the_keys_in_use_alone() -> None:
    """All others are NaN; the number of keys crosses granules of 64 both ways."""
    b = pl.GraphBuilder("attends")
    query = b.input("q", "float32", (2, 1, 1, 4))
    keys, values = (b.input(name, "float32", (2, 1, 200, 4)) for name in "kv")
    used = b.input("n", "int64", (2,))
    b.output("y", b.op("Attention", query, keys, values, None, None, None, used))
    graph, random = b.build(), np.random.default_rng(5)
    feeds = {name: random.normal(size=(2, 1, 200, 4)).astype("float32") for name in "kv"}
    with (
        pl.BlockingSession(pl.plan(graph, ["cpu"])) as session,
        pl.BlockingSession(pl.plan(graph, ["formal"])) as oracle,
    ):
        for number in (0, 1, 63, 64, 65, 130, 200, 3):
            n = np.array([number, max(number - 2, 0)])
            fed = {**feeds, "n": n, "q": random.normal(size=(2, 1, 1, 4)).astype("float32")}
            wanted = oracle.run(fed)["y"]
            for row, filled in enumerate(n):
                for name in "kv":
                    fed[name] = fed[name].copy()
                    fed[name][row, :, filled:] = np.nan
            np.testing.assert_allclose(session.run(fed)["y"], wanted, rtol=1e-5, atol=1e-6)
