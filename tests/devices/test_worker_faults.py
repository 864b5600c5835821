"""Workers that fail, die, hang or talk nonsense: always an error, never a hang, nothing left."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait import devices
from plait.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceUnavailableError,
    KernelError,
)
from plait.devices.event import CancelledWorkError, Event
from plait.devices.worker import client as worker_client
from plait.devices.worker import launch as worker_launch
from plait.devices.worker.device import WorkerDevice
from plait.devices.worker.wire import WINDOW
from plait.graph.values.errors import GraphError

from . import worker_functions as functions
from .worker_bench import Bench, Bound, Gate, calls

MANY = 5 * WINDOW


def lost(event: Event) -> DeviceLostError:
    """Wait for an event that is to fail with its device."""
    with pytest.raises(DeviceLostError) as caught:
        event.wait(WAIT_S)
    return caught.value


def is_gone(pid: int) -> bool:
    """True when there is no such process, not even an unreaped one."""
    return not Path(f"/proc/{pid}").exists()


def test_a_graph_that_outlives_processes_keeps_nothing_of_them() -> None:
    device, graph = WorkerDevice("worker:0"), calls(functions.scale)
    clients = list[weakref.ref[worker_client.WorkerClient]]()
    for _ in range(3):
        device.open()
        assert device._client is not None
        clients.append(weakref.ref(device._client))
        with Bound(device, graph) as bound:
            bound.run(x=np.float32(1))
        device.close()
    del bound
    gc.collect()
    assert [client() for client in clients] == [None] * 3


# --- functions that raise


def test_a_function_that_raises_names_its_node_and_shows_its_traceback(bench: Bench) -> None:
    with Bound(bench.device, calls(functions.fail_if_negative)) as bound:
        with pytest.raises(KernelError, match="ValueError: a number is negative") as caught:
            bound.run(x=np.float32(-1))
        error = caught.value
        assert error.at is not None
        assert "node 'fail_if_negative0'" in error.at
        assert "'worker:0'" in error.at
        assert type(error.__cause__) is ValueError
        assert "in fail_if_negative" in "".join(error.__notes__)
        bound.run(x=np.float32(1))


def test_an_exception_of_another_class_is_named(bench: Bench) -> None:
    with pytest.raises(KernelError, match="CustomError: not one of Python's") as caught:
        bench.submit(functions.fail_in_its_own_way).wait(WAIT_S)
    cause = caught.value.__cause__
    assert isinstance(cause, pl.RemoteError)
    assert str(cause).endswith("worker_functions.CustomError: not one of Python's")
    assert "in fail_in_its_own_way" in cause.traceback
    assert "in fail_in_its_own_way" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "Own"])
def test_a_function_that_raises_what_is_no_exception_fails_its_work_alone(
    bench: Bench, kind: str
) -> None:
    with pytest.raises(KernelError, match=rf"{kind}: no Exception") as caught:
        bench.submit(functions.raise_what_is_no_exception, kind=kind).wait(WAIT_S)
    cause = caught.value.__cause__
    assert isinstance(cause, pl.RemoteError)
    assert cause.kind.rpartition(".")[2] == kind
    assert bench.works()


def test_an_exception_that_cannot_be_printed_is_named(bench: Bench) -> None:
    with pytest.raises(KernelError, match="MuteError: <unprintable MuteError>") as caught:
        bench.submit(functions.fail_without_a_word).wait(WAIT_S)
    assert isinstance(caught.value.__cause__, pl.RemoteError)
    assert bench.works()


def test_a_long_message_is_cut(bench: Bench) -> None:
    with pytest.raises(KernelError, match="characters more"):
        bench.submit(functions.fail_at_length).wait(WAIT_S)


def test_a_result_of_another_shape_is_refused(bench: Bench) -> None:
    with pytest.raises(KernelError, match=r"is float32\[8\], declared was float32\[4\]") as caught:
        bench.submit(functions.return_another_shape).wait(WAIT_S)
    assert type(caught.value.__cause__) is GraphError


def test_inputs_are_read_only(bench: Bench) -> None:
    with pytest.raises(KernelError, match="read-only"):
        bench.submit(functions.write_to_input).wait(WAIT_S)


def test_a_failure_does_not_touch_its_neighbours(bench: Bench) -> None:
    good, bad = bench.bind(functions.scale), bench.bind(functions.fail_in_its_own_way)
    events = [bench.device.submit(bad if i % 3 == 0 else good) for i in range(MANY)]
    events[-1].on_done(lambda _: None)
    for number, event in enumerate(events):
        if number % 3 == 0:
            with pytest.raises(KernelError):
                event.wait(WAIT_S)
        else:
            event.wait(WAIT_S)


# --- queues and cancellation


def test_submitting_never_blocks_however_much_is_queued(bench: Bench, gate: Gate) -> None:
    program = bench.bind(functions.scale)
    first = bench.submit(functions.wait_for, path=gate.path)
    writer = gate.arrived()
    events = [bench.device.submit(program) for _ in range(20_000)]
    assert not first.done
    os.close(writer)
    events[-1].wait(WAIT_S)
    assert all(event.done and event.error is None for event in (first, *events))


def test_work_cancelled_before_it_starts_is_skipped(
    bench: Bench, gate: Gate, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    program = bench.bind(functions.note, path=str(notes))
    first = bench.submit(functions.wait_for, path=gate.path)
    writer = gate.arrived()
    events = [bench.device.submit(program) for _ in range(MANY)]
    for event in events[::2]:
        event.cancel()
    os.close(writer)
    for number, event in enumerate(events):
        if number % 2 == 0:
            with pytest.raises(CancelledWorkError):
                event.wait(WAIT_S)
        else:
            event.wait(WAIT_S)
    assert first.error is None
    assert len(notes.read_text()) == MANY // 2


def test_work_that_has_started_is_not_cancelled(bench: Bench, gate: Gate) -> None:
    event = bench.submit(functions.wait_for, path=gate.path)
    writer = gate.arrived()
    event.cancel()
    os.close(writer)
    event.wait(WAIT_S)


def test_a_cancelled_program_ends_with_the_node_that_runs(
    bench: Bench, gate: Gate, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    b = pl.GraphBuilder("chain")
    x = b.call(functions.wait_for, b.input("x", "float32", (4,)), path=gate.path)
    b.output("y", b.call(functions.note, x, path=str(notes), name="later"))
    with Bound(bench.device, b.build()) as bound:
        event = bound.submit()
        writer = gate.arrived()
        event.cancel()
        os.close(writer)
        with pytest.raises(CancelledWorkError, match="before node 'later'"):
            event.wait(WAIT_S)
        assert not notes.exists()
        opener = threading.Thread(target=gate.open)
        opener.start()
        bound.run()
        opener.join()
        assert notes.read_text() == "."


def test_cancelling_what_is_done_touches_nothing_later(bench: Bench) -> None:
    program = bench.bind(functions.scale)
    for _ in range(2 * WINDOW):
        event = bench.device.submit(program)
        event.wait(WAIT_S)
        event.cancel()
    for _ in range(2 * WINDOW):
        bench.device.submit(program).wait(WAIT_S)


def test_closing_finishes_what_is_queued(bench: Bench, gate: Gate, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    program = bench.bind(functions.note, path=str(notes))
    bench.submit(functions.wait_for, path=gate.path)
    events = [bench.device.submit(program) for _ in range(MANY)]
    opener = threading.Thread(target=gate.open)
    opener.start()
    bench.device.close()
    opener.join()
    assert all(event.done and event.error is None for event in events)
    assert len(notes.read_text()) == MANY


# --- death


def test_a_worker_that_is_killed_fails_all_its_work_and_can_be_opened_again(bench: Bench) -> None:
    good, bad = bench.bind(functions.scale), bench.bind(functions.die)
    before = bench.device.submit(good)
    events = [bench.device.submit(program) for program in (bad, *[good] * MANY)]
    pid = bench.pid
    for event in events:
        assert lost(event).what == "worker:0 died: killed by signal 9"
    error = lost(events[-1])
    assert error.at == f"process {pid}, while running subgraph 'calls'"
    assert error.fix
    assert before.error is None
    assert lost(bench.device.submit(good)).what == error.what
    with pytest.raises(DeviceLostError, match="killed by signal 9"):
        bench.bind(functions.negate)
    assert is_gone(pid)
    bench.device.open()
    assert bench.works()
    assert bench.pid != pid


def test_a_worker_killed_from_outside_while_it_is_stuck(bench: Bench, gate: Gate) -> None:
    program = bench.bind(functions.wait_for, path=gate.path)
    events = [bench.device.submit(program) for _ in range(3)]
    writer = gate.arrived()
    os.kill(bench.pid, signal.SIGKILL)
    for event in events:
        assert "killed by signal 9" in lost(event).what
    os.close(writer)


def test_a_worker_killed_while_it_is_idle(bench: Bench) -> None:
    program = bench.bind(functions.scale)
    os.kill(bench.pid, signal.SIGKILL)
    assert "killed by signal 9" in lost(bench.device.submit(program)).what


def test_a_callback_of_lost_work_may_submit_more(bench: Bench) -> None:
    program = bench.bind(functions.scale)
    later: list[Event] = []
    bench.submit(functions.die).on_done(lambda _: later.append(bench.device.submit(program)))
    lost(bench.device.submit(program))
    lost(later[0])


@pytest.mark.parametrize("status", [0, 3])
def test_a_function_that_exits_takes_its_worker_along(bench: Bench, status: int) -> None:
    error = lost(bench.submit(functions.leave, status=status))
    assert error.what == f"worker:0 died: exited with status {status}"


def test_a_worker_that_sends_garbage_is_killed(bench: Bench) -> None:
    pid = bench.pid
    error = lost(bench.submit(functions.send_garbage))
    assert "worker:0 died: killed: a message claims" in error.what
    assert is_gone(pid)


def test_a_worker_that_closes_its_connection_is_lost(bench: Bench) -> None:
    assert "worker:0 died" in lost(bench.submit(functions.close_sockets)).what


def test_a_forked_grandchild_does_not_hide_a_death(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "grandchild"
    try:
        event = bench.submit(functions.die_before_a_child, path=str(path))
        assert "killed by signal 9" in lost(event).what
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_ctrl_c_is_left_to_the_parent(bench: Bench) -> None:
    bench.works()
    os.kill(bench.pid, signal.SIGINT)
    assert bench.works()


def test_a_worker_that_does_not_end_by_itself_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_launch, "END_S", 0.1)
    bench.submit(functions.linger).wait(WAIT_S)
    pid = bench.pid
    bench.device.close()
    assert is_gone(pid)


def test_closing_kills_an_idle_worker_that_is_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_client, "ANSWER_S", 0.05)
    program = bench.bind(functions.scale)
    pid = bench.pid
    os.kill(pid, signal.SIGSTOP)
    del program
    gc.collect()  # it has things to forget, too
    bench.device.close()
    assert is_gone(pid)
    assert "worker:0 was killed: it did nothing for 0.05 s" in caplog.text


def test_a_worker_that_is_stopped_while_it_is_waited_for_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is asked for what may take any time while it runs."""
    monkeypatch.setattr(worker_client, "ANSWER_S", 0.05)
    os.kill(bench.pid, signal.SIGSTOP)
    with pytest.raises(DeviceLostError, match=r"did nothing for 0\.05 s"):
        bench.bind(functions.scale)


