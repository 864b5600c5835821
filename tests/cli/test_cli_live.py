from __future__ import annotations

import json
from array import array
from dataclasses import replace
from io import StringIO
from pathlib import Path

import plait as pl
import pytest
from bounded_functions import find_boxes
from command_line import assert_mistake, plait
from plait.cli.live import make_moment, render_frame
from plait.scheduler.plans.placement import Outline
from plait.scheduler.profile import PlanTimes, Record
from plait.scheduler.profile.timestamps import Timestamps
from plait.scheduler.runtime.status import DeviceStatus, Status
from rich.console import Console

MS = 1_000_000
STATUS = Status(12, 1, 3, {"cpu": DeviceStatus(1, 2), "npu": DeviceStatus()}, {"host": 2048})


def record(start_ms: int, run_ms: int) -> Record:
    """Return an item that was admitted 1 ms before its step on the cpu and landed 1 ms after."""
    begin, end = start_ms * MS, (start_ms + run_ms) * MS
    part = PlanTimes((Outline(0, "s", "cpu", (), None, ("n",)),), array("q", [begin, begin, end]))
    return Record((part,), Timestamps(admitted_ns=begin - MS, landed_ns=end + MS), False)


def test_a_moment_shows_rates_of_the_last_seconds() -> None:
    shown = make_moment(STATUS, [record(10, 200), record(210, 300)], 2, 2.0)
    assert shown.per_second == 1.0
    assert shown.latency_s == pytest.approx(0.302)
    assert shown.busy == {"cpu": pytest.approx(0.25), "npu": 0.0}


def test_items_that_were_forgotten_count_as_those_that_are_known() -> None:
    shown = make_moment(STATUS, [record(10, 100)], 4, 2.0)
    assert shown.per_second == 2.0
    assert shown.busy["cpu"] == pytest.approx(4 * 0.1 / 2.0)


def test_nothing_is_shown_of_items_before_there_are_any() -> None:
    shown = make_moment(STATUS, [], 0, 0.5)
    assert (shown.per_second, shown.latency_s, shown.busy["cpu"]) == (0.0, None, 0.0)


def test_a_frame_names_items_devices_queues_and_memory() -> None:
    text = StringIO()
    Console(file=text, width=100).print(
        render_frame(make_moment(STATUS, [record(10, 500)], 1, 1.0), 20, 3.2)
    )
    first, *others = text.getvalue().splitlines()
    assert first.startswith("12 of 20 items, 1 failed, 3 in flight; 1.0 items/s, latency 502.00 ms")
    cpu = next(line.split() for line in others if line.strip().startswith("cpu"))
    assert (cpu[1], cpu[-2:]) == ("50%", ["1", "2"])
    assert "memory: host 2.05 KB" in text.getvalue()


def test_a_frame_tells_of_items_that_were_dropped() -> None:
    text = StringIO()
    shown = make_moment(replace(STATUS, dropped=7), [], 0, 1.0)
    Console(file=text, width=100).print(render_frame(shown, 20, 3.2))
    assert "1 failed, 7 dropped, 3 in flight" in text.getvalue()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    builder = pl.GraphBuilder("two")
    h = builder.op("Relu", builder.input("x", "float32", (8,)), name="first")
    builder.output("y", builder.op("Exp", h, name="second"))
    pl.save(builder.build(), tmp_path / "two.plait")
    return tmp_path


def test_a_stream_is_shown_live_on_stderr(model: Path) -> None:
    result = plait(model, "stream", "two.plait", "--count", "5", "--live")
    assert result.exit_code == 0
    assert result.stdout.startswith("5 items in ")
    assert "5 of 5 items, 0 failed, 0 in flight" in result.stderr
    assert "cpu" in result.stderr


def test_a_stream_that_breaks_while_it_is_shown_says_what_broke(model: Path) -> None:
    (model / "out" / "0001.npz").mkdir(parents=True)
    result = plait(
        model, "stream", "two.plait", "--count", "2", "--live", "--output", "out"
    )  # fmt: skip
    assert result.exit_code == 2
    assert "cannot write out/0001.npz" in result.stderr
    assert "ExceptionGroup" not in result.stderr


def test_a_profile_answers_what_if_an_operator_were_faster(model: Path) -> None:
    told = plait(model, "profile", "two.plait", "--repeat", "4", "--faster", "Exp=2").stdout
    assert "if Exp were 2 times as fast, the stream would be" in told
    arguments = ("--repeat", "4", "--faster", "Exp=2", "--json")
    answer = json.loads(plait(model, "profile", "two.plait", *arguments).stdout)
    assert answer["what_if"]["faster"] == {"Exp": 2.0}
    assert answer["attribution"]["wall_ms"] > 0


def test_what_if_is_asked_of_counts_that_functions_compute(tmp_path: Path) -> None:
    builder = pl.GraphBuilder("counted")
    found, which = builder.call(find_boxes, builder.input("x", "float32", (8, 4)), name="find")
    builder.output("y", builder.op("Exp", found))
    builder.output("which", which)
    pl.save(builder.build(), tmp_path / "counted.plait")
    asked = ("profile", "counted.plait", "--repeat", "4", "--faster", "Exp=2")
    told = plait(tmp_path, *asked, "--bound", "boxes=8")
    assert told.exit_code == 0, told.stderr
    assert "if Exp were 2 times as fast, the stream would be" in told.stdout
    assert "test.find_boxes" in told.stdout
    assert "BoundedCall" not in told.stdout
    named = ("--faster", "test.find_boxes=2", "--faster", "find=2", "--bound", "boxes=8")
    assert plait(tmp_path, *asked, *named).exit_code == 0
    refused = plait(tmp_path, *asked, "--bound", "boxes=8", "--devices", "worker:0")
    assert_mistake(refused, "Python functions on devices of this process alone")


def test_a_profile_names_the_nodes_of_steps_and_says_which_are_not_timed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    builder = pl.GraphBuilder("named")
    h = builder.input("x", "float32", (8,))
    for name in ("first", "second", "third", "fourth"):
        h = builder.op("Exp", h, name=name)
    builder.output("y", builder.op("Abs", h, name="last"))
    pl.save(builder.build(), tmp_path / "named.plait")
    pins = ("--devices", "ort,cpu", "--pin", "last=cpu", "--pin", "*=ort", "--repeat", "4")
    told = plait(tmp_path, "profile", "named.plait", *pins).stdout
    steps: dict[str, str] = {}
    for line in told.partition("step  ")[2].splitlines():
        steps.setdefault(line.partition(" ")[0], line)
    assert steps["0:ort"].endswith("  first, ..., fourth")
    assert steps["last"].endswith("  last")
    assert "0:ort: not timed by node, ort runs it in one piece" in told
    assert "last: not timed" not in told
    assert told.rstrip().endswith(
        "'last' (Abs on cpu) takes 100% of the time of those that were timed"
    )
    answer = json.loads(plait(tmp_path, "profile", "named.plait", *pins, "--json").stdout)
    assert [row["nodes"] for row in answer["steps"]] == [
        ["first", "second", "third", "fourth"],
        ["last"],
    ]


def test_a_factor_that_is_none_is_a_mistake(model: Path) -> None:
    result = plait(model, "profile", "two.plait", "--faster", "Exp=fast")
    assert result.exit_code == 2
    assert "--faster 'Exp=fast' is not OP=FACTOR" in result.stderr
