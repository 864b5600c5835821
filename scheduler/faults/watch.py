"""Work that goes on after its item was given up: its worker is killed, and started again."""

from __future__ import annotations

import logging

import trio

from ..running.item import Flight
from ..steps import Step
from .recovery import Recovery

logger = logging.getLogger(__name__)


class Watch:
    """Waits for items that were given up; used on the trio thread only.

    Parameters
    ----------
    recovery : Recovery
    """

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._grace_s = recovery.policy.grace_s

    def over(self, flight: Flight, steps: tuple[Step, ...]) -> None:
        """Watch an item that was cancelled until it has ended."""
        trio.lowlevel.spawn_system_task(self._watch, flight, steps)

    async def _watch(self, flight: Flight, steps: tuple[Step, ...]) -> None:
        while not flight.done.is_set():
            with trio.move_on_after(self._grace_s):
                await flight.done.wait()
            if flight.execution is not None:
                self._kill(flight, steps)

    def _kill(self, flight: Flight, steps: tuple[Step, ...]) -> None:
        assert flight.execution is not None
        reason = f"it went on for {self._grace_s:g} s after its item was given up"
        for step, event in zip(steps, flight.execution.events, strict=True):
            device = self._recovery.device(step.device)
            if device is None or event is None or event.done:
                continue
            if device.kill(event, reason):
                logger.warning("%s was killed: %s", step.device, reason)
