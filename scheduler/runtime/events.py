"""Events that a session announces: items that end, devices that come and go.

For users' own metrics and logs. An observer is called on the session's loop, in the order of the
events, and should return at once.

Examples
--------
>>> import numpy as np
>>> import plait as pl
>>> b = pl.GraphBuilder("relu")
>>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
>>> seen = []
>>> with pl.BlockingSession(b.build(), on_event=seen.append) as session:
...     _ = session.run({"x": np.ones(2, "float32")})
>>> [type(event) for event in seen] == [pl.events.ItemDone]
True
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TypeAlias

from ...graph.values.errors import is_ctrl_c
from ..errors import SessionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ItemDone:
    """An item has ended.

    Attributes
    ----------
    latency_s : float
        From its admission until its results were there.
    error : BaseException or None
        Why it failed.
    """

    latency_s: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device died; `error` says how."""

    device: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class DeviceRestored:
    """A lost device runs again, after this many attempts to start it."""

    device: str
    attempts: int


@dataclass(frozen=True, slots=True)
class PlanReplaced:
    """Items run on these devices from now on."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemReplayed:
    """An item that was under way on a lost device runs again from its inputs."""

    device: str


@dataclass(frozen=True, slots=True)
class FunctionsOverlap:
    """A session has opened in which several items at once may call these functions.

    Its plan has automatic replicas. Name one device, `max_in_flight=1` or a range to decide that.
    """

    functions: tuple[str, ...]
    items: int


@dataclass(frozen=True, slots=True)
class NodesRefused:
    """A device refused nodes as unsupported when it loaded or ran them: others run them now."""

    device: str
    nodes: tuple[str, ...]
    error: BaseException


SessionEvent: TypeAlias = (
    ItemDone
    | DeviceLost
    | DeviceRestored
    | PlanReplaced
    | ItemReplayed
    | FunctionsOverlap
    | NodesRefused
)
Observer: TypeAlias = Callable[[SessionEvent], object]


class Announcer:
    """Calls an observer, if there is one; its exceptions are logged and do no harm to items.

    Attributes
    ----------
    is_heard : bool
        True when there is an observer.

    Raises
    ------
    SessionError
        If the observer is an async function.
    """

    def __init__(self, observer: Observer | None) -> None:
        if iscoroutinefunction(observer):
            raise SessionError(
                "on_event is an async function, and it is called, not awaited",
                fix="pass an ordinary one, which may hand events to a task by a channel",
            )
        self._observer = observer
        self.is_heard = observer is not None

    def tell(self, event: SessionEvent) -> None:
        """Call the observer with `event`; on the trio thread only."""
        if self._observer is not None:
            try:
                self._observer(event)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                logger.exception("an observer of a session failed")
