"""Devices measured on real items: the share of time, the answers, and their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices import Program, find, register, unregister
from plait.devices.event import Event
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.program import OrtProgram
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call
from plait.graph.values.tensor import Array
from plait.scheduler.costs import choices
from plait.scheduler.runtime.opened import binding, contests

OWN_S, LOAD_S = 1.0, 4.0
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


class Clock:
    """The time of contests, which programs move on."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Rival(OrtDevice):
    """ONNX Runtime again, with results and durations that a test chooses."""

    run_s = 0.5
    off_by = 0.0
    refused = ""
    runs = 0
    clock: Clock

    def supports(self, node: Node, call: Call) -> pl.devices.Support:
        if self.refused:
            return pl.devices.Support(False, self.refused)
        return super().supports(node, call)


class OwnProgram(OrtProgram):
    __slots__ = ()

    def __call__(self) -> None:
        super().__call__()
        Rival.clock.now_s += OWN_S

    def run(self, event: Event) -> None:
        super().run(event)
        Rival.clock.now_s += OWN_S


class RivalProgram(OrtProgram):
    __slots__ = ()

    def __call__(self) -> None:
        super().__call__()
        Rival.runs += 1
        Rival.clock.now_s += Rival.run_s
        for name in self.graph.outputs:
            self._views[name].array[...] += Rival.off_by

    def run(self, event: Event) -> None:
        self()


