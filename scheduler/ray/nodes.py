"""Nodes of a cluster on this machine: a process that starts and ends them.

All of their processes are its children, and the kernel ends them with it, even if it is killed. It
ends when its parent asks for it or is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...devices.errors import DeviceUnavailableError
from ...devices.worker.launch import list_module_path

FOLDERS = "/tmp"
"""Parent of the clusters' folders; it is short, since paths of sockets are limited to 107 bytes."""

LOOPBACK = "127.0.0.1"
INLINE_LIMIT = "RAY_max_direct_call_object_size"
"""Variable of a node's environment: the largest number of bytes of a value sent with its call."""
END_S = 15.0
"""How long the nodes may take to end, before they are killed."""

_PROGRAM = "import sys; sys.path[:] = {}; from {} import main; main({!r}, {!r}, {!r}, {!r})"


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a cluster on this machine.

    Attributes
    ----------
    labels : Mapping of str to str
        The labels that `select` matches.
    num_cpus, num_gpus : int
        The numbers that actors can reserve.
    store_bytes : int
        Shared memory for values that are not sent inline.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    num_cpus: int = 1
    num_gpus: int = 0
    store_bytes: int = 128 << 20

    def options(self) -> dict[str, Any]:
        """Return the arguments of Ray's `Cluster.add_node`."""
        return {
            "labels": dict(self.labels),
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "object_store_memory": self.store_bytes,
        }


class LocalNodes:
    """A head and further nodes in this machine's loopback network; methods block.

    A value of up to `inline_limit` bytes is sent with the call. A node may take `timeout_s` to
    start. Raises DeviceUnavailableError if the head does not start; all that was started has ended
    then.
    """

    def __init__(self, head: RayNode, inline_limit: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._folder = tempfile.mkdtemp(prefix="plait-ray-", dir=FOLDERS)
        try:
            self._start(inline_limit)
            self.address: str = self._ask({"head": head.options()})["address"]
        except BaseException:
            self.close()
            raise

    def _start(self, inline_limit: int) -> None:
        self._process: subprocess.Popen[str] | None = None
        answers, theirs = os.pipe()
        self._answers: IO[str] = os.fdopen(answers)
        try:
            program = _PROGRAM.format(
                list_module_path(), __name__, self._folder, inline_limit, theirs, os.getpid()
            )
            with open(self._log, "w") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                    pass_fds=(theirs,),
                    start_new_session=True,  # Ctrl-C reaches this process alone, which decides
                    env=_make_environment(self._folder, inline_limit),
                )
        finally:
            os.close(theirs)

    @property
    def _log(self) -> Path:
        return Path(self._folder, "nodes.log")

    def add(self, node: RayNode) -> int:
        """Start `node`; return its number, or raise DeviceUnavailableError."""
        return int(self._ask({"add": node.options()})["node"])

    def remove(self, number: int) -> None:
        """End the node `number` at once; everything that runs there is lost."""
        self._ask({"remove": number})

    def close(self) -> None:
        process = self._process
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()  # if it lives: the kernel ends its children with it
                process.wait()
            self._process = None
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock, self._watched() as process:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                answer: dict[str, Any] = json.loads(self._answers.readline() or "{}")
            except OSError:
                answer = {}
        if "error" in answer or not answer:
            why = answer.get("error", "the process that starts it has ended")
            raise DeviceUnavailableError(
                f"a node of a local Ray cluster cannot be started: {why}",
                at=self._last_words(),
                fix="see that there is memory, and room in /tmp and /dev/shm",
            )
        return answer

    @contextmanager
    def _watched(self) -> Iterator[subprocess.Popen[str]]:
        process = self._process
        if process is None:
            raise DeviceUnavailableError("the local cluster is closed", fix="enter another one")
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            timer.join()

    def _last_words(self) -> str | None:
        with suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            return " | ".join(lines[-3:]) or None
        return None


def _make_environment(folder: str, inline_limit: int) -> dict[str, str]:
    return {
        **os.environ,
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on 127.0.0.1 only
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        INLINE_LIMIT: str(inline_limit),
        "RAY_task_rpc_inlined_bytes_limit": str(4 * inline_limit),
    }


def main(folder: str, inline_limit: int, answers_fd: int, parent: int) -> None:
    """Start and end nodes in `folder` as the process `parent` asks, until it closes our input.

    Answers are written to `answers_fd`. `inline_limit` is that of `Cluster`.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(Path(folder, "ray"), exist_ok=True)
    answers = os.fdopen(answers_fd, "w")
    nodes = _Nodes(inline_limit)
    try:
        for line in sys.stdin:
            try:
                answer = nodes.answer(json.loads(line))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        nodes.close()
        if os.getppid() != parent:  # which would remove it
            shutil.rmtree(folder, ignore_errors=True)


class _Nodes:
    def __init__(self, inline_limit: int) -> None:
        ray = importlib.import_module("ray.cluster_utils")
        self._cluster = ray.Cluster(shutdown_at_exit=True)
        self._nodes: dict[int, Any] = {}
        self._count = 0
        self._settings = {
            # A dead node fails five checks in 5 s, not 30 s; a busy one only answers late.
            "health_check_period_ms": 1000,
            "health_check_timeout_ms": 30_000,
            "health_check_failure_threshold": 5,
            "max_direct_call_object_size": inline_limit,
            "task_rpc_inlined_bytes_limit": 4 * inline_limit,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ((what, value),) = request.items()
        if what == "head":
            # Each process of Ray's takes two seconds to start; local nodes do not need these.
            spared = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
            self._add(value, **spared, _system_config=self._settings)
            return {"address": self._cluster.address}
        if what == "add":
            return {"node": self._add(value)}
        self._cluster.remove_node(self._nodes.pop(value), allow_graceful=False)
        return {"node": value}

    def close(self) -> None:
        self._cluster.shutdown()

    def _add(self, options: Mapping[str, Any], **more: Any) -> int:
        # On the main thread: the kernel ends the children of a thread when the thread ends.
        node = self._cluster.add_node(node_ip_address=LOOPBACK, **options, **more)
        self._count += 1
        self._nodes[self._count] = node
        return self._count


def describe_labels(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels of each of `nodes` as text, for the error if no node fits."""
    shown = []
    for node in nodes:
        own = {k: v for k, v in node["labels"].items() if not k.startswith("ray.io/")}
        shown.append(", ".join(f"{key}={value}" for key, value in own.items()) or "no labels")
    return shown
