"""Hosts of replicas without a cluster: they double `x` after a while, on trio's clock.

What goes to them and back is pickled, as on a wire, and arrays arrive read-only. Tests have them
die, fall silent or refuse.
"""

from __future__ import annotations

import pickle
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import plait as pl
import trio
from plait.devices.errors import DeviceLostError, KernelError
from plait.devices.worker.remote_errors import describe
from plait.graph.values.tensor import Array
from plait.scheduler.ray.actors import OnResult
from plait.scheduler.ray.payload import make_payload
from plait.scheduler.ray.pools.replicas import ReplicaPool
from plait.scheduler.ray.pools.serving_sessions import Answer, Asked, Outcome
from plait.scheduler.runtime.streaming.stream import Results
from plait.version import VERSION


def doubling(max_in_flight: int = 1) -> pl.Plan:
    """Return a plan of what the hosts compute."""
    builder = pl.GraphBuilder("doubling")
    x = builder.input("x", "int32", ("batch",))
    builder.output("y", builder.op("Add", x, x))
    return pl.plan(builder.build(), max_in_flight=max_in_flight)


def counting() -> pl.Plan:
    """Return a plan that keeps a sum in a variable."""
    builder = pl.GraphBuilder("counting")
    x = builder.input("x", "int32", (1,))
    total = builder.variable("total", np.zeros(1, np.int32))
    builder.output("y", builder.assign(total, builder.op("Add", total, x)))
    return pl.plan(builder.build())


def item(value: int) -> dict[str, Array]:
    return {"x": np.full(1, value, np.int32)}


def items(n: int) -> Iterator[dict[str, Array]]:
    return (item(value) for value in range(n))


async def taken(results: Results) -> list[tuple[int, int]]:
    """Return the index and the result of each item; fail where one failed."""
    return [(one.index, int(one["y"][0])) async for one in results]


def doubled(n: int) -> list[tuple[int, int]]:
    """Return what is to be taken of so many items."""
    return [(value, 2 * value) for value in range(n)]


def over_a_wire(value: Any) -> Any:
    """Return what arrives of it: arrays that are read-only."""
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(sent, buffers=[bytes(buffer.raw()) for buffer in buffers])


class FakeHost:
    """One host.

    Attributes
    ----------
    ran : list of int
        The items that it has begun, by the numbers that the pool gave them.
    calls : list of tuple of int
        The same, call by call.
    cancelled : set of int
        Those that it was told to give up.
    silent : bool
        It answers no more.
    lingers : bool
        Nobody hears of its end until `bury`.
    """

    def __init__(self, name: str, number: int, item_s: float) -> None:
        self.name = name
        self.number = number
        self.item_s = item_s
        self.ran: list[int] = []
        self.calls: list[tuple[int, ...]] = []
        self.cancelled: set[int] = set()
        self.alive = True
        self.silent = False
        self.lingers = False
        self.killed = False
        self.closed = False
        self.refusal: Exception | None = None
        self.told: dict[str, Any] = {}
        self.before: Callable[[FakeHost, int], object] = lambda host, number: None
        self._free = 0.0
        self._busy_s = 0.0
        self._waiting: list[OnResult] = []

    def call(self, method: str, *arguments: Any) -> FakePending:
        return FakePending(self, method, over_a_wire(arguments))

    def kill(self) -> None:
        self.killed = True
        self.die()

    def die(self) -> None:
        """End, as a process does: whoever waits hears of it."""
        self.alive = False
        if not self.lingers:
            self.bury()

    def bury(self) -> None:
        """Let whoever waits hear that it has ended."""
        waiting, self._waiting = self._waiting, []
        for on_result in waiting:
            on_result(None, DeviceLostError("the process died"))

    def answer(self, method: str, arguments: tuple[Any, ...], on_result: OnResult) -> None:
        """Answer in a while, if at all."""
        if not self.alive:
            on_result(None, DeviceLostError("the process is dead"))
            return
        self._waiting.append(on_result)
        trio.lowlevel.spawn_system_task(self._answer, method, arguments, on_result)

    async def _answer(self, method: str, arguments: tuple[Any, ...], on_result: OnResult) -> None:
        value = await getattr(self, method)(*arguments)
        if self.silent:
            await trio.sleep_forever()
        if on_result in self._waiting:
            self._waiting.remove(on_result)
            on_result(over_a_wire(value), None)

    async def hello(self) -> dict[str, Any]:
        return {
            "node": f"node {self.number}",
            "pid": self.number,
            "plait": VERSION,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "inline_limit": 1 << 30,
            **self.told,
        }

    async def open_session(self, data: Array, *arguments: Any) -> list[Any] | None:
        return None if self.refusal is None else describe(self.refusal)

    async def run_items(self, asked: Iterable[Asked]) -> Answer:
        items = [Asked(*one) for one in asked]
        self.calls.append(tuple(one.number for one in items))
        outcomes = []
        for one in items:
            assert not one.inputs["x"].flags.writeable
            self.ran.append(one.number)
            self.before(self, one.number)
            begun = max(trio.current_time(), self._free)
            self._free = begun + self.item_s
            await trio.sleep_until(self._free)
            self._busy_s += self.item_s
            outcomes.append(self._outcome(one))
        return Answer(tuple(outcomes), self._busy_s, len(self.ran))

    async def cancel_items(self, numbers: Sequence[int]) -> None:
        self.cancelled.update(numbers)

    async def close_session(self) -> None:
        self.closed = True

    def _outcome(self, one: Asked) -> Outcome:
        if one.number in self.cancelled:
            return Outcome(one.number, None, None)
        x = one.inputs["x"]
        if x[0] < 0:
            error = KernelError("Python function raised ValueError: negative", at="node 'f'")
            error.__cause__ = ValueError("negative")
            return Outcome(one.number, None, describe(error))
        names = ("y",) if one.fetches is None else one.fetches
        return Outcome(one.number, {name: x if name == "x" else 2 * x for name in names}, None)


class FakePending:
    def __init__(self, host: FakeHost, method: str, arguments: tuple[Any, ...]) -> None:
        self._what = host, method, arguments

    def on_result(self, callback: OnResult) -> None:
        host, method, arguments = self._what
        host.answer(method, arguments, callback)


class FakeHosts:
    """Where hosts come from.

    Attributes
    ----------
    started : list of FakeHost
        All there ever were.
    item_s : callable
        How long an item takes the n-th host.
    prepare : callable
        Called with each host before it is there.
    room : int
        How many may live at a time; further ones wait for a node.
    """

    def __init__(self, item_s: Callable[[int], float] = lambda number: 0.01) -> None:
        self.started: list[FakeHost] = []
        self.item_s = item_s
        self.prepare: Callable[[FakeHost], object] = lambda host: None
        self.room = 1000
        self.shipped: list[Any] = []

    async def start(self, name: str) -> FakeHost:
        number = len(self.started)
        host = FakeHost(name, number, self.item_s(number))
        if len(self.living) >= self.room:
            host.silent = True  # until there is a node
        self.started.append(host)
        self.prepare(host)
        return host

    def put(self, value: Any) -> Any:
        self.shipped.append(value)
        return value

    @property
    def living(self) -> list[FakeHost]:
        return [host for host in self.started if host.alive]

    @property
    def ran(self) -> list[int]:
        return [number for host in self.started for number in host.ran]


def pool_on(hosts: FakeHosts, plan: pl.Plan | None = None, **options: Any) -> ReplicaPool:
    """Return a pool of hosts, of the plan that they compute unless it is another."""
    what = make_payload(doubling() if plan is None else plan, None, None)
    return ReplicaPool(what, hosts.start, hosts.put, **options)