class Immediate:
    """A thread that runs its target when it is started."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self.start = target

    def is_alive(self) -> bool:
        return False

    def join(self) -> None: ...


compile_on = OrtDevice.compile_on


def compile_slowly(device: OrtDevice, *arguments: Any, measure: bool = False) -> Program:
    Rival.clock.now_s += LOAD_S
    return compile_on(device, *arguments, measure=measure)


@pytest.fixture(autouse=True)
def rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Rival]]:
    """Let `rival` compete with `ort`, on a clock of its own."""
    monkeypatch.setenv("PLAIT_FIGURES", str(tmp_path / "kept"))
    monkeypatch.setenv("PLAIT_DEVICES", "ort,rival")
    monkeypatch.setattr(choices, "RUNTIMES", ("ort", "rival"))
    monkeypatch.setattr(choices, "hash_sources", lambda *_: "code")
    monkeypatch.setattr(contests, "Thread", Immediate)
    monkeypatch.setattr(contests, "is_machine_loaded", lambda _: False)
    monkeypatch.setattr(Rival, "clock", Clock(), raising=False)
    for module in (binding, contests):
        monkeypatch.setattr(module, "perf_counter", Rival.clock)
    for name in ("run_s", "off_by", "refused", "runs"):
        monkeypatch.setattr(Rival, name, getattr(Rival, name))
    monkeypatch.setattr(OrtDevice, "program", OwnProgram)
    monkeypatch.setattr(OrtDevice, "compile_on", compile_slowly)
    monkeypatch.setattr(Rival, "program", RivalProgram, raising=False)
    register("rival", Rival)
    forget()
    yield Rival
    forget()
    unregister("rival")


def forget() -> None:
    """Know no more than a process that starts."""
    choices.read_answers.cache_clear()


def make_graph(shape: tuple[int | str, ...] = (4, 4)) -> pl.Graph:
    b = pl.GraphBuilder("net")
    x = b.input("x", "float32", shape)
    product = b.op("MatMul", x, np.eye(4, dtype=np.float32), name="product")
    b.output("y", b.op("Relu", product, name="relu"))
    return b.build()


def run_items(plan: pl.Plan, count: int) -> Array:
    with pl.BlockingSession(plan) as session:
        for _ in range(count):
            y: Array = session.run({"x": X})["y"]
            np.testing.assert_array_equal(y, np.maximum(X, 0))
    return y


def read_kept(tmp_path: Path) -> list[str]:
    return [one.read_text() for one in (tmp_path / "kept").glob("*.choices")]


ENOUGH = 900


def test_a_faster_rival_gets_the_subgraph_in_later_plans_and_processes(tmp_path: Path) -> None:
    first = pl.plan(make_graph())
    assert set(first.assignment.values()) == {"ort"}
    run_items(first, ENOUGH)
    assert read_kept(tmp_path) == ["rival"]
    assert set(first.assignment.values()) == {"ort"}
    forget()
    later = pl.plan(make_graph())
    assert later.assignment == {"product": "rival", "relu": "rival"}
    report = later.report()
    assert "real items took longer on 'ort'" in report
    assert "moved to a device measured to be faster" in report
    runs = Rival.runs
    with pl.BlockingSession(later) as session:
        session.run({"x": X})
        (record,) = session.profile().records
    assert Rival.runs == runs + 1
    assert {span.step.device for span in record.spans()} == {"rival"}


def test_measuring_takes_at_most_its_share_of_the_time() -> None:
    own_s, shares = 0.0, []
    with pl.BlockingSession(pl.plan(make_graph())) as session:
        opened_s = Rival.clock.now_s
        while own_s < ENOUGH:
            session.run({"x": X})
            own_s += OWN_S
            shares.append((Rival.clock.now_s - opened_s - own_s) / own_s)
    assert 0 < max(shares) <= contests.SHARE
    assert Rival.runs == 2 * contests.TURNS


@pytest.mark.parametrize("run_s", [0.97, 1.6])
def test_a_rival_that_is_no_faster_by_the_margin_loses(run_s: float, tmp_path: Path) -> None:
    Rival.run_s = run_s
    run_items(pl.plan(make_graph()), ENOUGH)
    assert read_kept(tmp_path) == ["ort"]
    assert Rival.runs == 2 * contests.TURNS
    run_items(pl.plan(make_graph()), ENOUGH)
    assert Rival.runs == 2 * contests.TURNS  # later sessions measure nothing


def test_without_a_thread_there_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(contests, "Thread", lambda **_: Immediate(refuse, ""))
        run_items(pl.plan(make_graph()), ENOUGH)
    assert not Rival.runs
    run_items(pl.plan(make_graph()), ENOUGH)
    assert Rival.runs == 2 * contests.TURNS


def test_a_rival_with_other_results_is_never_taken(tmp_path: Path) -> None:
    Rival.off_by = 2 * contests.TOLERANCE
    run_items(pl.plan(make_graph()), ENOUGH)
    assert read_kept(tmp_path) == ["ort"]
    assert Rival.runs == 2


def test_a_rival_that_lacks_a_node_is_not_asked_again(tmp_path: Path) -> None:
    Rival.refused = "it has no kernel"
    run_items(pl.plan(make_graph()), ENOUGH)
    assert read_kept(tmp_path) == ["ort"]
    assert Rival.runs == 0


def test_frozen_uses_answers_and_measures_nothing(tmp_path: Path) -> None:
    run_items(pl.plan(make_graph(), "frozen"), ENOUGH)
    assert Rival.runs == 0
    run_items(pl.plan(make_graph()), ENOUGH)
    assert set(pl.plan(make_graph(), "frozen").assignment.values()) == {"rival"}
    assert set(pl.plan(make_graph(), "exact").assignment.values()) == {"cpu"}


@pytest.mark.parametrize(
    "options",
    [
        {"devices": ["ort", "cpu", "rival"]},
        {"pin": {"relu": "ort"}},
        {"costs": pl.Costs()},
        {"strategy": "preference"},
    ],
    ids=["named", "pinned", "costs", "strategy"],
)
def test_what_the_user_decides_is_not_moved(options: dict[str, object]) -> None:
    run_items(pl.plan(make_graph()), ENOUGH)
    assert "rival" not in pl.plan(make_graph(), **options).assignment.values()  # type: ignore[arg-type]


def test_a_node_may_be_pinned_to_a_rival() -> None:
    plan = pl.plan(make_graph(), pin={"relu": "rival"})
    assert plan.assignment["relu"] == "rival"
    run_items(plan, 1)


def test_a_session_keeps_its_devices_for_shapes_that_come_later(tmp_path: Path) -> None:
    """Results of a stream do not change by rounding in the middle."""
    plan = pl.plan(make_graph(("n", 4)))
    with pl.BlockingSession(plan) as session:
        run_items(pl.plan(make_graph()), ENOUGH)
        assert read_kept(tmp_path) == ["rival"]
        session.run({"x": X})
        (record,) = session.profile().records
    assert {span.step.device for span in record.spans()} == {"ort"}
    with pl.BlockingSession(pl.plan(make_graph(("n", 4)))) as session:
        session.run({"x": X})
        (record,) = session.profile().records
    assert {span.step.device for span in record.spans()} == {"rival"}


def test_replicas_and_replanning_keep_the_measured_device() -> None:
    run_items(pl.plan(make_graph()), ENOUGH)
    plan = pl.plan(make_graph(), max_in_flight=4)
    assert {name.partition(":")[0] for name in plan.assignment.values()} == {"rival"}
    again = plan.replan()
    assert again.assignment == plan.assignment
    with pl.BlockingSession(plan) as session:
        for result in session.stream({"x": X} for _ in range(8)):
            np.testing.assert_array_equal(result["y"], np.maximum(X, 0))


def test_other_code_or_software_needs_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    run_items(pl.plan(make_graph()), ENOUGH)
    assert set(pl.plan(make_graph()).assignment.values()) == {"rival"}
    monkeypatch.setattr(choices, "hash_sources", lambda *_: "other code")
    assert set(pl.plan(make_graph()).assignment.values()) == {"ort"}


def test_damaged_answers_are_ignored(tmp_path: Path) -> None:
    run_items(pl.plan(make_graph()), ENOUGH)
    (kept,) = (tmp_path / "kept").glob("*.choices")
    for text in ("", "[]", "sun", "rival\n", "\0"):
        kept.write_text(text)
        forget()
        assert set(pl.plan(make_graph()).assignment.values()) == {"ort"}


def test_figures_that_are_off_leave_the_built_in_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", "off")
    run_items(pl.plan(make_graph()), ENOUGH)
    assert Rival.runs == 0


def test_a_session_that_closes_early_releases_the_rival() -> None:
    with pl.BlockingSession(pl.plan(make_graph())) as session:
        while not Rival.runs:
            session.run({"x": X})
    assert contests._only_one.acquire(blocking=False)
    contests._only_one.release()


@pytest.mark.parametrize(
    ("found", "expected", "agree"),
    [
        ([1.0, 1000.1], [1.0, 1000.0], True),
        ([1.0, 1002.0], [1.0, 1000.0], False),
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [np.inf, 1.0], False),
        ([], [], True),
    ],
)
def test_tolerance(found: list[float], expected: list[float], agree: bool) -> None:
    assert contests.is_within_tolerance(np.array(found, "f4"), np.array(expected, "f4")) == agree


def test_integers_agree_only_if_equal() -> None:
    assert contests.is_within_tolerance(np.array([1, 2]), np.array([1, 2]))
    assert not contests.is_within_tolerance(np.array([1, 2]), np.array([1, 3]))
    assert find("rival").name == "rival"
