"""Workers of scripts: functions in `__main__`, missing guards, parents that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import WAIT_S

from .worker_bench import Gate

FUNCTIONS = '''
import ctypes, os, sys
import numpy as np
import plait as pl

print("imported as", __name__, "with", sys.argv[1:], flush=True)

@pl.operator()
def thrice(x):
    return x * np.float32(3)

@pl.operator(name="by_hand")
def negate(x):
    return -x

@pl.operator()
def wait_for(x, *, path: str = ""):
    with open(path) as pipe:
        pipe.read()
    return x

@pl.operator()
def wait_with_the_lock(x, *, path: str = ""):
    """Keep the interpreter's lock meanwhile: no other thread can run."""
    c = ctypes.PyDLL(None)
    c.read(c.open(path.encode(), os.O_RDONLY), ctypes.create_string_buffer(1), 1)
    return x

def graph(*functions, **attributes):
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (2,))
    for function in functions:
        x = b.call(function, x, **attributes)
    b.output("y", x)
    return b.build()

def run(*functions):
    x = np.array([1, 2], np.float32)
    print(pl.run(graph(*functions), {"x": x}, devices=["worker:0"])["y"])
'''

OPENED = """
from plait.devices.memory import SharedArena
from plait.devices.worker.device import WorkerDevice

def opened():
    device = WorkerDevice("worker:0")
    device.open()
    return device

def stuck(path, function=wait_for):
    device, arena = opened(), SharedArena(1024)
    made = graph(function, path=path)
    views = {n: device.view(arena, 64 * i, s) for i, (n, s) in enumerate(made.tensors.items())}
    event = device.submit(device.compile(made, views))
    print("worker", device.pid, flush=True)
    event.wait()
"""


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=cwd)


def script(path: Path, *parts: str) -> str:
    path.write_text("\n".join(parts))
    return str(path)


def guarded(*lines: str) -> str:
    return "\n".join(['if __name__ == "__main__":', *(f"    {line}" for line in lines)])


@pytest.mark.slow
@pytest.mark.parametrize("is_script", [False, True])
def test_a_function_may_be_of_another_module_than_the_one_that_makes_it_an_operator(
    is_script: bool, tmp_path: Path
) -> None:
    wraps = "import other\nimport plait as pl\nthrice = pl.operator()(other.thrice)"
    (tmp_path / "other.py").write_text("def thrice(x):\n    return x * x.dtype.type(3)")
    (tmp_path / "wraps.py").write_text(wraps)
    made = wraps if is_script else "from wraps import thrice"
    path = script(tmp_path / "main.py", FUNCTIONS, made, guarded("run(thrice)"))
    result = python(path, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "[3. 6.]" in result.stdout


def test_functions_of_a_script_run_in_a_worker(tmp_path: Path) -> None:
    path = script(tmp_path / "program.py", FUNCTIONS, guarded("run(thrice, negate)"))
    done = python(path, "an argument")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "imported as __main__ with ['an argument']",
        "imported as __plait_main__ with ['an argument']",
        "[-3. -6.]",
    ]
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_partial_of_a_script_runs_in_a_worker(tmp_path: Path) -> None:
    functions = "from functools import partial\nimport plait as pl\ndef add(x, y): return x + y"
    called = "def call(f, x): return f(x)"
    run = "with pl.pipeline(pl.step(partial(call, partial(add, 3)), workers=1), example=1) as pipe:"
    path = script(tmp_path / "main.py", functions, called, guarded(run, "    print(pipe.run(4))"))
    assert python(path).stdout == "7\n"


def test_functions_of_a_module_that_is_run_may_import_relatively(tmp_path: Path) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    script(package / "__init__.py")
    script(package / "functions.py", FUNCTIONS)
    own = "@pl.operator()\ndef half(x):\n    return x * np.float32(0.5)\n"
    head = "from .functions import *\nfrom .functions import np, pl\n"
    script(package / "app.py", head, own, guarded("run(thrice, half)"))
    done = python("-m", "some_package.app", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[1.5 3. ]"


def test_a_script_without_a_guard_is_told_so_and_ends_in_the_worker(tmp_path: Path) -> None:
    lines = "opened()", "try: run(thrice)", "finally: print('end', flush=True)"
    done = python(script(tmp_path / "program.py", FUNCTIONS, OPENED, *lines))
    assert done.returncode == 1
    assert done.stdout.splitlines()[2:] == ["end"]
    assert done.stderr.count("starts workers, in a worker") == 1
    assert done.stderr.count('if __name__ == "__main__"') == 1
    assert done.stderr.count("loop_thread.py") < 5  # not also those of the worker
    assert "process.py" not in done.stderr


def test_a_function_under_the_guard_is_not_found(tmp_path: Path) -> None:
    late = ["@pl.operator()", "def late(x):", "    return x", "run(late)"]
    done = python(script(tmp_path / "program.py", FUNCTIONS, guarded(*late)))
    assert done.returncode == 1
    assert "does not define operator '__main__.late'" in done.stderr
    late = ["def late(x): return x", "pl.pipeline(pl.step(late, workers=1), example=1)(1)"]
    done = python(script(tmp_path / "program.py", "import plait as pl", guarded(*late)))
    assert 'above if __name__ == "__main__"' in done.stderr


@pytest.mark.parametrize("way", ["-", "-c"])
def test_a_step_of_an_interactive_session_is_sent_by_value(way: str) -> None:
    pytest.importorskip("cloudpickle")
    step = "import plait as pl\nscale = 2\ndef twice(x): return scale * x\n"
    code = f"{step}print(pl.pipeline(pl.step(twice, workers=1), example=1)(4))"
    command = [sys.executable, way, *([code] if way == "-c" else [])]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_a_function_of_an_interactive_session_is_refused() -> None:
    done = python("-c", FUNCTIONS + OPENED + "stuck('')")
    assert done.returncode == 1
    assert "is defined in an interactive session" in done.stderr
    assert "%%writefile steps.py" in done.stderr
    assert "by_value=True" in done.stderr
    assert "put it into a module" in done.stderr


def test_plait_need_not_be_installed(tmp_path: Path) -> None:
    """Its sources in a folder that only the script knows of will do."""
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / "plait").symlink_to(Path(__file__).parents[2])
    head = f"import sys; sys.path.insert(0, {str(tmp_path / 'vendored')!r})"
    where = "print(pl.__file__, flush=True)"
    done = python(script(tmp_path / "program.py", head, FUNCTIONS, where, guarded("run(thrice)")))
    assert done.stderr == ""
    assert done.stdout.count(f"{tmp_path}/vendored/plait/__init__.py") == 2  # here and there


def test_a_parent_that_ends_without_closing_leaves_no_process(tmp_path: Path) -> None:
    lines = guarded("device = opened()", "print('worker', device.pid, flush=True)", "os._exit(0)")
    done = python(script(tmp_path / "program.py", FUNCTIONS, OPENED, lines))
    assert done.returncode == 0
    wait_until_gone(worker_of(done.stdout))


@contextmanager
def parent_of_a_stuck_worker(
    tmp_path: Path, function: str = "wait_for"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a script whose worker is in the middle of a function; give both."""
    gate = Gate(tmp_path / "gate")
    program = guarded(f"stuck({gate.path!r}, {function})")
    path = script(tmp_path / "program.py", FUNCTIONS, OPENED, program)
    command = [sys.executable, path]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        writer = gate.arrived()
        assert parent.stdout is not None
        lines = iter(parent.stdout.readline, "")
        yield parent, worker_of(next(line for line in lines if line.startswith("worker")))
        os.close(writer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_parent_that_is_killed_takes_a_stuck_worker_along(
    tmp_path: Path, how: signal.Signals
) -> None:
    with parent_of_a_stuck_worker(tmp_path) as (parent, worker):
        parent.send_signal(how)
        parent.wait(WAIT_S)
        wait_until_gone(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("state", ["is stopped", "holds the lock"])
def test_a_parent_that_is_killed_takes_along_a_worker_that_cannot_run(
    tmp_path: Path, state: str
) -> None:
    function = "wait_with_the_lock" if state == "holds the lock" else "wait_for"
    with parent_of_a_stuck_worker(tmp_path, function) as (parent, worker):
        if state == "is stopped":
            os.kill(worker, signal.SIGSTOP)
        parent.kill()
        parent.wait(WAIT_S)
        wait_until_gone(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"])
def test_a_fork_of_a_parent_that_is_killed_keeps_no_worker_alive(tmp_path: Path, fork: str) -> None:
    """Nor if the fork is none of Python's, and has the connection open."""
    lines = guarded(
        "device = opened()",
        f"child = {fork}",
        "if child == 0:",
        "    signal.alarm(60)",
        "    signal.pause()",
        "print('child', child, 'worker', device.pid, flush=True)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    path = script(tmp_path / "program.py", "import signal", FUNCTIONS, OPENED, lines)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = next(line for line in parent.stdout if line.startswith("child"))
        try:
            wait_until_gone(worker_of(line))
        finally:
            os.kill(int(line.split()[1]), signal.SIGKILL)


def worker_of(output: str) -> int:
    return int(output.split("worker ")[1].split()[0])


def wait_until_gone(pid: int) -> None:
    """Wait until a process, not ours to reap, has ended."""
    deadline = time.monotonic() + WAIT_S
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < deadline:
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.002)
    raise TimeoutError(f"process {pid} lives on")
