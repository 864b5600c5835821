"""A node that a device refuses only while it runs is planned elsewhere; its items run again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices import refusals
from plait.devices.ort import differences
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.opened.inline import run_steps
from plait.scheduler.runtime.running import inline_runner

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def unknown_refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the `ort` device know nothing of scatters, which ONNX Runtime refuses late."""
    known = {op: one for op, one in differences._DIFFERENCES.items() if op != "ScatterElements"}
    monkeypatch.setattr(differences, "_DIFFERENCES", known)
    forget()
    yield
    forget()


def forget() -> None:
    """Know no more than a process that starts."""
    refusals._refused.clear()
    refusals._read_kept.cache_clear()


def make_graph(rows: int | str = 2) -> pl.Graph:
    b = pl.GraphBuilder("scatter")
    x, places = b.input("x", "float16", (4, rows)), b.input("places", "int64", (4, rows))
    less = b.op("Sub", places, np.int64(1), name="less")
    b.output("y", b.op("ScatterElements", x, less, x, reduction="add", name="scatter"))
    return b.build()


def make_item(x: Array) -> dict[str, Array]:
    return {"x": x, "places": np.ones(x.shape, "int64")}


def compute(x: Array) -> Array:
    y = x.copy()
    y[0] += x.sum(axis=0)
    return y


def make_items(count: int, rows: int = 2) -> list[Array]:
    return [np.arange(4 * rows, dtype="float16").reshape(4, rows) + i for i in range(count)]


PINS = {"less": "ort"}


def make_plan(**options: Any) -> pl.Plan:
    plan = pl.plan(make_graph(options.pop("rows", 2)), ["ort", "cpu"], pin=PINS, **options)
    assert plan.assignment["scatter"] == "ort"
    return plan


def test_an_item_runs_again_and_one_event_says_so() -> None:
    seen: list[Any] = []
    (x,) = make_items(1)
    with pl.BlockingSession(make_plan(), on_event=seen.append) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run(make_item(x))["y"], compute(x))
    refused = [one for one in seen if isinstance(one, pl.events.NodesRefused)]
    assert [(one.device, one.nodes) for one in refused] == [("ort", ("scatter",))]
    assert [one.error for one in seen if isinstance(one, pl.events.ItemDone)] == [None] * 3


def test_a_session_without_observers_runs_it_again() -> None:
    (x,) = make_items(1)
    with pl.BlockingSession(make_plan()) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run(make_item(x))["y"], compute(x))


def test_items_in_flight_run_again_in_order_though_their_buffer_is_used_again() -> None:
    items = make_items(20)
    buffer = make_item(np.empty((4, 2), "float16"))

    def feed() -> Iterator[dict[str, Array]]:
        for x in items:
            buffer["x"][...] = x
            yield buffer

    with pl.BlockingSession(make_plan(max_in_flight=4)) as session:
        for x, item in zip(items, session.stream(feed()), strict=True):
            np.testing.assert_array_equal(item.outputs["y"], compute(x))


def test_lengths_within_bounds_go_on_elsewhere() -> None:
    with pl.BlockingSession(make_plan(rows="n", bounds={"n": 8})) as session:
        for rows in (3, 8, 1):
            (x,) = make_items(1, rows)
            np.testing.assert_array_equal(session.run(make_item(x))["y"], compute(x))


def test_replicas_share_the_other_device_on_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run_seen(*arguments: Any) -> Any:
        seen.append(threading.current_thread().name)
        return run_steps(*arguments)

    plan = pl.plan(make_graph(), ["ort:0..1", "cpu"], pin={"less": "ort:0..1"}, max_in_flight=2)
    assert plan.has_own_devices
    (x,) = make_items(1)
    with pl.BlockingSession(plan) as session:
        session.submit(make_item(x)).result(WAIT_S)
        monkeypatch.setattr(inline_runner, "run_steps", run_seen)
        pending = [session.submit(make_item(x)) for _ in range(50)]
        for one in pending:
            np.testing.assert_array_equal(one.result(WAIT_S)["y"], compute(x))
    assert not any(name.startswith("plait-item") for name in seen)


def test_the_answer_is_remembered_for_later_plans() -> None:
    (x,) = make_items(1)
    pl.run(make_plan(), make_item(x))
    plan = pl.plan(make_graph(), ["ort", "cpu"], pin=PINS)
    assert plan.assignment["scatter"] == "cpu"
    assert "refused when it ran" in plan.report()


def test_later_processes_know_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", str(tmp_path / "kept"))
    (x,) = make_items(1)
    pl.run(make_plan(), make_item(x))
    (kept,) = (tmp_path / "kept").iterdir()
    os.mkfifo(kept.with_name("pipe.refused"))
    kept.with_name("large.refused").write_bytes(bytes(1 << 20))
    kept.with_name("damaged.refused").write_bytes(b"\xff\0")
    forget()
    plan = pl.plan(make_graph(), ["ort", "cpu"], pin=PINS)
    assert plan.assignment["scatter"] == "cpu"
    assert "refused when it ran" in plan.report()
    monkeypatch.setattr(refusals, "hash_sources", lambda *_: "other code")
    assert pl.plan(make_graph(), ["ort", "cpu"], pin=PINS).assignment["scatter"] == "ort"


def test_refusals_are_not_kept_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLAIT_FIGURES", str(tmp_path / "file"))
    (x,) = make_items(1)
    pl.run(make_plan(), make_item(x))
    assert pl.plan(make_graph(), ["ort", "cpu"], pin=PINS).assignment["scatter"] == "cpu"


def test_a_node_without_another_device_fails_with_the_reason() -> None:
    (x,) = make_items(1)
    with (
        pl.BlockingSession(pl.plan(make_graph(), "ort")) as session,
        pytest.raises(pl.KernelError, match="not supported"),
    ):
        session.run(make_item(x))
