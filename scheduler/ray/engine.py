"""The interface to Ray: joins a cluster, starts actors and calls them.

Only this file and nodes.py, which starts clusters, import Ray.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from ...devices.errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ...devices.event import CancelledWorkError
from ...graph.values.errors import describe_error
from ...graph.values.extras import get_install_command, import_extra
from .actors import ActorPlacement, OnResult, Ref

REACHED_S = 10.0
"""How long a cluster's head may take to accept a connection."""


class RayEngine:
    """The `ActorSystem` of Ray.

    The `address` is `host:port`, or `"auto"` for the cluster that this machine is in; a `loopback`
    cluster is on this machine and listens to it alone. Raises DeviceUnavailableError if Ray is not
    installed, or the cluster cannot be joined.
    """

    def __init__(self, address: str, *, loopback: bool = False) -> None:
        self._ray = load_ray()
        self._classes: dict[type, Any] = {}
        self._joined = not self._ray.is_initialized()
        if self._joined:
            self._join(address, loopback)

    def _join(self, address: str, loopback: bool) -> None:
        check_reached(address)
        with _restore_signals(), _restrict_to_loopback(loopback), _suppress_warnings():
            try:
                self._ray.init(
                    address=address,
                    namespace="plait",
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise DeviceUnavailableError(
                    f"the Ray cluster cannot be joined: {error}",
                    at=f"address {address!r}",
                    fix='see that it runs (`ray status`), or start one here: cluster("local")',
                ) from error
            except BaseException:  # such as Ctrl-C
                self._ray.shutdown()
                raise

    def start(self, kind: type, *arguments: Any, placing: ActorPlacement) -> RayActor:
        try:
            made = self._make_class(kind).options(
                num_cpus=placing.num_cpus,
                num_gpus=placing.num_gpus,
                resources=dict(placing.resources),
                label_selector=dict(placing.select),
                max_restarts=0,  # plait restarts actors and repeats their work itself
                max_task_retries=0,
            )
        except (TypeError, ValueError) as error:
            raise DeviceUnavailableError(
                f"no node can be chosen so: {error}",
                fix="correct select=, num_cpus=, num_gpus= or resources=",
            ) from error
        return RayActor(self._ray, made.remote(*arguments))

    def _make_class(self, kind: type) -> Any:
        # Cached, since Ray never frees a remote class.
        if kind not in self._classes:
            self._classes[kind] = self._ray.remote(kind)
        return self._classes[kind]

    def put(self, value: Any) -> Ref:
        return self._ray.put(value)

    def dump(self, value: Any) -> bytes:
        try:
            return bytes(self._ray.cloudpickle.dumps(value))
        except Exception as error:  # of any class that the value refers to
            raise DeviceError(
                f"hosts cannot get this: {describe_error(error)}",
                fix="open files and connections inside of the functions that use them",
            ) from error

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"id": node["NodeID"], "labels": node["Labels"], "resources": node["Resources"]}
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def leave(self) -> None:
        """Leave the cluster, unless this process had joined it before."""
        if self._joined:
            with _suppress_warnings():
                self._ray.shutdown()


class RayActor:
    def __init__(self, ray: ModuleType, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    def call(self, method: str, *arguments: Any) -> RayPending:
        return RayPending(self._ray, getattr(self._handle, method).remote(*arguments))

    def kill(self) -> None:
        with suppress(Exception):  # it is dead, or the cluster is
            self._ray.kill(self._handle)


class RayPending:
    def __init__(self, ray: ModuleType, ref: Any) -> None:
        self._ray = ray
        self._ref = ref

    def on_result(self, callback: OnResult) -> None:
        exceptions = self._ray.exceptions

        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                callback(future.result(), None)
            else:
                callback(None, _translate_error(error, exceptions))

        self._ref.future().add_done_callback(done)


def check_reached(address: str) -> None:
    """Raise DeviceUnavailableError if nothing listens at `address`; Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "://" in address:
        return  # Ray's own names, such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise DeviceUnavailableError(
            f"nothing answers there: {error}",
            at=f"address {address!r}",
            fix="give the address that `ray start --head` has printed, of a node that is up",
        ) from error


def get_node_id() -> str:
    """Return the id of this process's node, or without Ray the name of the machine."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return socket.gethostname()
    return str(ray.get_runtime_context().get_node_id())


def load_ray() -> ModuleType:
    """Import Ray; raises DeviceUnavailableError if it is not installed, or does not load."""
    # Without this, Ray hides the GPUs from processes that reserve none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    missing, fix = "the package 'ray' is not installed", get_install_command("ray")
    with _suppress_warnings():
        ray: ModuleType = import_extra("ray", missing, fix, DeviceUnavailableError)
    return ray


def _translate_error(error: BaseException, exceptions: Any) -> BaseException:
    """Return our error for `error` of Ray's `exceptions`, or the error that a method raised."""
    if isinstance(error, exceptions.TaskCancelledError):
        return CancelledWorkError("the call was cancelled")
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, Exception) else DeviceError(str(error))
    if isinstance(error, exceptions.ActorUnschedulableError):
        return DeviceUnavailableError(f"no node can run it: {error}")
    if isinstance(error, exceptions.RayError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return DeviceLostError(" ".join(lines)[:500])
    return error


@contextmanager
def _suppress_warnings() -> Iterator[None]:
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _restore_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _restrict_to_loopback(wanted: bool) -> Iterator[None]:
    """Keep Ray, if `wanted`, from replacing 127.0.0.1 by the machine's outer address."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = before and not wanted
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
