"""Runs that took long since other programs had the cores, by counters of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from plait.scheduler.dispatch import inline_policy, preemption
from plait.scheduler.dispatch.inline_policy import SLOW_NS, TRIALS, Estimates
from plait.scheduler.dispatch.preemption import PreemptionMeter

MS = 1_000_000


class Counters:
    """The counters and the clock of a thread."""

    def __init__(self) -> None:
        self.now_ns, self.ran_ns, self.waited_ns = 1, 0, 0

    def spend(self, ran: int = 0, waited: int = 0, slept: int = 0) -> None:
        """Let milliseconds pass."""
        self.now_ns += (ran + waited + slept) * MS
        self.ran_ns += ran * MS
        self.waited_ns += waited * MS


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    told = Counters()
    monkeypatch.setattr(preemption, "perf_counter_ns", lambda: told.now_ns)
    monkeypatch.setattr(preemption, "read_counters", lambda: (told.ran_ns, told.waited_ns))
    return told


@pytest.mark.parametrize(
    ("before", "run", "is_excused"),
    [
        ({}, {"ran": 1, "waited": 19}, True),
        ({}, {"ran": 11, "waited": 9}, False),
        ({}, {"slept": 19, "ran": 1}, False),
        ({"waited": 15}, {"slept": 19, "ran": 1}, False),  # it waited, but not in the run
        ({"slept": 15}, {"waited": 19, "ran": 1}, False),  # in doubt
        ({"slept": 5}, {"waited": 19, "ran": 1}, True),
    ],
)
def test_a_run_is_excused_if_others_had_the_core_and_it_cannot_have_slept(
    counters: Counters, before: dict[str, int], run: dict[str, int], is_excused: bool
) -> None:
    meter = PreemptionMeter()
    meter.refresh()
    counters.spend(**before)
    counters.spend(**run)
    assert meter.excuses(20 * MS) is is_excused


def test_without_an_earlier_reading_no_run_is_excused(counters: Counters) -> None:
    counters.spend(waited=20)
    meter = PreemptionMeter()
    assert not meter.excuses(20 * MS)
    counters.spend(waited=20)
    assert meter.excuses(20 * MS), "the first question was a reading"


def test_where_the_kernel_does_not_count_no_run_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", "on")
    for place in (tmp_path / "absent", tmp_path / "other"):
        (tmp_path / "other").write_text("words\n")
        monkeypatch.setattr(preemption, "_COUNTERS", str(place))
        meter = PreemptionMeter()
        meter.refresh()
        assert not meter.excuses(20 * MS)


def test_with_figures_off_nothing_depends_on_other_programs() -> None:
    assert preemption.read_counters() == (0, 0)


def test_only_a_function_that_slept_is_distrusted(
    counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = PreemptionMeter()
    meter.refresh()
    monkeypatch.setattr(inline_policy, "meter", meter)
    estimates = Estimates([0.0], [0])
    estimates.note(0, 1000)
    counters.spend(waited=20)
    estimates.note(0, 2 * SLOW_NS)
    assert estimates.are_brief(100 * MS)
    counters.spend(slept=20)
    estimates.note(0, 2 * SLOW_NS)
    for _ in range(TRIALS * TRIALS):
        assert not estimates.are_brief(100 * MS)
        estimates.note(0, 1000)
    assert estimates.are_brief(100 * MS)
