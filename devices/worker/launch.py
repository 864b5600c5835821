"""Starting and ending the process of a worker."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Collection
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

from ...graph.values.errors import WireError
from ...version import VERSION
from ..blas import build_environment
from ..errors import DeviceUnavailableError
from ..memory import SharedArena
from .wire import WINDOW, Channel, Hello

START_S = 60.0
"""Most time until a worker's first message: it imports numpy, on a machine that may be busy."""

END_S = 5.0
"""Most time that a worker may live without its connection, before it is killed."""

_NEEDED = (
    (signal, "pthread_sigmask"),
    (socket, "socketpair"),
    (socket, "send_fds"),
    (socket, "recv_fds"),
    (mmap, "MAP_SHARED"),
)
"""Functions of POSIX that some systems lack."""

PROCESS = f"{__package__}.process"
"""The module that a worker on this processor runs."""

Process: TypeAlias = "subprocess.Popen[bytes]"

# Import its modules from where ours come from, installed or not.
_PROGRAM = "import sys; sys.path[:] = {}; from {} import main; main({!r}, {}, {}, {})"


class Launched(NamedTuple):
    """A worker process that is ready."""

    process: Process
    channel: Channel
    flags: SharedArena
    """`WINDOW` 64-bit integers: the sequence numbers of cancelled requests."""


def launch(
    name: str, cores: int | None = None, bound: Collection[int] = (), module: str = PROCESS
) -> Launched:
    """Start the process of worker `name` with `main` of `module`, and wait until it is ready.

    It has `cores` threads (None: all), bound to the cores `bound`, if any, and dies with the
    calling thread. Raises DeviceUnavailableError if it does not start, or runs another version of
    plait.
    """
    lacking = [f"{of.__name__}.{what}" for of, what in _NEEDED if not hasattr(of, what)]
    if lacking:
        raise DeviceUnavailableError(
            f"{name!r} takes what this system lacks: {', '.join(lacking)}", fix="use 'cpu'"
        )
    with ExitStack() as undo:
        flags = SharedArena(WINDOW * array("q").itemsize)
        undo.callback(flags.close)
        try:
            ours, theirs = socket.socketpair()
            channel = Channel(ours, takes_fds=True)
            undo.callback(channel.close)
            with theirs:
                process = _spawn(name, cores, bound, module, theirs.fileno(), flags.fd)
            undo.callback(end, process, kill=True)
            ours.settimeout(START_S)
            hello = channel.receive(Hello)
            ours.settimeout(None)
        except (OSError, WireError) as error:
            raise _unavailable_error(f"{name!r} cannot be started: {error}") from error
        if hello is None:
            raise _unavailable_error(f"{name!r} died before it was ready: {end(process)}")
        if hello.version != VERSION:
            raise _unavailable_error(f"{name!r} runs plait {hello.version}, this process {VERSION}")
        undo.pop_all()
    return Launched(process, channel, flags)


def end(process: Process, *, kill: bool = False) -> str:
    """Wait until `process` has ended, and say how.

    It is ended by force at once with `kill`, otherwise after a while.
    """
    try:
        if kill:
            process.kill()
        status = process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"killed, {END_S:g} s after it had closed its connection"
    return f"killed by signal {-status}" if status < 0 else f"exited with status {status}"


def is_stopped(process: Process) -> bool:
    """Return whether `process` is stopped, e.g. by SIGSTOP; False if the system cannot say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it has ended
        return False
    return found is not None


def _spawn(
    name: str,
    cores: int | None,
    bound: Collection[int],
    module: str,
    connection_fd: int,
    flags_fd: int,
) -> Process:
    program = _PROGRAM.format(
        list_module_path(), module, name, connection_fd, flags_fd, os.getpid()
    )
    # Inherited by the process, so that Ctrl-C does not end it while it still imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    free = os.sched_getaffinity(0) if bound else frozenset[int]()
    try:
        if bound:
            os.sched_setaffinity(0, bound)  # of this thread, and so of its child from the start
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            env=None if cores is None else build_environment(cores),
            pass_fds=(connection_fd, flags_fd),
        )
    finally:
        if bound:
            os.sched_setaffinity(0, free)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def list_module_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]


def _unavailable_error(what: str) -> DeviceUnavailableError:
    fix = f"see what it printed; it runs {sys.executable}"
    return DeviceUnavailableError(what, fix=fix)
