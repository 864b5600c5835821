"""Run ``plait`` with these arguments, or a script, as on a system that has little of POSIX.

As a program: ``python without_posix.py plait devices`` or ``python without_posix.py SCRIPT``. What
others import from the system is imported first; then what Windows lacks is taken away from Python.
"""

from __future__ import annotations

import ctypes  # noqa: F401 - the imports that are not used see the system as it is
import mmap
import os
import runpy
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from functools import partial

import msgspec  # noqa: F401
import numpy  # noqa: F401
import trio  # noqa: F401

LACKING = {
    os: "memfd_create eventfd eventfd_read fchmod fchown register_at_fork sched_getaffinity"
    " sched_setaffinity fork getuid geteuid waitid pidfd_open killpg getpgid uname mkfifo sysconf"
    " setsid P_PID WSTOPPED WNOHANG WNOWAIT EFD_CLOEXEC EFD_NONBLOCK",
    socket: "AF_UNIX send_fds recv_fds SCM_RIGHTS CMSG_LEN",
    signal: "pthread_sigmask SIGKILL SIGSTOP SIGCONT SIGHUP SIG_BLOCK SIG_SETMASK",
    mmap: "MAP_SHARED MAP_PRIVATE MAP_POPULATE PROT_READ PROT_WRITE",
}
MODULES = ("fcntl", "resource", "termios", "pwd", "grp")

if __name__ == "__main__":
    # Python has one of its own where there is no AF_UNIX, over the loopback; event loops take it.
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)
    for module, names in LACKING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    del sys.argv[0]
    if sys.argv[0] == "plait":
        runpy.run_module("plait", run_name="__main__")
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
