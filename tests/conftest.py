"""Fixtures of all tests: hypothesis's profile, and a watch over what a test leaves behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino_anywhere
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from plait.graph.core.operator import list_operators, unregister_operator
from plait.scheduler.dispatch import hand_over
from plait.scheduler.planner import planner
from plait.scheduler.planner.bounded_shapes import BoundedShapes
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.plan import Plan, Shapes
from resources import await_dropped_sessions, find_session_threads, lanes_processes_and_arenas
from scripts import ScriptRunner

FIXED_EXAMPLES = 15
"""Hypothesis draws fixed examples: more of them would find nothing new."""
settings.register_profile(
    "fixed", deadline=None, print_blob=True, derandomize=True, max_examples=FIXED_EXAMPLES
)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("fixed")  # unless the command line says --hypothesis-profile=search
os.environ.setdefault("PLAIT_KERNEL_CACHE", "off")  # tests compile what they test
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # oracles do not report their use either
os.environ.setdefault("PLAIT_DEVICES", "cpu")  # "auto" is the same on all machines
os.environ.setdefault("PLAIT_FIGURES", "off")  # what is chosen does not depend on the machine
os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # PoCL takes half as long
os.environ.setdefault("PLAIT_CHECK_PASSES", "1")  # a pass that breaks a graph is named
SPARED = str(Path(__file__).parent / "support" / "spared")
"""Stands before what takes long to import and is not used; each process that tests start looks."""
if SPARED not in (found := os.environ.get("PYTHONPATH", "")):
    os.environ["PYTHONPATH"] = f"{SPARED}{os.pathsep}{found}".rstrip(os.pathsep)
gc.disable()  # until all is collected, of which little is garbage: a third of the time


ROOT = Path(__file__).parents[1]


class Checkout:
    """Has the checkout collected as a folder: it is the package, but tests are no modules of it.

    Else it would have to have a name that can be imported, which an unpacked distribution has not.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Dir | None:
        """Return the root as a folder; leave all others to pytest."""
        return pytest.Dir.from_parent(parent, path=path) if path == ROOT else None


STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what tests start, also where the shell has it ignored: in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    openvino_anywhere.install()
    config.pluginmanager.register(Checkout())
    config.stash[STDERR] = os.dup(2)  # while a test runs, what it writes there is kept
    if sys.dont_write_bytecode and (cache := getattr(config, "cache", None)):
        _keep_bytecode(cache.mkdir("bytecode"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the time be set after which a test is taken to hang."""
    told = "seconds after which all stacks are printed and the process ends, 0 for never"
    parser.addini("hang_timeout", told, default="300")


def _keep_bytecode(folder: Path) -> None:
    """Have modules compiled once for all processes, in a folder apart from the sources.

    Without bytecode collecting takes twice as long, and so does plait's import in each of the
    hundreds of processes that tests start.
    """
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the watch for tests that hang."""
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[STDERR])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


VERIFIED_NODES = 80
"""Larger plans are verified by tests of their own: the check is quadratic."""


SLOW_WEIGHT = 200
"""A slow test takes two seconds, more or less, and any other ten milliseconds."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one process more than cores: it works while others wait for what they have started."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share out files rather than tests, and some files as one, unless processes steal tests."""
    from sharing_out import ByFile  # where there is no xdist, nobody asks

    if config.getoption("dist") == "worksteal":
        return None

    return ByFile(config, log)


REARM_S = 30
"""A timer is a thread: one that starts and ends with each test takes as long as a small test."""
ARMED_S = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have stacks printed where a test hangs, and processes of xdist tell of results alone.

    They would send six messages for each test, which take both sides longer than a small test.
    """
    _watch_for_hangs(item.config)
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration > TOLD_S:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


TOLD_S = 0.1
"""Fixtures that take longer are among the slowest tests, which are listed."""


def _watch_for_hangs(config: pytest.Config) -> None:
    timeout_s, now_s = float(config.getini("hang_timeout")), time.monotonic()
    if timeout_s and now_s - config.stash.get(ARMED_S, -REARM_S) >= REARM_S:
        config.stash[ARMED_S] = now_s
        # Another process takes over, and the test that hung fails by name.
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every other process import files from the last on: one reads what the other compiled."""
    report = yield
    backwards = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    if backwards and isinstance(collector, pytest.Dir):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that take long first: no process ends long after the others."""
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += SLOW_WEIGHT if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: (-weights[item.path], item.path))
    _leave_cases_to_test_all(items)
    if settings().derandomize:
        for item in items:
            _draw_less(getattr(item, "obj", None))


def _leave_cases_to_test_all(items: list[pytest.Item]) -> None:
    """Mark as extended all cases but the first of each slow test with parameters."""
    begun = set[tuple[Path, str]]()
    for item in items:
        if item.get_closest_marker("slow"):
            test = item.path, getattr(item, "originalname", item.name)
            if test in begun:
                item.add_marker("extended")
            begun.add(test)


def _draw_less(test: Any) -> None:
    """Let a test that asks for many examples have a third of them, if they are always the same."""
    asked = getattr(test, "_hypothesis_internal_use_settings", None)
    if isinstance(asked, settings):
        fewer = min(asked.max_examples, max(asked.max_examples // 3, FIXED_EXAMPLES))
        test._hypothesis_internal_use_settings = settings(asked, max_examples=fewer)


def pytest_collection_finish() -> None:
    """Take what was imported out of the collector's sight: tests that call it take half as long.

    Garbage among it stays: each process would look for it for the better part of a second.
    """
    gc.freeze()
    gc.set_threshold(5_000)  # what is tested makes little garbage, too
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Take what a file leaves out of the collector's sight, too, once its garbage is collected.

    Else each `gc.collect()` of a test looks at all that was imported and cached before it.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _every_plan_is_sound() -> Iterator[None]:
    """Check the memory of each plan that any test makes."""
    make_plan, fit = planner.make_plan, BoundedShapes.fit

    def verified(*arguments: Any) -> Plan:
        plan = make_plan(*arguments)
        if plan.is_static and len(plan.graph.nodes) <= VERIFIED_NODES:
            verify_memory(plan)
        return plan

    def verified_fit(self: BoundedShapes, shapes: Shapes) -> Plan | None:
        plan = fit(self, shapes)
        if plan is not None and len(plan.graph.nodes) <= VERIFIED_NODES:
            # Later stages are still those for the largest lengths.
            made = [one for stage in self._plan.stages for one in stage.computes]
            read = {name for one in made for name in one.tensors if name in self._graph.producers}
            largest = {name: self._plan.graph.tensors[name] for name in read}
            graph = replace(plan.graph, tensors={**plan.graph.tensors, **largest})
            verify_memory(replace(plan, graph=graph))
        return plan

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(planner, "make_plan", verified)
        monkeypatch.setattr(BoundedShapes, "fit", verified_fit)
        yield


@pytest.fixture(autouse=True)
def _hand_overs_take_the_nominal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the hand-overs that earlier tests measured."""
    for name in ("_measured_ns", "_measured_at_ns", "_noted_ns"):
        monkeypatch.setattr(hand_over, name, 0)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test after which a lane, a child process or a shared arena lives on."""
    before, sessions = lanes_processes_and_arenas(), find_session_threads()
    yield
    if any("plait-session" in one for one in lanes_processes_and_arenas() - before):
        await_dropped_sessions(sessions)
    left = sorted(lanes_processes_and_arenas() - before)
    assert not left, f"the test left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def scripts() -> Iterator[ScriptRunner]:
    """Run scripts, each in a process of its own, without importing plait for each."""
    runner = ScriptRunner()
    yield runner
    runner.close()


@pytest.fixture
def forget_operators() -> Iterator[None]:
    """Unregister the operators that a test defines: the next test may use their names."""
    before = set(list_operators())
    yield
    for name in set(list_operators()) - before:
        unregister_operator(name)
