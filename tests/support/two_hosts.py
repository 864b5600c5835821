"""Two hosts on this machine: network namespaces with a cable between them, and a node in each.

Needs the rights to make namespaces, `ip`, `unshare` and `nsenter`; `why_not` says what is missing.
Only processes that were started here are ended, by their ids.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ADDRESSES = {"near": "10.213.77.1", "far": "10.213.77.2"}
PORT = 6399
LONGEST_S = 300
STARTS = 4
"""Attempts: Ray gives a node half a minute to start, and no option gives it more."""


def why_not() -> str | None:
    """Return why there can be no two hosts; None if there can."""
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} are missing"
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "namespaces are not allowed here"


class TwoHosts:
    """The near one, where drivers run, and the far one; each has a label ``plait-host``."""

    def __init__(self, pids: Mapping[str, int], folder: Path, env: Mapping[str, str]) -> None:
        self._pids = pids
        self.env = dict(env)
        self.folder = folder
        self.address = f"{ADDRESSES['near']}:{PORT}"
        self.nodes: dict[str, ExitStack] = {}

    def inside(self, host: str, *command: str) -> list[str]:
        """Return a command line that runs a command on a host."""
        return ["nsenter", "-t", str(self._pids[host]), "-n", *command]

    def cut(self) -> None:
        """Pull the cable out."""
        self._link("down")

    def mend(self) -> None:
        """Put it in again."""
        self._link("up")

    def kill(self, host: str) -> None:
        """End all processes of a host's node at once."""
        self.nodes[host].close()

    def add(self, host: str) -> None:
        """Start another node on a host; raises NodeError if Ray does not start it."""
        _start(self.nodes[host], self, host, [f"--address={self.address}"])

    def _link(self, state: str) -> None:
        subprocess.run(self.inside("far", "ip", "link", "set", "cable-far", state), check=True)

    def driver(
        self, program: str, *arguments: str, timeout_s: float = LONGEST_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on the near host, to its end."""
        command = self.inside("near", sys.executable, program, self.address, *arguments)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=self.env
        )


class NodeError(Exception):
    """A node of Ray did not start."""


@contextmanager
def two_hosts(inline_limit: int = 64 << 20) -> Iterator[TwoHosts]:
    """Make two hosts with a node each; nothing is left of them afterwards.

    Raises
    ------
    NodeError
        If Ray does not start a node in several attempts.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="plait-2h-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pids = {name: stack.enter_context(_namespace()) for name in ADDRESSES}
        env = {
            **{k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")},
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "disabled",  # or a token in the home folder would be asked for
            "RAY_max_direct_call_object_size": str(inline_limit),
            "RAY_task_rpc_inlined_bytes_limit": str(4 * inline_limit),
        }
        hosts = TwoHosts(pids, folder, env)
        _connect(pids, hosts)
        for name, how in (
            ("near", ["--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor"]),
            ("far", [f"--address={hosts.address}"]),
        ):
            hosts.nodes[name] = stack.enter_context(ExitStack())
            _start(hosts.nodes[name], hosts, name, how)
        yield hosts


@contextmanager
def _namespace() -> Iterator[int]:
    """Make a namespace, which lasts as long as a process in it; yields its id."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", str(LONGEST_S)])
    try:
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{holder.pid}/ns/net") == ours:
            time.sleep(0.01)
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


def _connect(pids: Mapping[str, int], hosts: TwoHosts) -> None:
    near, far = (str(pids[name]) for name in ("near", "far"))
    add = ["ip", "link", "add", "cable-near", "netns", near, "type", "veth"]
    subprocess.run([*add, "peer", "name", "cable-far", "netns", far], check=True)
    for name, address in ADDRESSES.items():
        for command in (
            ["addr", "add", f"{address}/24", "dev", f"cable-{name}"],
            ["link", "set", f"cable-{name}", "up"],
            ["link", "set", "lo", "up"],
        ):
            subprocess.run(hosts.inside(name, "ip", *command), check=True)


def _start(stack: ExitStack, hosts: TwoHosts, name: str, how: list[str]) -> None:
    """Start a node that ends with the stack."""
    for _ in range(STARTS - 1):
        with suppress(NodeError):
            stack.enter_context(_node(hosts, name, how))
            return
    stack.enter_context(_node(hosts, name, how))


@contextmanager
def _node(hosts: TwoHosts, name: str, how: list[str]) -> Iterator[None]:
    """Start a node on a host, and end all of its processes."""
    command = hosts.inside(
        name,
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
        *how,
        f"--node-ip-address={ADDRESSES[name]}",
        "--num-cpus=1",
        "--disable-usage-stats",
        "--include-log-monitor=false",
        f"--object-store-memory={128 << 20}",
        f"--labels=plait-host={name}",
        *([f"--temp-dir={hosts.folder / 'ray'}"] if name == "near" else []),
    )
    log = hosts.folder / f"{name}.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=hosts.env, start_new_session=True
        )
    try:
        while "runtime started" not in log.read_text():
            if process.poll() is not None:
                raise NodeError(f"the node of {name} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        for pid in _session(process.pid):  # a node whose cable is cut would take its time
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _session(leader: int) -> Iterator[int]:
    """Return the processes that a process has started, itself included."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError):
            if os.getsid(int(entry.name)) == leader:
                yield int(entry.name)
