"""Recovery of lost devices: detects losses, restarts devices, and replaces plans meanwhile.

A dead device is restarted at once; if it dies again before an item succeeds on it, or fails to
start, after a growing pause. Meanwhile, plans that need it are replaced by plans for the remaining
devices. If that fails, items wait until the device is back, or has died or failed to start too
often in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import trio

from ....devices.device import Restartable
from ....devices.errors import DeviceLostError, UnsupportedNodeError
from ....devices.refusals import count_refusals
from ...errors import session_closed_error
from ...planner.standby import list_devices, may_refuse, note_refusals, plan_around, plan_without
from ...plans.plan import Plan
from ..events import Announcer, DeviceLost, DeviceRestored, NodesRefused, PlanReplaced
from ..virtual_time import VirtualTimeDriver
from .open_devices import OpenDevices
from .policy import FaultPolicy

logger = logging.getLogger(__name__)

Retire: TypeAlias = Callable[[str], object]
"""Retires plans, given the device that is lost or back."""


class Recovery:
    """Restarts the devices of a session that may die; used on the trio thread only.

    `on_loss` and `on_return` are called with a device's name after its loss is detected, and when
    it is back; `spawn` starts a system task.
    """

    def __init__(
        self,
        devices: OpenDevices,
        driver: VirtualTimeDriver,
        policy: FaultPolicy,
        announcer: Announcer,
    ) -> None:
        self.policy = policy
        self.lost: dict[str, DeviceLostError] = {}
        self.on_loss: Retire = _ignore
        self.on_return: Retire = _ignore
        self._devices = devices
        self._driver = driver
        self._announcer = announcer
        self._restartable: dict[str, Restartable] = {}
        self._lives: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._since_s: dict[str, float] = {}  # the first of the deaths that `_starts` counts
        self._failing: set[str] = set()
        self._replaced: set[frozenset[str]] = set()
        self._standbys: dict[tuple[int, frozenset[str]], tuple[ref[Plan], Plan | None]] = {}
        self._changed = trio.Event()
        self._starting = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._ended = trio.Event()
        self._stopped = False
        self._on_failure = partial(driver.post, self.examine)
        self.spawn = driver.spawn

    def add(self, name: str) -> None:
        """Watch the open device `name` if it may die."""
        device = self._devices.by_name[name]
        if isinstance(device, Restartable):
            self._restartable[name] = device
            device.on_failure.append(self._on_failure)
            self._lives[name] = device.generation

    @property
    def watches(self) -> bool:
        """True if a device of the session may die."""
        return bool(self._restartable)

    def concerns(self, plan: Plan) -> bool:
        """Return whether `plan` has work for a device that may die."""
        return self.watches and not self._restartable.keys().isdisjoint(list_devices(plan))

    def may_replay(self, plan: Plan) -> bool:
        """Return whether items of `plan` may run again, on restarted or on other devices."""
        if not self.policy.replays:
            return False
        mortal = list_devices(plan) & self._restartable.keys()
        comes_back = any(self._restartable[name].can_restart for name in mortal)
        return comes_back or bool(plan.replicas) or len(plan.prototypes) > 1

    def lives(self, plan: Plan) -> Mapping[str, int | None]:
        """Return the generation of each mortal device of `plan`; None while it is lost."""
        names = list_devices(plan) & self._restartable.keys()
        return {name: None if name in self.lost else self._lives[name] for name in names}

    def device(self, name: str) -> Restartable | None:
        return self._restartable.get(name)

    def examine(self) -> bool:
        """Detect devices that have died since the last call; return whether there are any."""
        found = [
            name for name in self._restartable if name not in self.lost and self._is_dead(name)
        ]
        for name in found:
            device = self._restartable[name]
            self.lost[name] = device.failure or DeviceLostError(f"{name!r} was started again")
            self._announcer.tell(DeviceLost(name, self.lost[name]))
            self.on_loss(name)
            if device.can_restart and not self._stopped:
                self._spawn(partial(self._revive, name))
        return bool(found)

    def note_refusals(self, plan: Plan, error: UnsupportedNodeError, known: int) -> bool:
        """Note and announce nodes of `plan` refused with `error`; return if it is out of date.

        The plan avoids the first `known` refusals of this process: it is if there are more.
        """
        found = note_refusals(plan, error)
        for device, nodes in found.items():
            self._announcer.tell(NodesRefused(device, nodes, error))
            logger.warning("%s refused %s: %s", device, ", ".join(nodes), error.what)
        return count_refusals() > known

    def trust(self, plan: Plan) -> None:
        """Reset the pauses of the devices of `plan` after an item has succeeded on it."""
        if self._starts:
            for name in list_devices(plan):
                self._starts.pop(name, None)
                self._since_s.pop(name, None)

    async def adapt(self, plan: Plan) -> Plan:
        """Return the plan, or one without lost devices; wait while neither can run.

        Raises DeviceLostError if `plan` needs a device that cannot restart; SessionError if the
        session is being closed.
        """
        if may_refuse(plan):
            plan = await self._driver.on_thread(partial(plan_around, plan))
        while lost := self._lost_of(plan):
            if self._stopped:
                raise session_closed_error()
            stand_in = await self._standby(plan, lost) if self.policy.standby else None
            # During planning, other devices may have died, or these may have come back.
            if self._lost_of(plan) != lost:
                continue
            if stand_in is not None:
                self._announcer.tell(PlanReplaced(tuple(sorted(list_devices(stand_in)))))
                self._replaced.add(list_devices(plan))
                return stand_in
            for name in lost:
                if name in self._failing or not self._restartable[name].can_restart:
                    raise self.lost[name].again()
            await self._changed.wait()
        return plan

    async def await_change(self) -> None:
        """Wait until a lost device is back, or the next attempt to start it fails."""
        if not self._stopped and any(self._restartable[name].can_restart for name in self.lost):
            await self._changed.wait()

    def prepare(self, plan: Plan) -> None:
        """Make plans for the loss of each mortal device of `plan`, in the background."""
        if self.policy.standby:
            for name in list_devices(plan) & self._restartable.keys():
                self._spawn(partial(self._prepare, plan, frozenset({name})))

    def stop(self) -> None:
        """Cancel all restarts, and wake the items that wait for a device, which then fail."""
        if self._stopped:
            return
        self._stopped = True
        for device in self._restartable.values():
            device.on_failure.remove(self._on_failure)
        for scope in self._scopes:
            scope.cancel()
        self._wake()

    async def wait_stopped(self) -> None:
        if self._scopes:
            await self._ended.wait()

    def _lost_of(self, plan: Plan) -> frozenset[str]:
        return list_devices(plan).intersection(self.lost)

    def _is_dead(self, name: str) -> bool:
        device = self._restartable[name]
        return device.failure is not None or device.generation != self._lives[name]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        scope = trio.CancelScope()
        self._scopes.add(scope)
        self._driver.spawn(self._in_scope, scope, work)

    async def _in_scope(
        self, scope: trio.CancelScope, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        with scope:
            await work()
        self._scopes.discard(scope)
        if self._stopped and not self._scopes:
            self._ended.set()

    async def _revive(self, name: str) -> None:
        attempts = 0
        while self._is_dead(name) or not attempts:
            starts = self._starts.get(name, 0)
            since_s = self._since_s.setdefault(name, trio.current_time())
            is_late = trio.current_time() >= since_s + self.policy.patience_s
            if is_late and starts > self._most_deaths:  # it starts, but dies before an item ends
                self._fail_items(name)
            with trio.move_on_after(self.policy.pause_s(starts)):
                await self._starting.wait()
            # All lost devices start together: otherwise items that need several short-lived ones
            # would rarely find them alive at the same time.
            self._starting.set()
            self._starting = trio.Event()
            attempts += 1
            self._starts[name] = starts + 1
            await self._start(name)
            is_late = trio.current_time() >= since_s + self.policy.patience_s
            if is_late and self._is_dead(name) and attempts >= max(1, self.policy.patience):
                self._fail_items(name)
        del self.lost[name]
        self._failing.discard(name)
        self._announcer.tell(DeviceRestored(name, attempts))
        self.on_return(name)
        for devices in self._replaced:
            self._announcer.tell(PlanReplaced(tuple(sorted(devices - self.lost.keys()))))
        self._replaced.clear()
        self._wake()

    @property
    def _most_deaths(self) -> int:
        """Limit of a device's deaths in a row; at least `replays`, as one item may cause them."""
        return max(self.policy.patience, self.policy.replays)

    def _fail_items(self, name: str) -> None:
        self._failing.add(name)
        self._wake()

    async def _start(self, name: str) -> None:
        try:
            await self._driver.on_thread(partial(self._devices.reopen, name))
        except Exception as error:  # of any kind: the loop must survive and try again
            self.lost[name].__cause__ = error
        else:
            self._lives[name] = self._restartable[name].generation

    async def _standby(self, plan: Plan, lost: frozenset[str]) -> Plan | None:
        key = id(plan), lost
        if key not in self._standbys:
            made = await self._driver.on_thread(partial(plan_without, plan, lost))
            # Removed with the plan, since another one may then get its id.
            known = self._standbys
            known[key] = ref(plan, lambda _: known.pop(key, None)), made
        return self._standbys[key][1]

    async def _prepare(self, plan: Plan, lost: frozenset[str]) -> None:
        with suppress(Exception):  # repeated when the plan is needed
            await self._standby(plan, lost)


def _ignore(_: object) -> None:
    """Do nothing."""
