"""The status of a pool of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica now.

    Attributes
    ----------
    node : str
        Id of its node; empty until it has one.
    process : int
        Process id of its host; 0 until it has one.
    ready : bool
        False while it is being started.
    under_way : int
        Items that it has.
    done : int
        Items that it has run.
    item_s : float or None
        Its time per item, at its recent rate.
    """

    node: str
    process: int
    ready: bool
    under_way: int
    done: int
    item_s: float | None


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One pool now.

    Attributes
    ----------
    done, failed : int
        Items that have ended so far, and those among them that failed.
    waiting : int
        Items that no replica has room for.
    in_flight : int
        Items that were fed and have not ended, those that wait included.
    dropped : int
        Items of live sources so far that there was no room for.
    """

    done: int
    failed: int
    waiting: int
    in_flight: int
    replicas: Mapping[str, ReplicaStatus]
    dropped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)
