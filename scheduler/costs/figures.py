"""The figures of costs: models of devices, and measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...devices.model import DeviceModel
from ...graph.core.operator import Cost
from .signature import Signature

NOISY = 0.1
"""Runs with a median absolute deviation above this share of the median are not trusted."""


class Timing(NamedTuple):
    """A measured time and its deviation."""

    seconds: float
    """The median."""
    least_s: float | None = None
    """The shortest; None if single runs are unknown."""
    mad_s: float = 0.0
    """The median absolute deviation from the median."""
    runs: int = 1

    @property
    def is_noisy(self) -> bool:
        return self.mad_s > NOISY * self.seconds

    @property
    def trusted_s(self) -> float:
        """The assumed time: of noisy runs the shortest, since disturbances add to them."""
        return self.least_s if self.is_noisy and self.least_s is not None else self.seconds

    def scaled(self, factor: float) -> Timing:
        least_s = None if self.least_s is None else self.least_s * factor
        return Timing(self.seconds * factor, least_s, self.mad_s * factor, self.runs)

    @classmethod
    def of(cls, runs: Sequence[float]) -> Timing:
        median = statistics.median(runs)
        mad_s = statistics.median(abs(one - median) for one in runs)
        return cls(median, min(runs), mad_s, len(runs))


class Measured(NamedTuple):
    """A node's measured time, with its cost by the rules."""

    timing: Timing
    cost: Cost
    is_share: bool = False
    """True if a subgraph was measured whole, and this is the node's share by the model."""

    @property
    def seconds(self) -> float:
        return self.timing.trusted_s

    @property
    def distrust(self) -> int:
        """A rank of trust: no entry is replaced by one with a higher rank."""
        return 2 * self.is_share + self.timing.is_noisy


class Link(NamedTuple):
    """The speed of copies from one memory to another."""

    latency_s: float
    bytes_per_s: float

    def copy_s(self, nbytes: int) -> float:
        return self.latency_s + nbytes / self.bytes_per_s


LOOP = "loop"
"""Stands for the scheduler's loop in place of a device."""

HERE = "here"
"""Stands for the thread that made a step ready and runs it itself, because it is short."""


class Loop(NamedTuple):
    """The scheduler's and the host's overhead.

    Attributes
    ----------
    feed_s, land_s : float
        Time of the loop for an item before and after its steps, without copies.
    contention : float
        Share by which work on one core is slower for each other busy core.
    """

    feed_s: float
    land_s: float
    contention: float = 0.0


@dataclass(frozen=True)
class Figures:
    """Known properties of devices and of the links between their memories.

    Attributes
    ----------
    models : Mapping of str to DeviceModel
        By device name, or kind: ``"worker"`` stands for all without a model of their own.
    memories : Mapping of str to str
        The memory of each device.
    links : Mapping of (str, str) to Link
        Measured speeds between memories; others follow from the models.
    nodes : Mapping of str to Mapping of Signature to Measured
        Measured kernels, by device name or kind.
    programs : Mapping of str to Mapping of str to Timing
        Subgraphs that were measured whole, by device and `digest`.
    hops : Mapping of (str, str) to float
        Seconds from the end of a step on one device until a waiting one on another begins; `LOOP`
        stands for the loop. From a device to itself: between two consecutive steps. From the loop
        to `HERE`: until a short step begins that needs no other thread; from `HERE` to the loop:
        until it processes the results of items that it ran itself.
    loop : Loop or None
        The scheduler's measured overhead; None if it was not measured.
    """

    models: Mapping[str, DeviceModel] = field(default_factory=dict)
    memories: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[Signature, Measured]] = field(default_factory=dict)
    programs: Mapping[str, Mapping[str, Timing]] = field(default_factory=dict)
    hops: Mapping[tuple[str, str], float] = field(default_factory=dict)
    loop: Loop | None = None
