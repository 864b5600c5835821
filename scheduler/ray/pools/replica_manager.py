"""The replicas of a pool: starts, watches, restarts and stops them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf

import trio

from ....devices.errors import DeviceLostError
from ...runtime.events import Announcer, DeviceLost, DeviceRestored
from ...runtime.faults import FaultPolicy
from .autoscaling import Autoscaler, Size
from .replica import Replica


class ReplicaManager:
    """Keeps as many replicas as a pool needs; used on the trio thread only.

    Parameters
    ----------
    make : callable
        Makes a replica, by name.
    faults : FaultPolicy
        When to restart a lost replica.
    can_restart : bool
        Whether a lost replica is restarted.

    Attributes
    ----------
    replicas : dict of str to Replica
        All replicas, including those that are starting.
    ready : set of str
        The replicas that run items.
    on_ready, on_loss : callable
        Called with a replica; `on_loss` also with the error.
    on_failure : callable
        Called with an error once no replica runs and all attempts to start one have failed.
    crowd : callable
        Returns the number of waiting items, and of those that a replica has room for.
    """

    def __init__(
        self,
        make: Callable[[str], Replica],
        size: Size,
        faults: FaultPolicy,
        announcer: Announcer,
        *,
        can_restart: bool = True,
    ) -> None:
        self.replicas: dict[str, Replica] = {}
        self.ready: set[str] = set()
        self.on_ready: Callable[[Replica], object]
        self.on_loss: Callable[[Replica, DeviceLostError], object]
        self.on_failure: Callable[[Exception], object]
        self.crowd: Callable[[], tuple[int, int]]
        self._make = make
        self._size = size
        self._sizing = Autoscaler(size)
        self._faults = faults
        self._announcer = announcer
        self._can_restart = can_restart
        self._numbers = count()
        self._scopes: dict[str, trio.CancelScope] = {}
        self._failures: dict[str, Exception] = {}
        self._news = trio.Event()
        self._looks = trio.Event()

    async def run(self) -> None:
        """Run replicas until cancelled, then close all of them."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._size.least):
                self._add(nursery)
            while True:
                await self._resize(nursery)

    async def wait_ready(self) -> None:
        """Wait until a replica runs; PlaitError if each was refused, or lost at all attempts."""
        while not self.ready:
            if self._failures and len(self._failures) == len(self.replicas):
                raise next(iter(self._failures.values()))
            await self._news.wait()

    def look_again(self) -> None:
        """Reconsider the number of replicas after a change."""
        if self._size.least < self._size.most:
            self._looks.set()

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()
        self.look_again()

    async def _resize(self, nursery: trio.Nursery) -> None:
        waiting, room = self.crowd()
        idle = {name: one.idle_since for name, one in self.replicas.items()}
        idle = {name: since for name, since in idle.items() if since != inf}
        count, starting = len(self.replicas), len(self.replicas) - len(self.ready)
        change = self._sizing.look(trio.current_time(), count, starting, waiting, room, idle)
        for _ in range(change.start):
            self._add(nursery)
        for name in change.stop:
            self._scopes[name].cancel()
        with trio.move_on_at(change.again):
            await self._looks.wait()
        self._looks = trio.Event()

    def _add(self, nursery: trio.Nursery) -> None:
        replica = self._make(f"replica:{next(self._numbers)}")
        self.replicas[replica.name] = replica
        self._scopes[replica.name] = trio.CancelScope()
        nursery.start_soon(self._keep, replica)

    async def _keep(self, replica: Replica) -> None:
        with self._scopes[replica.name]:
            try:
                lost = False
                while True:
                    await self._open(replica, lost=lost)
                    loss = await replica.watch()
                    self._lose(replica, loss)
                    lost = True
                    if not self._can_restart:
                        await trio.sleep_forever()
            finally:
                self._leave(replica)
                await replica.close()

    async def _open(self, replica: Replica, *, lost: bool) -> None:
        attempts = 0
        while True:
            await trio.sleep(self._faults.pause_s(replica.starts))
            attempts += 1
            try:
                await replica.open()
            except Exception as error:  # of any kind: another host may succeed
                replica.kill()
                self._fail(replica, error, attempts)
            else:
                break
        self._failures.pop(replica.name, None)
        self.ready.add(replica.name)
        self.on_ready(replica)
        if lost:
            self._announcer.tell(DeviceRestored(replica.name, attempts))
        self._notify()

    def _fail(self, replica: Replica, error: Exception, attempts: int) -> None:
        is_last = attempts >= max(1, self._faults.patience)
        # The engine starts hosts on a dead node for seconds: another attempt may find a live one.
        if is_last or not isinstance(error, DeviceLostError):
            self._failures[replica.name] = error
        if is_last and not self.ready:
            self.on_failure(error)
        self._notify()

    def _lose(self, replica: Replica, loss: DeviceLostError) -> None:
        replica.kill()
        replica.idle_since = trio.current_time()
        self.ready.discard(replica.name)
        self._announcer.tell(DeviceLost(replica.name, loss))
        self.on_loss(replica, loss)
        self._notify()

    def _leave(self, replica: Replica) -> None:
        self.replicas.pop(replica.name, None)
        self._scopes.pop(replica.name, None)
        self._failures.pop(replica.name, None)
        if replica.name in self.ready:
            self.ready.discard(replica.name)
            self.on_loss(replica, DeviceLostError(f"replica {replica.name!r} is stopped"))
