"""Hosts as the driver knows them: started when they are needed, and again when they are lost."""

from __future__ import annotations

import platform
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....devices.errors import DeviceUnavailableError
from ....version import VERSION
from ..actors import Actor, ActorPlacement, ActorSystem, result
from ..host import Host
from ..nodes import INLINE_LIMIT, labels_of
from .link import HostLink, closed_host_error
from .outbox import MOST_BYTES

RESTART_S = 10.0
"""So long a host that was lost is waited for at a time, before the next attempt."""

PINGS = 8
"""So many small calls tell how long one takes."""

ECHO_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostLatency:
    """How long it takes to a host and back.

    Attributes
    ----------
    call_s : float
        A call and its answer, both empty.
    bytes_per_s : float
        What either carries beyond that.
    """

    call_s: float
    bytes_per_s: float


class RemoteHost:
    """A process on a node of the cluster that devices are in; methods block.

    Parameters
    ----------
    name : str
    engine : ActorSystem
    placing : ActorPlacement
    start_s : float
        How long it may take to start.
    silence_s : float
        How long it may not answer before it is taken for lost.

    Attributes
    ----------
    memories : set of str
        Those of all remote devices on the host that were ever asked for.
    told : dict
        What devices there have answered, so far.
    """

    def __init__(
        self,
        name: str,
        engine: ActorSystem,
        placing: ActorPlacement,
        *,
        start_s: float = 60.0,
        silence_s: float = 30.0,
    ) -> None:
        self.name = name
        self.placing = placing
        self.memories: set[str] = set()
        self.told: dict[Hashable, Any] = {}
        self.on_failure: list[Callable[[], object]] = []
        self._engine = engine
        self._start_s, self._silence_s = start_s, silence_s
        self._lock = threading.Lock()
        self._link: HostLink | None = None
        self._way: HostLatency | None = None
        self._closed = False

    @property
    def way(self) -> HostLatency:
        """How long calls take; measured when it is started.

        Raises
        ------
        DeviceUnavailableError
            If it cannot be started.
        """
        self.link()
        assert self._way is not None
        return self._way

    @property
    def is_closed(self) -> bool:
        """True when it was closed for good."""
        return self._closed

    @property
    def cores(self) -> int | None:
        """How many cores devices there may use; all of its node's when none were asked for."""
        return max(1, int(self.placing.num_cpus)) if self.placing.num_cpus else None

    @property
    def pid(self) -> int | None:
        """The process's id on its node; None while there is none."""
        link = self._link
        return None if link is None or link.error is not None else int(link.hello["pid"])

    def link(self) -> HostLink:
        """Return the way to it; start it unless it runs.

        Raises
        ------
        DeviceUnavailableError
            If no node has room for it, or what runs there is another plait.
        """
        with self._lock:
            if self._closed:
                raise closed_host_error(f"ray:{self.name}")
            if self._link is None or self._link.error is not None:
                patience_s = self._start_s
                if self._link is not None:
                    # Items wait for a restart, and may run elsewhere: it is not waited for as long
                    # as for a first start.
                    patience_s = min(patience_s, RESTART_S)
                    self._link.close()
                self._link = self._started(patience_s)
            return self._link

    def close(self) -> None:
        """End it: whatever works there is lost."""
        self._closed = True  # which ends a start that is under way
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _started(self, patience_s: float) -> HostLink:
        actor = self._engine.start(Host, self.name, placing=self.placing)
        try:
            hello = self._greeted(actor, patience_s)
            clock_ns, self._way = _measured(actor)
        except TimeoutError as error:
            actor.kill()
            raise self._homeless_error(patience_s) from error
        except BaseException:
            actor.kill()
            raise
        return HostLink(
            self.name,
            actor,
            hello,
            clock_ns=clock_ns,
            silence_s=self._silence_s,
            on_loss=self._tell_failure,
        )

    def _greeted(self, actor: Actor, patience_s: float) -> dict[str, Any]:
        """Return who is there, if that is as good as this process."""
        try:
            hello: dict[str, Any] = result(
                actor.call("hello"), patience_s, given_up=lambda: self._closed
            )
        except TimeoutError:
            if self._closed:
                raise closed_host_error(f"ray:{self.name}") from None
            raise
        except Exception as error:
            raise DeviceUnavailableError(
                f"host {self.name!r} cannot be started: {error}",
                fix="see that the nodes have plait, of the same version as this process",
            ) from error
        check_host(self.name, hello)
        return hello

    def _homeless_error(self, patience_s: float) -> DeviceUnavailableError:
        wanted = [f"{key}={value}" for key, value in self.placing.select.items()]
        if self.placing.num_cpus or self.placing.num_gpus:
            wanted.append(f"{self.placing.num_cpus:g} CPUs and {self.placing.num_gpus:g} GPUs free")
        nodes = labels_of(self._engine.nodes())
        return DeviceUnavailableError(
            f"no node has taken host {self.name!r} in {patience_s:g} s",
            at=f"wanted: {', '.join(wanted) or 'any node'}; there are {len(nodes)} nodes: "
            + "; ".join(nodes),
            fix="start a node with these labels, free its resources, or ask for others",
        )

    def _tell_failure(self) -> None:
        for callback in list(self.on_failure):
            callback()


def _measured(actor: Actor) -> tuple[int, HostLatency]:
    """Return what to add to the host's clock, and how long calls take."""
    best_s, clock_ns = float("inf"), 0
    for _ in range(PINGS):
        before = time.perf_counter_ns()
        there: int = result(actor.call("clock_ns"), 60.0)
        after = time.perf_counter_ns()
        if (after - before) / 1e9 < best_s:
            best_s = (after - before) / 1e9
            # Of the fastest call: the less of it there is, the less can be on one side of the
            # middle.
            clock_ns = (before + after) // 2 - there
    data = np.zeros(ECHO_BYTES, np.uint8)
    echo_s = float("inf")
    for _ in range(3):
        start_s = time.perf_counter()
        result(actor.call("echo", data), 60.0)
        echo_s = min(echo_s, time.perf_counter() - start_s)
    # There and back, less what a call without bytes takes.
    return clock_ns, HostLatency(best_s, 2 * ECHO_BYTES / max(echo_s - best_s, 1e-5))


def check_host(name: str, hello: Mapping[str, Any]) -> None:
    """Warn of what is slow about a host, by what it says of itself.

    Raises
    ------
    DeviceUnavailableError
        If it has other versions than this process.
    """
    mine = {"plait": VERSION, "numpy": np.__version__, "python": platform.python_version()}
    for package, version in mine.items():
        # Of others the patch number may differ: they keep what goes between processes as it is.
        same = hello[package] == version or package != "plait"
        if not same or _release(hello[package]) != _release(version):
            raise DeviceUnavailableError(
                f"host {name!r} has {package} {hello[package]}, this process {version}",
                at=f"node {hello['node']}",
                fix="install the same versions on all nodes",
            )
    if hello["inline_limit"] < MOST_BYTES:
        warnings.warn(
            f"node {hello['node']} sends values over {hello['inline_limit']} bytes through "
            "Ray's object store, which can take half a second each between machines: start "
            f"all nodes with {INLINE_LIMIT}={4 * MOST_BYTES} in their environment",
            stacklevel=2,
        )


def _release(version: str) -> str:
    """Return a version without its patch number."""
    return ".".join(version.split(".")[:2])
