"""The interface to a cluster: starts actors, calls them, keeps values.

Everything here but engine.py knows these protocols alone, so that it runs without Ray in tests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

OnResult: TypeAlias = Callable[[Any, BaseException | None], object]

Ref: TypeAlias = Any
"""A reference to a value that the cluster keeps; it is freed with the last reference here."""


LOOK_S = 0.2
"""Interval in which a caller that waits for an answer checks for cancellation."""


class Pending(Protocol):
    """A call that was made."""

    def on_result(self, callback: OnResult) -> None:
        """Call `callback(value, error)` once, on any thread, when the answer is there."""


class Actor(Protocol):
    """An object in a process of its own, somewhere in the cluster."""

    def call(self, method: str, *arguments: Any) -> Pending:
        """Call `method`; `arguments` of type `Ref` arrive as the values they refer to."""

    def kill(self) -> None:
        """End its process at once; all calls in flight fail."""


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """Requirements of an actor on its node."""

    select: Mapping[str, str] = field(default_factory=dict)
    """Labels that the node must have."""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    """The share of the node that is reserved for it."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources that it reserves, by the cluster's own names."""


class ActorSystem(Protocol):
    """A cluster, joined."""

    def start(self, kind: type, *arguments: Any, placing: ActorPlacement) -> Actor:
        """Start an actor `kind(*arguments)` where `placing` says, without waiting for it to begin.

        It begins once a node has room.
        """

    def put(self, value: Any) -> Ref: ...

    def dump(self, value: Any) -> bytes:
        """Pickle `value`, functions of scripts included; raise DeviceError if that fails."""

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive: `id`, `labels` and `resources` of each."""

    def leave(self) -> None:
        """Leave the cluster, and end the actors that this process has started in it."""


def wait_result(
    pending: Pending,
    timeout_s: float = math.inf,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Any:
    """Wait for the answer to the call `pending` and return it.

    Raises TimeoutError: after `timeout_s`, or once `is_cancelled()`; the call itself continues;
    BaseException if the call raised it.
    """
    answer: Future[Any] = Future()
    pending.on_result(partial(settle, answer))
    deadline_s = time.monotonic() + timeout_s
    while not wait([answer], max(0.0, min(LOOK_S, deadline_s - time.monotonic()))).done:
        if time.monotonic() >= deadline_s or is_cancelled():
            raise TimeoutError(f"no answer in {timeout_s:g} s")
    try:
        return answer.result()
    finally:
        del answer  # its error holds this frame


def settle(answer: Future[Any], value: Any, error: BaseException | None) -> None:
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
