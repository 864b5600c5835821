"""The figures that costs rest on: models of devices, and what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...devices.model import DeviceModel
from ...graph.operator import Cost
from .signature import Signature

NOISY = 0.1
"""Runs whose median absolute deviation is above that share of the median are not to be trusted."""


class Timing(NamedTuple):
    """A measured time, and how far its runs were apart.

    Attributes
    ----------
    seconds : float
        The median.
    least_s : float or None
        The shortest; None where nothing is known of single runs.
    mad_s : float
        The median absolute deviation from the median.
    runs : int
    """

    seconds: float
    least_s: float | None = None
    mad_s: float = 0.0
    runs: int = 1

    @property
    def is_noisy(self) -> bool:
        """True where runs were far apart."""
        return self.mad_s > NOISY * self.seconds

    @property
    def trusted_s(self) -> float:
        """What it is taken to be: of noisy runs the shortest, since what disturbs adds to them."""
        return self.least_s if self.is_noisy and self.least_s is not None else self.seconds

    def scaled(self, factor: float) -> Timing:
        """Return the time of what takes `factor` times as long."""
        least_s = None if self.least_s is None else self.least_s * factor
        return Timing(self.seconds * factor, least_s, self.mad_s * factor, self.runs)

    @classmethod
    def of(cls, runs: Sequence[float]) -> Timing:
        """Return the time of some runs."""
        median = statistics.median(runs)
        mad_s = statistics.median(abs(one - median) for one in runs)
        return cls(median, min(runs), mad_s, len(runs))


class Measured(NamedTuple):
    """A node's measured time, and what the cost rules say of that node.

    Attributes
    ----------
    timing : Timing
    cost : Cost
    is_share : bool
        True where a subgraph was measured whole, and this is the node's share by the model.
    """

    timing: Timing
    cost: Cost
    is_share: bool = False

    @property
    def seconds(self) -> float:
        """What it is taken to be."""
        return self.timing.trusted_s

    @property
    def distrust(self) -> int:
        """How little it is to be trusted: no entry is replaced by one of which that is higher."""
        return 2 * self.is_share + self.timing.is_noisy


class Link(NamedTuple):
    """How fast bytes go from one memory to another."""

    latency_s: float
    bytes_per_s: float

    def copy_s(self, nbytes: int) -> float:
        """Return how long a copy of that many bytes takes."""
        return self.latency_s + nbytes / self.bytes_per_s


LOOP = "loop"
"""Stands for the scheduler's loop where devices are named."""

HERE = "here"
"""Stands for the thread that made a step ready where it runs it itself, for the step is quick."""


class Loop(NamedTuple):
    """What the scheduler and the host add to what devices take.

    Attributes
    ----------
    feed_s, land_s : float
        How long the loop is busy with an item before and after its steps, besides copying.
    contention : float
        By what share work on one core takes longer for each other core that is busy.
    """

    feed_s: float
    land_s: float
    contention: float = 0.0


@dataclass(frozen=True)
class Figures:
    """What is known of devices and of the ways between their memories.

    Attributes
    ----------
    models : Mapping of str to DeviceModel
        By device name, or kind: ``"worker"`` stands for all that have no model of their own.
    memories : Mapping of str to str
        The memory of each device.
    links : Mapping of (str, str) to Link
        Measured speeds between memories. Others follow from the models.
    nodes : Mapping of str to Mapping of Signature to Measured
        Measured kernels, by device name or kind.
    programs : Mapping of str to Mapping of str to Timing
        Subgraphs that were measured whole, by device and `digest`.
    hops : Mapping of (str, str) to float
        Seconds from the end of a step on one device until one on another begins that was waiting
        for it; `LOOP` stands for the loop. From a device to itself: between two steps in a row.
        From the loop to `HERE`: until a quick step begins that needs no other thread; from `HERE`
        to the loop: until it takes up the results of items that it ran itself.
    loop : Loop or None
        What the scheduler was found to take; None where nobody measured it.
    """

    models: Mapping[str, DeviceModel] = field(default_factory=dict)
    memories: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[Signature, Measured]] = field(default_factory=dict)
    programs: Mapping[str, Mapping[str, Timing]] = field(default_factory=dict)
    hops: Mapping[tuple[str, str], float] = field(default_factory=dict)
    loop: Loop | None = None
