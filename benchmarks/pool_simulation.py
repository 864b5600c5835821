"""Simulation of a pool of many hosts, with the `LoadBalancer` of real pools.

The times are a model: the driver and its link take time per call, item and byte, and hosts of
several kinds take time per item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np
from plait.devices.sim.clock import VirtualClock
from plait.scheduler.errors import PlanError
from plait.scheduler.ray.pools.load_balancing import LoadBalancer
from plait.scheduler.ray.pools.replica_load import PoolCall

BUSY = 0.9
"""The share of time from which something counts as the limit."""


@dataclass(frozen=True, slots=True)
class HostKind:
    """A number of equal hosts.

    Attributes
    ----------
    item_s : float
        Seconds for an item.
    in_flight : int
        Items that a host runs at a time, each as fast as one alone.
    spread : float
        The standard deviation of the logarithm of an item's time.
    straggling : float
        The share of items that take `straggler` times as long.
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
        """The rate of all hosts that are never idle."""
        slower = 1 + self.straggling * (self.straggler - 1)
        # The mean of a log-normal number is above its median, by this factor.
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
        Speed at which it writes values into messages and reads them.
    link_bytes_per_s : float
        Speed of its link, in each direction.
    trip_s : float
        Latency of a message without bytes.
    """

    call_s: float = 7e-4
    item_s: float = 5e-5
    copy_bytes_per_s: float = 1.5e9
    link_bytes_per_s: float = 1.25e9
    trip_s: float = 5e-4


@dataclass(frozen=True, slots=True)
class PoolSimulation:
    """The result of simulating a pool.

    Attributes
    ----------
    seconds : float
        Until the last result is returned.
    possible_items_per_s : float
        The rate of hosts that are never idle.
    driver, link : float
        The share of time in which a driver, and the busier direction of its link, is busy.
    hosts : dict of str to float
        The busy share of the hosts of each kind.
    latency_s : tuple of float
        Median and 99th percentile, from admission to return.
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
        """Results per second."""
        return self.items / self.seconds

    @property
    def limit(self) -> str:
        """The bottleneck: ``"hosts"``, ``"driver"``, ``"link"``, or ``"order"`` of results.

        Hosts are the limit if their total rate is nearly the possible one. Their busy shares do not
        show that: slow hosts may be always busy while the others wait for them.
        """
        # Hosts come first: at their full rate, a busy driver does not matter.
        if self.items_per_s >= BUSY * self.possible_items_per_s:
            return "hosts"
        if max(self.driver, self.link) < BUSY:
            return "order"
        return "driver" if self.driver >= self.link else "link"


MOST_ITEMS = 1_000_000
"""The limit of items per driver: more take minutes to simulate."""

Work = Callable[[], None]


def simulate_pool(
    hosts: Sequence[HostKind],
    driver: Driver | None = None,
    *,
    items: int = 10_000,
    feed_bytes: int = 1 << 20,
    result_bytes: int = 4096,
    max_in_flight: int | None = None,
    window: int | None = None,
    drivers: int = 1,
    ordered: bool = True,
    seed: int = 0,
) -> PoolSimulation:
    """Predict throughput and latency of a stream of items on many hosts.

    Parameters
    ----------
    items : int
        The number of items; all are available at the start.
    feed_bytes, result_bytes : int
        Size of an item's inputs, and of its outputs.
    max_in_flight : int, optional
        Items admitted and not yet returned; by default four times as many as the hosts can run.
    window : int, optional
        Items that a host may have; by default four times as many as it runs at a time.
    drivers : int
        Shards: each driver has a share of items and hosts, a link and an order of its own.
    ordered : bool
        Whether results are returned in the order of the items.
    seed : int
        Seed of the spread of item times.

    Returns
    -------
    PoolSimulation

    Raises
    ------
    PlanError
        If an argument is invalid.

    Examples
    --------
    >>> few = simulate_pool([HostKind("gpu", 8, item_s=0.05)], items=800)
    >>> few.limit
    'hosts'
    """
    _check(hosts, items, drivers)
    # Drivers are equal: one is simulated, with its share of hosts and items.
    shard = [replace(kind, count=ceil(kind.count / drivers)) for kind in hosts if kind.count]
    slots = sum(kind.count * kind.in_flight for kind in shard)
    pool = _Pool(shard, driver or Driver(), (feed_bytes, result_bytes), window, seed, ordered)
    # More than run at once: calls travel, and results wait for their turn.
    pool.run(ceil(items / drivers), max_in_flight or 4 * slots)
    return pool.summarize(items, sum(kind.items_per_s for kind in hosts))


def _check(hosts: Sequence[HostKind], items: int, drivers: int) -> None:
    if not any(kind.count > 0 and kind.item_s > 0 for kind in hosts):
        raise PlanError("there are no hosts", fix="give kinds with a count and seconds above 0")
    for name, value in (("items", items), ("drivers", drivers)):
        if value < 1:
            raise PlanError(f"{name} is {value}", fix="use 1 or more")
    if items > drivers * MOST_ITEMS:
        raise PlanError(f"{items:,} items are too many", fix=f"use {drivers * MOST_ITEMS:,}")


