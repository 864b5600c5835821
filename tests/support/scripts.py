"""Python scripts, each run by a process of its own as `python -W error script` would run it.

Most of what such a process does is importing plait, so one that has imported it is forked for each.
What a first import leaves behind is looked at elsewhere, by `test_first_use.py` for one.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from patience import WAIT_S

USUAL = ("plait.devices.kernels", "plait.scheduler.planner", "plait.scheduler.runtime")
"""What runs of most scripts import."""


class Ran(NamedTuple):
    """A script that has ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class ScriptRunner:
    """The process that is forked; it imports nothing but what any of the scripts does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, folder: Path) -> Ran:
        """Run a script in a folder; one that takes too long is killed, and fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as beside:
            written = [os.path.join(beside, name) for name in ("out", "err")]
            request = {"script": str(script), "folder": str(folder), "written": written}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            return Ran(status, *(Path(file).read_text() for file in written))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> None:
    """Fork for each request that comes in, and say with what status the child ended."""
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            # Of threads beside: those of numpy's BLAS, which starts them again in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _become(Path(request["script"]), request["folder"], request["written"])
            return  # and end as any program does
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(script: Path, folder: str, written: list[str]) -> None:
    """Run a script in this process, in the place of what ran before."""
    signal.alarm(int(WAIT_S))  # which ends it
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, file in enumerate(written, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), fd)
    main = ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"], sys.argv, sys.path[0] = main, [str(script)], str(script.parent)
    exec(compile(script.read_text(), str(script), "exec"), main.__dict__)


if __name__ == "__main__":
    import asyncio  # noqa: F401

    import plait
    import trio  # noqa: F401

    for name in ("GraphBuilder", "Session", "BlockingSession", "load", "plan", "run", "simulate"):
        getattr(plait, name)  # its modules are imported when it is first asked for
    for package in USUAL:
        folder = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}."):
            importlib.import_module(module.name)
    _serve()
