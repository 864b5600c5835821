"""The interface to a cluster: starts actors, calls them, keeps values.

Everything here but engine.py knows these protocols alone, so that it runs without Ray in tests.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

OnResult: TypeAlias = Callable[[Any, BaseException | None], object]

Ref: TypeAlias = Any
"""Stands for a value that the cluster keeps as long as somebody here holds it."""


LOOK_S = 0.2
"""How often whoever waits for an answer looks whether it is given up."""


class Pending(Protocol):
    """A call that was made."""

    def on_result(self, callback: OnResult) -> None:
        """Call `callback(value, error)` once, on any thread, when the answer is there."""
        ...


class Actor(Protocol):
    """An object in a process of its own, somewhere in the cluster."""

    def call(self, method: str, *arguments: Any) -> Pending:
        """Call a method; arguments that are `Ref` arrive as what they stand for."""
        ...

    def kill(self) -> None:
        """End its process, whatever it does; every call that is under way fails."""
        ...


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """Where an actor may run.

    Attributes
    ----------
    select : Mapping of str to str
        Labels that the node must have.
    num_cpus, num_gpus : float
        What of a node it takes for itself.
    resources : Mapping of str to float
        More of what it takes, by the cluster's own names.
    """

    select: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


class ActorSystem(Protocol):
    """A cluster, joined."""

    def start(self, kind: type, *arguments: Any, placing: ActorPlacement) -> Actor:
        """Start an actor, when a node has room for it; does not wait for that."""
        ...

    def put(self, value: Any) -> Ref:
        """Have the cluster keep a value."""
        ...

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive: `id`, `labels` and `resources` of each."""
        ...

    def leave(self) -> None:
        """Leave the cluster: what was started in it by this process ends."""
        ...


def result(
    pending: Pending,
    timeout_s: float = math.inf,
    *,
    given_up: Callable[[], bool] = lambda: False,
) -> Any:
    """Wait for a call's answer and return it, unless it is given up meanwhile.

    Raises
    ------
    TimeoutError
        If there is none in time, or it is given up; the call goes on.
    BaseException
        What the call raised.
    """
    answered = threading.Event()
    found: list[tuple[Any, BaseException | None]] = []

    def take(value: Any, error: BaseException | None) -> None:
        found.append((value, error))
        answered.set()

    pending.on_result(take)
    deadline_s = time.monotonic() + timeout_s
    while not answered.wait(max(0.0, min(LOOK_S, deadline_s - time.monotonic()))):
        if time.monotonic() >= deadline_s or given_up():
            raise TimeoutError(f"no answer in {timeout_s:g} s")
    value, error = found.pop()
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # it holds this frame
