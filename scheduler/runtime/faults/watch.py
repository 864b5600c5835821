"""Work that goes on after it was given up: its worker is killed, and started again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from ....devices.blocking import BlockingCall
from ...plans.placement import Step
from ..items.executor import Execution
from ..items.item import ItemRun
from ..virtual_time import Raised, VirtualTimeDriver, result_of
from .recovery import Recovery

T = TypeVar("T")

logger = logging.getLogger(__name__)

MOST_PATIENCE = 64
"""What opens a plan is killed after so many times `grace_s` at the latest."""


class Watch:
    """Waits for what was given up; used on the trio thread only.

    Parameters
    ----------
    recovery : Recovery
    driver : VirtualTimeDriver
    """

    def __init__(self, recovery: Recovery, driver: VirtualTimeDriver) -> None:
        self._recovery = recovery
        self._driver = driver
        self._grace_s = recovery.policy.grace_s
        self._patience = 1
        self._scopes: set[trio.CancelScope] = set()
        self._openings: set[trio.Event] = set()
        self._closing = False

    def over(self, item_run: ItemRun, steps: tuple[Step, ...]) -> None:
        """Watch an item that was cancelled until it has ended."""
        self._driver.spawn(self._watch, item_run, steps)

    def close(self) -> None:
        """Give up whatever plans are opened for: the session is left."""
        self._closing = True
        for scope in self._scopes:
            scope.cancel()

    def abandon(self) -> None:
        """Wait for nothing that plans are opened with: it may never end."""
        for ended in self._openings:
            ended.set()

    async def on_thread(self, function: Callable[[], T]) -> T:
        """Call a function that opens or binds, as `VirtualTimeDriver.on_thread`.

        A worker imports modules for that, and opens what nodes own: if it does not come to an end
        with it when this is cancelled or the session is left, it is killed.
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
                outcome.errors.clear()  # of no interest, and it holds what its frames refer to
                raise
        return result_of(outcome)

    async def until(
        self,
        ended: trio.Event,
        kill: Callable[[str], object],
        cancel: Callable[[], object] | None = None,
    ) -> None:
        """Wait for the end of what a plan is opened with, also when this is cancelled.

        If so, or if the session is left, it is cancelled, and then killed. Others may need the
        plan, too: where what takes long is merely slow, it comes to its end at last, since it is
        given twice the time after each kill.
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
                reason = f"the plan that it opened was given up {seconds:g} s before"
                if not ended.is_set() and kill(reason):
                    self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._openings.discard(ended)

    async def _watch(self, item_run: ItemRun, steps: tuple[Step, ...]) -> None:
        while not item_run.done.is_set():
            with trio.move_on_after(self._grace_s):
                await item_run.done.wait()
            if item_run.execution is not None:
                reason = f"it went on for {self._grace_s:g} s after its item was given up"
                self.kill(item_run.execution, steps, reason)

    def kill(self, execution: Execution, steps: tuple[Step, ...], reason: str) -> bool:
        """Kill what works at an execution; say whether something did."""
        killed = False
        for step, event in zip(steps, execution.events, strict=True):
            device = self._recovery.device(step.device)
            if device is None or event is None or event.done:
                continue
            if device.kill(event, reason):
                killed = True
                logger.warning("%s was killed: %s", step.device, reason)
        return killed
