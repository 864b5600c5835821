"""Streams by key: a state for each key, of variables and of instances."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ordered_functions as functions
import plait as pl
import pytest
import trio
import trio.testing
from ordered_functions import BAD, S, begun, gates, note, seen, slow, told
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.inline_policy import Estimates


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for one in (seen, told, begun):
        one.clear()
    gates.clear()
    yield
    gates.clear()


@pl.operator(S, inputs=[S], name="test_keyed.check", effects=True, ordered=False)
def check(x: Array) -> Array:
    """Fail for some items after they have handed on their sum."""
    gate = gates.get(int(x[0]))
    assert gate is None or gate.wait(WAIT_S)
    if x[0] in told:
        raise ValueError("a bad item")
    return x


def make_graph(*, slow_sum: bool = False, then: Any = None) -> pl.Graph:
    """Return a graph of the sum so far, `slow` between reading and assigning it if so."""
    b = pl.GraphBuilder("sums")
    x = b.input("x", "float32", (4,))
    total = b.variable("total", np.zeros(4, "float32"))
    if slow_sum:
        now = total.assign(total + b.call(slow, b.after(x, total), name="slow"))
    else:
        now = total.assign(total + b.call(slow, x, name="slow"))
    b.output("sum", now)
    if then is not None:
        b.output("then", b.call(then, b.after(x, now), name="then"))
    return b.build()


def make_plan(devices: Any = ("cpu:0..3",), **options: Any) -> pl.Plan:
    return pl.plan(make_graph(**options), devices, max_in_flight=4)


def make_feeds(*items: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"x": np.full(4, value, np.float32), "key": key} for value, key in items]


def get_sums(session: pl.BlockingSession, *items: tuple[float, str], **options: Any) -> list[Any]:
    """Return the sums, and the texts of errors."""
    results = session.stream(make_feeds(*items), key="key", **options)
    return [str(one.error) if one.error else float(one["sum"][0]) for one in results]


def get_total(session: pl.BlockingSession, key: Any) -> float:
    return float(session.fetch_variables(key=key)["total"][0])


async def test_items_of_other_keys_pass_one_that_takes_long() -> None:
    gates[0] = threading.Event()
    found: list[tuple[int, float]] = []
    items = make_feeds((0, "a"), (1, "b"), (2, "a"), (3, "b"))
    with trio.fail_after(WAIT_S):
        async with pl.Session(make_plan(slow_sum=True)) as session:
            async with session.stream(items, key="key", ordered=False) as results:
                async for item in results:
                    found.append((item.index, float(item["sum"][0])))
                    if len(found) == 2:
                        while not begun.count(0):  # noqa: ASYNC110
                            await trio.sleep(0.001)
                        assert sorted(begun) == [0, 1, 3]  # lanes of two keys
                        gates[0].set()
    assert found == [(1, 1), (3, 4), (0, 0), (2, 2)]


async def test_a_late_failure_is_taken_back_in_its_key_alone() -> None:
    told.append(1)
    gates[1] = threading.Event()
    items = make_feeds((0, "a"), (1, "a"), (2, "b"), (3, "a"))
    found: list[tuple[int, float]] = []
    with trio.fail_after(WAIT_S):
        async with pl.Session(make_plan(then=check)) as session:
            async with session.stream(items, key="key", ordered=False) as results:
                async for item in results:
                    found.append((item.index, -1 if item.error else float(item["sum"][0])))
                    if len(found) == 2:
                        while not begun.count(3):  # noqa: ASYNC110
                            await trio.sleep(0.001)
                        await trio.testing.wait_all_tasks_blocked()
                        gates[1].set()
            assert (await session.fetch_variables(key="a"))["total"][0] == 3
    assert sorted(found[:2]) == [(0, 0), (2, 2)]
    assert found[2:] == [(1, -1), (3, 3)]
    assert begun.count(2) == 1


def test_every_door_has_keys() -> None:
    items = make_feeds((1, "a"), (2, "b"), (3, "a"))

    async def main() -> tuple[list[float], Any]:
        async with pl.AsyncioSession(make_plan()) as session:
            async with session.stream(items, key="key") as results:
                found = [float(item["sum"][0]) async for item in results]
            await session.drop_keys(["a"])
            return found, await session.list_keys()

    assert asyncio.run(main()) == ([1, 2, 4], ("b",))
    with pl.BlockingSession(make_plan()) as session:
        done = session.map(({"x": item["x"]} for item in items), key=lambda item: item["x"][0] < 3)
        assert [float(one["sum"][0]) for one in done] == [1, 3, 3]
        assert session.list_keys() == (True, False)
    with pl.pipeline(measure, make_graph(), pick, example="a") as pipe:
        assert pipe.map(["a", "bb", "c", "aa"], key=len) == [1, 2, 2, 4]


def measure(word: str) -> Array:
    return np.full(4, len(word), np.float32)


def pick(total: Array) -> float:
    return float(total[0])


def test_an_item_that_misses_its_deadline_leaves_no_trace_in_its_key() -> None:
    gates[2] = threading.Event()
    opening = threading.Timer(0.3, gates[2].set)

    def source() -> Iterator[dict[str, Any]]:
        for value, fed in enumerate(make_feeds(*[(float(n), "ab"[n % 2]) for n in range(8)])):
            if value == 2:
                opening.start()
            yield fed

    with pl.BlockingSession(make_plan()) as session:
        items = [*session.stream(source(), key="key", deadline_s=0.1)]
        for key in "ab":
            fine = [one.index for one in items if one.error is None and "ab"[one.index % 2] == key]
            assert get_total(session, key) == sum(fine)
    opening.join()
    assert isinstance(items[2].error, pl.DeadlineError)


async def test_callers_drop_and_assign_keys_between_items() -> None:
    sums: list[float] = []

    async def consume() -> None:
        items = make_feeds(*[(1.0, "ab"[index % 2]) for index in range(40)])
        async with session.stream(items, key="key") as results:
            async for item in results:
                assert item.error is None
                sums.append(float(item["sum"][0]))

    async with pl.Session(make_plan()) as session, trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        while len(sums) < 5:  # noqa: ASYNC110
            await trio.sleep(0.001)
        await session.drop_keys(["a"])
        await session.assign({"total": np.full(4, 1000, np.float32)}, key="b")
    first, second = sums[::2], sums[1::2]
    begun_again = first.index(1, 1)
    assert first == [*range(1, begun_again + 1), *range(1, 21 - begun_again)]
    assigned = next(index for index, value in enumerate(second) if value > 1000)
    assert second == [*range(1, assigned + 1), *range(1001, 1021 - assigned)]


def test_live_streams_count_the_items_that_they_keep() -> None:
    with pl.BlockingSession(make_plan()) as session:
        kept = get_sums(session, *[(1, "ab"[index % 2]) for index in range(40)], keep="latest")
        assert get_total(session, "a") + get_total(session, "b") == len(kept)


def test_the_session_has_a_state_of_its_own() -> None:
    with pl.BlockingSession(make_plan()) as session:
        session.run({"x": np.full(4, 5, np.float32)})
        assert get_sums(session, (1, "a"), (2, "b")) == [1, 2]
        assert session.run({"x": np.full(4, 5, np.float32)})["sum"][0] == 10
        session.reset_variables()
        assert get_sums(session, (3, "a")) == [4]


def test_keys_of_items_of_several_shapes() -> None:
    b = pl.GraphBuilder("rows")
    rows = b.input("x", "float32", ("n", 4))
    total = b.variable("total", np.zeros(4, "float32"))
    b.output("sum", total.assign(total + b.op("ReduceSum", rows, np.array([0]), keepdims=0)))
    plan = pl.plan(b.build(), ["cpu:0..1"], max_in_flight=4)
    fed = [{"x": np.ones((1 + index % 5, 4), np.float32)} for index in range(30)]
    with pl.BlockingSession(plan) as session:
        results = session.stream(fed, key=lambda item: len(item["x"]))
        found = [float(item["sum"][0]) for item in results]
    assert found == [(1 + index % 5) * (1 + index // 5) for index in range(30)]


closed: list[int] = []


@pl.operator(S, inputs=[S], name="test_keyed.Tracker", effects=True)
class Tracker:
    """Counts its items."""

    def open(self, inputs: object) -> None:
        self.calls = 0

    def run(self, x: Array) -> Array:
        self.calls += 1
        if x[0] == BAD:
            raise ValueError("a bad item")
        return np.full_like(x, self.calls)

    def close(self) -> None:
        closed.append(self.calls)


@pytest.mark.parametrize("devices", ["cpu", ["cpu:0..2"]])
@pytest.mark.parametrize("kind", [Tracker, functions.Sum])
def test_each_key_has_an_instance(devices: Any, kind: Any) -> None:
    b = pl.GraphBuilder("tracked")
    b.output("y", b.call(kind, b.call(slow, b.input("x", "float32", (4,)))))
    plan = pl.plan(b.build(), devices, max_in_flight=3)
    items = [(1.0, "abc"[index % 3]) for index in range(30)]
    with pl.BlockingSession(plan) as session:
        found = [float(item["y"][0]) for item in session.stream(make_feeds(*items), key="key")]
        assert found == [1 + index // 3 for index in range(30)]
        assert session.run({"x": np.ones(4, np.float32)})["y"][0] == 1


def test_instances_of_dropped_keys_are_closed() -> None:
    closed.clear()
    b = pl.GraphBuilder("tracked")
    b.output("y", b.call(Tracker, b.input("x", "float32", (4,))))
    plan = pl.plan(b.build(), ["cpu:0..1"], max_in_flight=3)
    items = make_feeds((1, "a"), (2, "a"), (3, "b"), (4, "c"), (BAD, "c"), (5, "a"))
    with pl.BlockingSession(plan) as session:
        results = session.stream(items, key="key", max_keys=2, evict="drop")
        assert [one.error or one["y"][0] for one in results][:4] == [1, 2, 1, 1]
        assert session.list_keys() == ("c", "a")
        session.drop_keys()
        assert session.list_keys() == ()
    assert sorted(closed) == [0, 1, 1, 2, 2]  # the session's own had no items


def test_functions_that_all_keys_share_are_called_in_the_order_of_the_source() -> None:
    told.extend([2, 5])
    b = pl.GraphBuilder("noted")
    h = b.call(slow, b.input("x", "float32", (4,)), name="slow")
    total = b.variable("total", np.zeros(4, "float32"))
    now = total.assign(total + h)
    checked = b.call(check, b.after(h, now), name="check")
    b.output("sum", now)
    b.output("noted", b.call(note, b.after(h, checked), name="note"))
    plan = pl.plan(b.build(), ["cpu:0..3"], max_in_flight=6)
    with pl.BlockingSession(plan) as session:
        found = get_sums(session, *[(float(index), "abc"[index % 3]) for index in range(12)])
    assert [one for one in found if not isinstance(one, str)] == [
        *(0, 1, 3, 5, 9, 12),
        *(8, 18, 22, 19),
    ]
    assert seen == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]


ran_on: set[int] = set()


@pl.operator(S, inputs=[S], name="test_keyed.where")
def where(x: Array) -> Array:
    ran_on.add(threading.get_ident())
    return x + 0


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_short_items_run_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, max_in_flight: int
) -> None:
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    b = pl.GraphBuilder("short")
    total = b.variable("total", np.zeros(4, "float32"))
    b.output("sum", total.assign(total + b.call(where, b.input("x", "float32", (4,)))))
    plan = pl.plan(b.build(), "cpu", max_in_flight=max_in_flight)
    with pl.BlockingSession(plan) as session:
        items = [(1.0, "ab"[index % 2]) for index in range(20)]
        get_sums(session, *items)
        ran_on.clear()
        assert get_sums(session, *items) == [11 + index // 2 for index in range(20)]
        assert get_total(session, "a") == 20
    assert ran_on == {threading.get_ident()}


def test_states_are_listed_assigned_and_dropped() -> None:
    with pl.BlockingSession(make_plan()) as session:
        assert session.list_keys() == ()
        session.assign({"total": np.full(4, 10, np.float32)}, key="b")
        assert get_sums(session, (1, "a"), (2, "b"), (3, "c"), (4, "a")) == [1, 12, 3, 5]
        assert session.list_keys() == ("b", "c", "a")
        session.drop_keys(["c", "a"])
        assert get_sums(session, (1, "a"), (1, "b")) == [1, 13]
        for wrong in (lambda: session.drop_keys(["b", "z"]), lambda: get_total(session, "z")):
            with pytest.raises(pl.FeedError, match="there is no key 'z'"):
                wrong()
        assert session.list_keys() == ("a", "b")


@pytest.mark.parametrize("is_spilled", [False, True])
def test_states_are_saved_and_loaded(tmp_path: Path, *, is_spilled: bool) -> None:
    keys: list[Any] = ["a", 7, ("b", 2.5), b"\x00", True]
    folder = tmp_path / "states"
    folder.mkdir()
    options: Any = {"max_keys": 2, "evict": folder} if is_spilled else {}
    items = [{"x": np.full(4, n, np.float32)} for n in range(5)]
    with pl.BlockingSession(make_plan()) as session:
        for one, key in zip(items, keys, strict=True):  # one at a time: others stay in memory
            list(session.stream([one | {"key": key}], key="key", **options))
        assert len([*folder.iterdir()]) == (3 if is_spilled else 0)
        assert session.list_keys() == tuple(keys)
        session.save_variables(tmp_path / "saved")
    with pl.BlockingSession(make_plan()) as session:
        session.load_variables(tmp_path / "saved")
        assert session.list_keys() == tuple(keys)
        assert [get_total(session, key) for key in keys] == [*range(5)]
        assert session.variables["total"][0] == 0
        list(session.stream(items[:1], key=lambda _: object()))
        with pytest.raises(pl.GraphError, match=r"the key <object .* cannot be written"):
            session.save_variables(tmp_path / "other")
    assert not (tmp_path / "other.plait").exists()
    assert not [*folder.iterdir()]


def test_one_key_too_many_fails_its_item() -> None:
    with pl.BlockingSession(make_plan()) as session:
        found = get_sums(session, (1, "a"), (2, "b"), (3, "c"), (4, "a"), max_keys=2)
        assert "2 keys have a state, and 'c' is one more" in found.pop(2)
        assert found == [1, 2, 5]
        assert session.list_keys() == ("b", "a")
        session.drop_keys(["b"])
        assert get_sums(session, (3, "c"), max_keys=2) == [3]


def test_states_in_files_wait_for_no_disk_until_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with pl.BlockingSession(make_plan()) as session:
        options: Any = {"max_keys": 1, "evict": tmp_path}
        for value, key, total in ((1, "a", 1), (2, "b", 2), (3, "a", 4)):
            assert get_sums(session, (value, key), **options) == [total]
        assert len([*tmp_path.iterdir()]) == 1
        assert not synced
        session.save_variables(tmp_path / "saved")
    assert synced


def test_a_damaged_file_fails_the_items_of_its_key(tmp_path: Path) -> None:
    with pl.BlockingSession(make_plan()) as session:
        options: Any = {"max_keys": 1, "evict": tmp_path}
        assert get_sums(session, (1, "a"), **options) == [1]
        assert get_sums(session, (2, "b"), **options) == [2]
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:-9])
        (error,) = get_sums(session, (1, "a"), **options)
        assert file.name in error
        assert get_sums(session, (2, "b"), **options) == [4]
        session.drop_keys(["a"])
        assert get_sums(session, (1, "a"), **options) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "camera"}, "the item has no 'camera', which is to be its key"),
        ({"key": "cam"}, "a key is a list: "),
        ({"key": lambda item: [1]}, "a key is a list: "),
        ({"key": lambda item: None}, "a key is None"),
        ({"key": lambda item: float("nan")}, "a key is nan"),
        ({"key": lambda item: item["x"]}, "a key is an array of 4 elements"),
        ({"key": lambda item: item["y"]}, "'y'"),
    ],
)
def test_an_item_without_a_usable_key_fails(options: Any, message: str) -> None:
    items = [{"x": np.ones(4, np.float32), "cam": [1]}]
    for devices in (["cpu:0..1"], ["cpu"]):
        with pl.BlockingSession(make_plan(devices)) as session:
            (item,) = session.stream(items, **options)
            assert message in str(item.error)
            assert session.list_keys() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": 7}, "key is 7"),
        ({"key": "k", "batch": 2, "pad": "n"}, "are not filled up"),
        ({"key": "k", "max_keys": 0}, "max_keys is 0"),
        ({"key": "k", "evict": "spill"}, "evict is 'spill'"),
        ({"key": "k", "evict": Path("/no/such")}, "such'., and is not a folder"),
        ({"max_keys": 2}, "without key="),
        ({"key": "k", "fetches": "total"}, "read the variable 'total'"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pl.BlockingSession(make_plan()) as session:
        with pytest.raises(pl.SessionError, match=message):
            session.stream(make_feeds((1, "a")), **options)
        assert get_sums(session, (1, "a")) == [1]


def test_plans_that_cannot_have_keys_are_refused(tmp_path: Path) -> None:
    b = pl.GraphBuilder("plain")
    b.output("y", b.input("x", "float32", (4,)) + 1.0)
    tracked = pl.GraphBuilder("tracked")
    tracked.output("y", tracked.call(functions.Sum, tracked.input("x", "float32", (4,)), name="t"))
    by_item = pl.plan(make_graph(), "cpu", commit="item")
    cases: list[tuple[pl.Plan, str, Any]] = [
        (pl.plan(b.build()), "the graph has no state for keys", {}),
        (by_item, 'commit="item"', {}),
        (pl.plan(tracked.build(), "cpu"), "cannot be written to files", {"evict": tmp_path}),
        (pl.plan(tracked.build(), "worker:0"), "runs on 'worker:0'", {}),
    ]
    for plan, message, options in cases:
        with (
            pl.BlockingSession(plan) as session,
            pytest.raises(pl.SessionError, match=message),
        ):
            session.stream(make_feeds((1, "a")), key="key", **options)