def test_closing_lets_what_is_queued_take_its_time(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def look(process: worker_launch.Process) -> bool:
        looks.append(process.pid)
        if len(looks) == 3:
            gate.open()
        return False

    program = bench.bind(functions.wait_for, path=gate.path)  # looked at, it would open the gate
    monkeypatch.setattr(worker_client, "ANSWER_S", 0.01)
    monkeypatch.setattr(worker_client, "is_stopped", look)
    event = bench.device.submit(program)
    bench.device.close()
    assert event.done
    assert event.error is None
    assert len(looks) >= 3


def test_what_is_stopped_is_told_from_what_runs_and_what_has_ended(bench: Bench) -> None:
    process = bench.process
    assert not worker_launch.is_stopped(process)
    os.kill(bench.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, bench.pid, os.WSTOPPED | os.WNOWAIT)
    assert worker_launch.is_stopped(process)
    os.kill(bench.pid, signal.SIGCONT)
    os.waitid(os.P_PID, bench.pid, os.WCONTINUED | os.WNOWAIT)
    assert not worker_launch.is_stopped(process)
    bench.device.close()
    assert not worker_launch.is_stopped(process)


@pytest.mark.slow
def test_death_leaves_no_descriptor() -> None:
    def live_and_die() -> None:
        bench = Bench()
        lost(bench.submit(functions.die))
        bench.close()

    live_and_die()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        live_and_die()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# --- workers that do not start


def executable(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("lines", "patience_s", "what"),
    [
        (["exit 7"], WAIT_S, "'worker:0' died before it was ready: exited with status 7"),
        (["kill -9 $$"], WAIT_S, "'worker:0' died before it was ready: killed by signal 9"),
        (["exec sleep 3600"], 0.2, "'worker:0' cannot be started: timed out"),
    ],
)
def test_an_interpreter_that_does_not_become_a_worker(
    lines: list[str],
    patience_s: float,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_launch, "START_S", patience_s)
    monkeypatch.setattr(sys, "executable", executable(tmp_path / "python", *lines))
    before = len(os.listdir("/proc/self/fd"))
    device = WorkerDevice("worker:0")
    with pytest.raises(DeviceUnavailableError) as caught:
        device.open()
    assert caught.value.what == what
    del caught
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()
    device.open()
    device.close()


def test_an_interpreter_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(DeviceUnavailableError, match=r"cannot be started: .*No such file"):
        WorkerDevice("worker:0").open()


@pytest.mark.parametrize("spare", range(4))
def test_a_worker_that_too_few_files_are_left_for(spare: int) -> None:
    """Whatever takes the last one, the error is plait's, and nothing stays open."""
    before, (soft, hard) = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # descriptors may have gaps: this is the lowest that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, hard))
    try:
        with pytest.raises(pl.DeviceError, match="Too many open files"):
            WorkerDevice("worker:0").open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_launch, "VERSION", "99.0")
    with pytest.raises(DeviceUnavailableError, match=r"runs plait .*, this process 99\.0"):
        WorkerDevice("worker:0").open()


def test_a_missing_worker_is_reported_by_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    status = devices.probe("worker:0")
    assert not status.found
    assert "cannot be started" in status.reason


def test_compiling_on_a_dead_worker_is_an_error_of_the_device(bench: Bench) -> None:
    lost(bench.submit(functions.die))
    with pytest.raises(DeviceError):
        bench.bind(functions.scale)
