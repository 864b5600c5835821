"""Hosts, seen from the driver: started on first use, and again after a loss."""

from __future__ import annotations

import platform
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....devices.errors import DeviceLostError, DeviceUnavailableError
from ....version import VERSION
from ..actors import Actor, ActorPlacement, ActorSystem, wait_result
from ..host import Host
from ..nodes import INLINE_LIMIT, describe_labels
from .link import HostLink, closed_host_error
from .outbox import MOST_BYTES

RESTART_S = 10.0
"""Timeout of one attempt to restart a lost host."""

PINGS = 8
"""Small calls with which latency is measured."""

ECHO_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostLatency:
    call_s: float
    """A call and its answer, both empty."""
    bytes_per_s: float
    """Speed of their values, in either direction."""


@dataclass(slots=True, eq=False)
class RemoteHost:
    """A process on a node of the cluster that devices are in; methods block.

    It may take `start_s` to start, and counts as lost after a silence of `silence_s`. `memories`
    are those of all its `RayDevice` objects, `answers` cached answers of its devices.
    """

    name: str
    _engine: ActorSystem
    placing: ActorPlacement
    start_s: float = 60.0
    silence_s: float = 30.0
    memories: set[str] = field(default_factory=set)
    answers: dict[Hashable, Any] = field(default_factory=dict)
    on_failure: list[Callable[[], object]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _link: HostLink | None = None
    _latency: HostLatency | None = None
    is_closed: bool = False

    @property
    def latency(self) -> HostLatency:
        """The latency of calls, measured at the start of the host.

        Raises DeviceUnavailableError if it cannot be started.
        """
        self.link()
        assert self._latency is not None
        return self._latency

    @property
    def cores(self) -> int | None:
        """The cores that its devices may use, or None for all of its node."""
        return max(1, int(self.placing.num_cpus)) if self.placing.num_cpus else None

    @property
    def pid(self) -> int | None:
        """The process id on its node, or None while it does not run."""
        link = self._link
        return None if link is None or link.error is not None else int(link.hello["pid"])

    def link(self) -> HostLink:
        """Return the connection; starts the host unless it runs.

        Raises DeviceUnavailableError if no node has room for it, or its versions differ from ours.
        """
        with self._lock:
            if self.is_closed:
                raise closed_host_error(f"ray:{self.name}")
            if self._link is None or self._link.error is not None:
                patience_s = self.start_s
                if self._link is not None:
                    # Shorter than for a first start: items wait, and may run elsewhere.
                    patience_s = min(patience_s, RESTART_S)
                    self._link.close()
                self._link = self._start(patience_s)
            return self._link

    def close(self) -> None:
        self.is_closed = True  # cancels a start in progress
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _start(self, patience_s: float, attempts: int = 2) -> HostLink:
        actor = self._engine.start(Host, self.name, placing=self.placing)
        try:
            hello = self._greet(actor, patience_s)
            clock_ns, self._latency = _measure_latency(actor)
        except DeviceLostError as error:
            actor.kill()
            if attempts > 1:  # the engine knows only now that the node is dead
                return self._start(patience_s, attempts - 1)
            raise self._start_error(error) from error
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
            silence_s=self.silence_s,
            on_loss=self._report_failure,
        )

    def _greet(self, actor: Actor, patience_s: float) -> dict[str, Any]:
        """Return the `hello` of `actor` within `patience_s`, if its versions are those here."""
        try:
            hello: dict[str, Any] = wait_result(
                actor.call("hello"), patience_s, is_cancelled=lambda: self.is_closed
            )
        except TimeoutError:
            if self.is_closed:
                raise closed_host_error(f"ray:{self.name}") from None
            raise
        except DeviceLostError:
            raise
        except Exception as error:
            raise self._start_error(error) from error
        check_host(self.name, hello)
        return hello

    def _start_error(self, error: Exception) -> DeviceUnavailableError:
        return DeviceUnavailableError(
            f"host {self.name!r} cannot be started: {error}",
            fix="see that the nodes have plait, of the same version as this process",
        )

    def _homeless_error(self, patience_s: float) -> DeviceUnavailableError:
        wanted = [f"{key}={value}" for key, value in self.placing.select.items()]
        if self.placing.num_cpus or self.placing.num_gpus:
            wanted.append(f"{self.placing.num_cpus:g} CPUs and {self.placing.num_gpus:g} GPUs free")
        nodes = describe_labels(self._engine.nodes())
        return DeviceUnavailableError(
            f"no node has taken host {self.name!r} in {patience_s:g} s",
            at=f"wanted: {', '.join(wanted) or 'any node'}; there are {len(nodes)} nodes: "
            + "; ".join(nodes),
            fix="start a node with these labels, free its resources, or ask for others",
        )

    def _report_failure(self) -> None:
        for callback in list(self.on_failure):
            callback()


def _measure_latency(actor: Actor) -> tuple[int, HostLatency]:
    best_s, clock_ns = float("inf"), 0
    for _ in range(PINGS):
        before = time.perf_counter_ns()
        there: int = wait_result(actor.call("clock_ns"), 60.0)
        after = time.perf_counter_ns()
        if (after - before) / 1e9 < best_s:
            best_s = (after - before) / 1e9
            # The fastest call bounds the error of the offset best, by half of its duration.
            clock_ns = (before + after) // 2 - there
    data = np.zeros(ECHO_BYTES, np.uint8)
    echo_s = float("inf")
    for _ in range(3):
        start_s = time.perf_counter()
        wait_result(actor.call("echo", data), 60.0)
        echo_s = min(echo_s, time.perf_counter() - start_s)
    # Both directions, without the time of an empty call.
    return clock_ns, HostLatency(best_s, 2 * ECHO_BYTES / max(echo_s - best_s, 1e-5))


def check_host(name: str, hello: Mapping[str, Any]) -> None:
    """Raise DeviceUnavailableError if `hello` of host `name` has other versions; warn if slow."""
    mine = {"plait": VERSION, "numpy": np.__version__, "python": platform.python_version()}
    for package, version in mine.items():
        # Patch releases of Python and numpy do not change pickles.
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
    return ".".join(version.split(".")[:2])
