"""Something happens at the n-th moment of a trio loop, for every n: a cancellation, Ctrl-C."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeAlias

import trio

Work: TypeAlias = Callable[[], Awaitable[object]]


class AtMoment(trio.abc.Instrument):
    """Calls a function once, before or after the n-th step of any task of the loop.

    Before a step its task has been woken and has not noticed yet; after it, it waits.

    Attributes
    ----------
    struck : bool
        True once the function was called.
    """

    def __init__(self, moment: int, strike: Callable[[], object]) -> None:
        self._left = moment
        self._strike = strike
        self.struck = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._pass()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._pass()

    def _pass(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.struck:
            self.struck = True
            self._strike()


async def cancel_at_each_moment(
    work: Work, check: Work, *, stride: int = 1, repeats: int = 1
) -> int:
    """Cancel work at every `stride`-th moment, and check after each; return how many there were.

    Each moment comes `repeats` times before the check.
    """
    for moment in count(0, stride):
        struck = False
        for _ in range(repeats):
            with trio.CancelScope() as scope:
                at_moment = AtMoment(moment, scope.cancel)
                trio.lowlevel.add_instrument(at_moment)
                try:
                    await work()
                finally:
                    trio.lowlevel.remove_instrument(at_moment)
            struck = struck or at_moment.struck
        await check()
        if not struck:
            return moment
    raise AssertionError("moments are without end")
