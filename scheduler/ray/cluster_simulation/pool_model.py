"""The model of a simulated pool, and the results of simulating it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BUSY = 0.9
"""The share of time from which something counts as the limit."""


@dataclass(frozen=True, slots=True)
class HostKind:
    """Hosts that are alike.

    Attributes
    ----------
    name : str
    count : int
    item_s : float
        Seconds for an item.
    in_flight : int
        Items that a host works at, at a time, each as fast as one alone.
    spread : float
        The standard deviation of the logarithm of an item's time.
    straggling : float
        The share of items that take `straggler` times as long.
    straggler : float
    """

    name: str
    count: int
    item_s: float
    in_flight: int = 1
    spread: float = 0.0
    straggling: float = 0.0
    straggler: float = 10.0

    @property
    def items_per_s(self) -> float:
        """What all of them could do, were they never without items."""
        slower = 1 + self.straggling * (self.straggler - 1)
        mean_s = self.item_s * float(np.exp(self.spread**2 / 2)) * slower
        return self.count * self.in_flight / mean_s


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that deals items, and its link; the defaults are measured on loopback.

    Attributes
    ----------
    call_s, item_s : float
        Its time for a call and for each item in it, sending and receiving together.
    copy_bytes_per_s : float
        How fast it writes values into messages, and reads them out.
    link_bytes_per_s : float
        Of its link, in each direction.
    trip_s : float
        Until a message has arrived, beside its bytes.
    """

    call_s: float = 7e-4
    item_s: float = 5e-5
    copy_bytes_per_s: float = 1.5e9
    link_bytes_per_s: float = 1.25e9
    trip_s: float = 5e-4


@dataclass(frozen=True, slots=True)
class PoolSimulation:
    """What came of it.

    Attributes
    ----------
    items : int
    seconds : float
        Until the last result is handed out.
    possible_items_per_s : float
        What the hosts could do, were they never without items.
    driver, link : float
        The share of time in which a driver, and the busier direction of its link, works.
    hosts : dict of str to float
        The same for the hosts of each kind.
    latency_s : tuple of float
        The median and the 99th of 100, from when an item is let in until it is handed out.
    """

    items: int
    seconds: float
    possible_items_per_s: float
    driver: float
    link: float
    hosts: dict[str, float]
    latency_s: tuple[float, float]

    @property
    def items_per_s(self) -> float:
        """How many items are handed out in a second."""
        return self.items / self.seconds

    @property
    def limit(self) -> str:
        """What it waits for: ``"hosts"``, ``"driver"``, ``"link"``, or ``"order"`` of results.

        Hosts are the limit if they do nearly all that they could; those that are always at work may
        be the slow ones, which the others wait for.
        """
        if self.items_per_s >= BUSY * self.possible_items_per_s:
            return "hosts"
        if max(self.driver, self.link) < BUSY:
            return "order"
        return "driver" if self.driver >= self.link else "link"
