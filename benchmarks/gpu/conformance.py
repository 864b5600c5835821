"""Do the tests that need a GPU pass: conformance, operators, models, the device itself?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from gpu.question import Row, answer
from gpu.target import Target, Unsuitable

ROOT = Path(__file__).parents[2]
LIMIT_ENV, LIMIT_S = "PLAIT_GPU_TESTS_S", 150.0
GRACE_S = 20.0
FOLDERS = ("tests/conformance", "tests/devices", "tests/scheduler")
SHOWN = 40
"""So many failures are told by name."""


def tests(target: Target) -> Iterator[Row]:
    """All tests marked `gpu`."""
    if not target.has_cupy:
        raise Unsuitable("the tests marked gpu are of CUDA devices")
    limit_s = float(os.environ.get(LIMIT_ENV, LIMIT_S))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-m", "gpu", "-q", "--tb=line", "-p", "no:cacheprovider"]
        options += ["--continue-on-collection-errors", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *FOLDERS]
        ended = run_within(command, limit_s)
        yield from results(report)
    yield Row("the tests came to an end in time", "yes" if ended else "no", expected="yes")


def run_within(command: list[str], limit_s: float) -> bool:
    """Run pytest; interrupt it when its time is up, so that it still says what it has found."""
    with subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) as process:
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
    for case in ElementTree.parse(report).iter("testcase"):
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