class _Server:
    """A queue with one or several hands, each of which does one job at a time."""

    def __init__(self, clock: _Clock, hands: int = 1) -> None:
        self._clock = clock
        self._free = hands
        self._line: deque[tuple[float, Work]] = deque()
        self.busy_s = 0.0

    def do(self, seconds: float, then: Work) -> None:
        """Queue a job of a duration, and call `then` at its end."""
        self._line.append((seconds, then))
        self._next()

    def _next(self) -> None:
        while self._free and self._line:
            seconds, then = self._line.popleft()
            self._free -= 1
            self.busy_s += seconds
            self._clock.after(seconds, partial(self._done, then))

    def _done(self, then: Work) -> None:
        self._free += 1
        then()
        self._next()


class _Clock(VirtualClock):
    """Simulated time in seconds."""

    @property
    def now(self) -> float:
        return self.now_ns() / 1e9

    def after(self, seconds: float, work: Work) -> None:
        self.call_at(self.now_ns() + round(seconds * 1e9), work)


class _Pool:
    """One driver and its hosts."""

    def __init__(
        self,
        kinds: Sequence[HostKind],
        driver: Driver,
        nbytes: tuple[int, int],
        window: int | None,
        seed: int,
        ordered: bool,
    ) -> None:
        self._clock = _Clock()
        self._ordered = ordered
        self._model = driver
        self._kinds = kinds
        self._feed_bytes, self._result_bytes = nbytes
        self._random = np.random.default_rng(seed)
        self._driver, self._out, self._back = (_Server(self._clock) for _ in range(3))
        self._balancer = LoadBalancer(replays=0)
        self._hosts: dict[str, tuple[HostKind, _Server]] = {}
        for kind in kinds:
            for number in range(kind.count):
                name = f"{kind.name}:{number}"
                self._hosts[name] = kind, _Server(self._clock, kind.in_flight)
                self._balancer.join(name, kind.in_flight, window or 4 * kind.in_flight)
        self._let_in: list[float] = []
        self._handed: list[float] = []

    def run(self, items: int, max_in_flight: int) -> None:
        self._items, self._most = items, max_in_flight
        self._landed = bytearray(items)
        self._next_out = self._ended = 0
        self._handed = [0.0] * items
        self._admit()
        self._clock.run_until_idle()
        assert self._next_out == items, "every item comes back"

    def summarize(self, items: int, possible: float) -> PoolSimulation:
        """Return the result for all drivers together."""
        seconds = self._clock.now
        shares = {
            kind.name: sum(server.busy_s for of, server in self._hosts.values() if of is kind)
            / (seconds * kind.count * kind.in_flight)
            for kind in self._kinds
        }
        latencies = np.subtract(self._handed, self._let_in)
        middle, late = np.percentile(latencies, [50, 99])
        link_s = max(self._out.busy_s, self._back.busy_s)
        return PoolSimulation(
            items,
            seconds,
            possible,
            self._driver.busy_s / seconds,
            link_s / seconds,
            shares,
            (float(middle), float(late)),
        )

    def _admit(self) -> None:
        # In an ordered stream, items also live until those before them are returned.
        gone = self._next_out if self._ordered else self._ended
        while len(self._let_in) < min(self._items, gone + self._most):
            self._balancer.put(len(self._let_in), self._feed_bytes, in_order=self._ordered)
            self._let_in.append(self._clock.now)
        for call in self._balancer.deal():
            seconds = self._handling_s(call, self._feed_bytes)
            self._driver.do(seconds, partial(self._send, call))

    def _handling_s(self, call: PoolCall, nbytes: int) -> float:
        """Return the driver's time for a call in one direction, given the bytes of an item."""
        each = self._model.item_s / 2 + nbytes / self._model.copy_bytes_per_s
        return self._model.call_s / 2 + len(call.items) * each

    def _send(self, call: PoolCall) -> None:
        nbytes = len(call.items) * self._feed_bytes
        self._out.do(nbytes / self._model.link_bytes_per_s, partial(self._travel, call))

    def _travel(self, call: PoolCall) -> None:
        self._clock.after(self._model.trip_s, partial(self._arrive, call))

    def _arrive(self, call: PoolCall) -> None:
        kind, server = self._hosts[call.replica]
        # A call is answered when its last item is done.
        left = [len(call.items)]
        for _ in call.items:
            server.do(self._item_s(kind), partial(self._worked, call, kind, left))

    def _item_s(self, kind: HostKind) -> float:
        # Both numbers are drawn for each item, so that other parameters do not change the draw.
        slower = kind.straggler if self._random.random() < kind.straggling else 1.0
        return kind.item_s * slower * float(np.exp(self._random.normal() * kind.spread))

    def _worked(self, call: PoolCall, kind: HostKind, left: list[int]) -> None:
        left[0] -= 1
        if not left[0]:
            seconds = len(call.items) * self._result_bytes / self._model.link_bytes_per_s
            # The trip takes time but does not occupy the link.
            then = partial(self._back.do, seconds, partial(self._receive, call, kind))
            self._clock.after(self._model.trip_s, then)

    def _receive(self, call: PoolCall, kind: HostKind) -> None:
        seconds = self._handling_s(call, self._result_bytes)
        self._driver.do(seconds, partial(self._answered, call, kind))

    def _answered(self, call: PoolCall, kind: HostKind) -> None:
        for item in self._balancer.answered(call, kind.item_s / kind.in_flight):
            self._landed[item] = 1
            self._ended += 1
            self._handed[item] = self._clock.now
        # Results that waited for this one are returned now.
        while self._next_out < self._items and self._landed[self._next_out]:
            if self._ordered:
                self._handed[self._next_out] = self._clock.now
            self._next_out += 1
        self._admit()
