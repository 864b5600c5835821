"""What all tests share: hypothesis's profile, and a watch over what a test leaves behind."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from plait.graph.operator import operators, unregister_operator
from plait.scheduler import planning
from plait.scheduler.memory.verify import verify_memory

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, max_examples=60)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


VERIFIED_NODES = 80
"""Larger plans are verified by tests of their own: the check is quadratic."""


@pytest.fixture(autouse=True)
def _every_plan_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the memory of each plan that any test makes."""
    decide = planning._decide

    def verified(*arguments: Any) -> planning.Plan:
        plan = decide(*arguments)
        if plan.is_static and len(plan.graph.nodes) <= VERIFIED_NODES:
            verify_memory(plan)
        return plan

    monkeypatch.setattr(planning, "_decide", verified)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test after which a lane, a child process or a shared arena lives on."""
    before = _alive()
    yield
    left = sorted(_alive() - before)
    assert not left, f"the test left behind: {', '.join(left)}"


@pytest.fixture
def forget_operators() -> Iterator[None]:
    """Unregister the operators that a test defines: the next test may use their names."""
    before = set(operators())
    yield
    for name in set(operators()) - before:
        unregister_operator(name)


def _alive() -> set[str]:
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread.name.startswith("plait")
    }
    return threads | _child_processes() | _shared_arenas()


def _child_processes() -> set[str]:
    # One file per thread, each naming the children that this thread started; Linux only.
    listings = Path("/proc/self/task").glob("*/children")
    return {f"process {pid}" for file in listings for pid in _read(file).split()}


def _shared_arenas() -> set[str]:
    descriptors = Path("/proc/self/fd").glob("*")
    return {f"descriptor {fd.name}" for fd in descriptors if "plait-arena" in _target(fd)}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread ended meanwhile
        return ""


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the descriptor of the listing itself
        return ""
