"""Watches cancelled work: a worker that continues with it is killed and restarted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from ....devices.blocking import BlockingCall
from ....devices.event import Event
from ...plans.placement import Step
from ..virtual_time import Raised, VirtualTimeDriver, take_result
from .recovery import Recovery

T = TypeVar("T")
Events: TypeAlias = Sequence[Event | None]

logger = logging.getLogger(__name__)

MOST_PATIENCE = 64
"""Multiple of `grace_s` after which a worker that still opens a plan is killed."""


class Watch:
    """Waits for the end of cancelled work; used on the trio thread only."""

    def __init__(self, recovery: Recovery, driver: VirtualTimeDriver) -> None:
        self._recovery = recovery
        self._driver = driver
        self._grace_s = recovery.policy.grace_s
        self._patience = 1
        self._scopes: set[trio.CancelScope] = set()
        self._openings: set[trio.Event] = set()
        self._closing = False

    def over(self, done: trio.Event, steps: Sequence[Step], events: Events) -> None:
        self._driver.spawn(self._watch, done, steps, events)

    def close(self) -> None:
        """Cancel the opening of plans, as the session is closing."""
        self._closing = True
        for scope in self._scopes:
            scope.cancel()

    def abandon(self) -> None:
        """Stop waiting for workers that open plans, which may never end."""
        for ended in self._openings:
            ended.set()

    async def on_thread(self, function: Callable[[], T]) -> T:
        """Call `function`, which opens or binds, on a thread, and return its result.

        A worker imports modules and opens resources of nodes for that. If this is cancelled or the
        session closes, and the worker does not finish, it is killed.
        """
        if not self._recovery.watches:
            return await self._driver.on_thread(function)
        await trio.lowlevel.checkpoint_if_cancelled()
        call, ended = BlockingCall(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.until, ended, call.end)
            try:
                outcome = await self._driver.try_on_thread(partial(call.run, function))
            finally:
                ended.set()
        if isinstance(outcome, Raised):
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
            except trio.Cancelled:
                outcome.errors.clear()  # unneeded, and their frames keep objects alive
                raise
        return take_result(outcome)

    async def until(
        self,
        ended: trio.Event,
        kill: Callable[[str], object],
        cancel: Callable[[], object] | None = None,
    ) -> None:
        """Wait until `ended` is set by the opening of a plan, even if the caller is cancelled.

        Then, or when the session closes, `cancel` is called, and later `kill` with a reason. The
        time until the kill doubles each time, so that merely slow openings, which other items may
        need, finish in the end.
        """
        self._openings.add(ended)
        with trio.CancelScope() as scope, suppress(trio.Cancelled):
            self._scopes.add(scope)
            if self._closing:
                scope.cancel()
            await ended.wait()
        self._scopes.discard(scope)
        if cancel is not None and not ended.is_set():
            cancel()
        with trio.CancelScope(shield=True):
            while not ended.is_set():
                seconds = self._grace_s * (1 if self._closing else self._patience)
                with trio.move_on_after(seconds):
                    await ended.wait()
                reason = f"it was still opening a plan {seconds:g} s after that was cancelled"
                if not ended.is_set() and kill(reason):
                    self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._openings.discard(ended)

    async def _watch(self, done: trio.Event, steps: Sequence[Step], events: Events) -> None:
        while not done.is_set():
            with trio.move_on_after(self._grace_s):
                await done.wait()
            if not done.is_set():
                reason = f"it continued for {self._grace_s:g} s after its item was cancelled"
                self.kill(steps, events, reason)

    def kill(self, steps: Sequence[Step], events: Events, reason: str) -> bool:
        killed = False
        for step, event in zip(steps, events, strict=True):
            device = self._recovery.device(step.device)
            if device is None or event is None or event.done:
                continue
            if device.kill(event, reason):
                killed = True
                logger.warning("%s was killed: %s", step.device, reason)
        return killed
