"""Resources that a session may forget: threads, processes, descriptors, memory."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Collection

from patience import WAIT_S
from plait.devices.forking import _inherited
from plait.devices.lane import ThreadLane


def lanes_processes_and_arenas() -> set[str]:
    """Return what only plait starts or opens; not threads of open lanes and sessions.

    Those start when needed.
    """
    is_open = bool(find_session_threads())
    lanes = [one for one in list(_inherited) if isinstance(one, ThreadLane)]
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread.name.startswith("plait")
        and thread not in [lane._thread for lane in lanes]
        and not (is_open and thread.name.startswith("plait-item"))
    }
    threads |= {f"lane {lane._name} ({id(lane)})" for lane in lanes if lane._queue is not None}
    arenas = {
        f"descriptor {fd}" for fd, target in _descriptors().items() if "plait-arena" in target
    }
    return threads | _child_processes() | arenas


def find_session_threads() -> set[threading.Thread]:
    """Return the threads of sessions with loops of their own."""
    return {one for one in threading.enumerate() if one.name == "plait-session"}


def await_dropped_sessions(before: Collection[threading.Thread]) -> None:
    """Wait for the end of sessions that were collected: their threads close them later."""
    for thread in find_session_threads().difference(before):
        thread.join(WAIT_S)


def held() -> Counter[str]:
    """Count threads, child processes, open files, and mappings of shared memory, by their names.

    Trio's own threads are left out: they stay for some seconds, to be used again.
    """
    threads = (thread.name for thread in threading.enumerate())
    names = [f"thread {name}" for name in threads if not name.startswith("Trio thread")]
    names += _child_processes()
    names += [f"descriptor of {_kind(target)}" for target in _descriptors().values()]
    names += [f"mapping of {line}" for line in _mappings()]
    return Counter(names)


def left_since(before: Counter[str]) -> Counter[str]:
    """Return what is held now and was not before, when all garbage has been collected."""
    left = held() - before
    if left:  # collecting takes longer than most of what is tested
        gc.collect()
        left = held() - before
    return left


def _child_processes() -> set[str]:
    try:  # most tests start none, which is quickly said
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    # One file per thread, each naming the children that this thread started; Linux only.
    listings = (f"/proc/self/task/{thread}/children" for thread in os.listdir("/proc/self/task"))
    return {f"process {pid}" for file in listings for pid in _read(file).split()}


def _descriptors() -> dict[str, str]:
    """Return what each descriptor leads to, by number."""
    found = {fd: _target(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {fd: target for fd, target in found.items() if target}


def _kind(target: str) -> str:
    """Return the target without the number of a socket or pipe."""
    return target.split(":[")[0]


def _mappings() -> list[str]:
    lines = _read("/proc/self/maps").splitlines()
    return [line.split(maxsplit=5)[-1] for line in lines if "plait-arena" in line]


def _read(file: str) -> str:
    try:
        with open(file) as opened:
            return opened.read()
    except OSError:  # the thread ended meanwhile
        return ""


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the descriptor of the listing itself
        return ""
