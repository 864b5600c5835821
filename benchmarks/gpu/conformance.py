"""Do the tests that need a GPU pass: conformance, operators, models, the device itself?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from gpu.question import Row, answer, time_left_s
from gpu.target import Target, Unsuitable

ROOT = Path(__file__).parents[2]
LIMIT_S, GRACE_S = 240.0, 15.0
ALONE_SHARE = 0.15
"""Of the time, for tests that failed: each is run again in a process of its own."""
MOST_PROCESSES = 12
"""What takes long in the tests is NVRTC, on the host; contexts take memory of the GPU."""
PLUGINS = ("pytest_trio.plugin", "xdist.plugin", "_hypothesis_pytestplugin")
FOLDERS = ("tests/conformance", "tests/devices", "tests/scheduler")
SHOWN = 40
"""So many failures are told by name."""


def tests(target: Target) -> Iterator[Row]:
    """All tests marked `gpu`."""
    if not target.has_cupy:
        raise Unsuitable("the tests marked gpu are of CUDA devices")
    deadline = time.monotonic() + min(LIMIT_S, time_left_s()) - GRACE_S
    with tempfile.TemporaryDirectory() as folder:
        # Compiled once for all processes.
        os.environ["PLAIT_KERNEL_CACHE"] = str(Path(folder) / "cubins")
        report = Path(folder) / "report.xml"
        options = ["-m", "gpu", f"--junitxml={report}", *side_by_side()]
        limit_s = (1 - ALONE_SHARE) * (deadline - time.monotonic())
        ended = run_within(pytest_command(*options, *FOLDERS), limit_s)
        yield from results(report)
        if not ended:
            yield Row("the tests", "did not come to an end in time", status="failed")
        yield from alone(failed_in(report), deadline)


def pytest_command(*options: str) -> list[str]:
    """Return what runs pytest with the plugins that the tests know of, whatever else there is."""
    plugins = [option for name in PLUGINS if _is_installed(name) for option in ("-p", name)]
    usual = ["-q", "--tb=line", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return [sys.executable, "-m", "pytest", *plugins, *usual, *options]


def side_by_side() -> list[str]:
    """Return what has pytest run tests on several processes, where it can.

    By test, not by file: two files have most of them.
    """
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    if processes < 2 or not _is_installed("xdist.plugin"):
        return []
    return [f"--numprocesses={processes}", "--dist=worksteal"]


def failed_in(report: Path) -> list[str]:
    """Return the tests that failed, as pytest takes them."""
    failed = [case for case in _cases(report) if _outcome(case)[0] == "failed"]
    named = [(case.get("classname", ""), case.get("name")) for case in failed]
    return [f"{module.replace('.', '/')}.py::{name}" for module, name in named if module]


def alone(names: list[str], deadline: float) -> Iterator[Row]:
    """Run tests that failed again, each by itself: a GPU that one broke fails all that follow."""
    for name in names:
        left_s = deadline - time.monotonic() - GRACE_S
        if left_s < GRACE_S:
            return
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            run_within(pytest_command(f"--junitxml={report}", name), left_s)
            outcomes = {_outcome(case)[0] for case in _cases(report)} or {"not done"}
        yield Row(f"alone: {name}"[:300], ", ".join(sorted(outcomes)))


def run_within(command: list[str], limit_s: float) -> bool:
    """Run pytest; interrupt it when its time is up, so that it still says what it has found."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr) as process:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return False
    return True


def results(report: Path) -> Iterator[Row]:
    """Return what a report of pytest's says, by folder."""
    counts: dict[str, Counter[str]] = {}
    failures, skips = list[str](), Counter[str]()
    for case in _cases(report):
        outcome, told = _outcome(case)
        counts.setdefault(_folder(case.get("classname", "")), Counter())[outcome] += 1
        if outcome == "failed":
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            failures.append(f"{name}: {told}")
        if outcome == "skipped":
            skips[told] += 1
    for folder, found in sorted(counts.items()):
        yield Row(f"{folder}: passed", found["passed"])
        yield Row(f"{folder}: failed", found["failed"], at_most=0)
        yield Row(f"{folder}: skipped", found["skipped"])
    for failure in failures[:SHOWN]:
        yield Row(failure[:300], "failed", expected="passed")
    for reason, count in skips.most_common(SHOWN):
        yield Row(f"skipped: {reason[:200]}", count)


def _cases(report: Path) -> list[ElementTree.Element]:
    """Return the tests in a report; none where pytest was ended before it wrote one."""
    return list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []


def _is_installed(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            message = found.get("message", "")
            if message.startswith("collection"):  # the reason stands below
                return outcome, (found.text or message).strip().splitlines()[-1]
            return outcome, next(iter(message.splitlines()), "")
    return "passed", ""


def _folder(classname: str) -> str:
    """Return ``tests/devices`` for ``tests.devices.test_cuda_gpu``."""
    return "/".join(classname.split(".")[:2]) or "not collected"


if __name__ == "__main__":
    answer(tests)
