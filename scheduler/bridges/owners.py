"""Weak references to the owners of a loop's work: they wake the loop when an owner is collected.

Ctrl-C can strike a finalizer in Python at its first instruction: it is then printed and lost, and
what it should close stays open. So the callback of these references runs no bytecode. A
`methodcaller` calls a `partial`, which calls C's ``eventfd_write`` without releasing the
interpreter. The loop reads the eventfd and looks for dead references.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any

import trio

from ..runtime.loop_inbox import write_eventfd

_call_ring = methodcaller("ring")
_NOTHING: tuple[Any, ...] = (list, (), {}, None)
"""State of a `partial` that calls a C function without effects."""


class OwnerRef(weakref.ref[object]):
    """A weak reference that calls `ring` when its object is collected."""

    __slots__ = ("ring",)
    ring: Callable[[], object]

    @classmethod
    def to(cls, owner: object, ring: Callable[[], object]) -> OwnerRef:
        """Return a reference to `owner`; it must outlive the owner to ring.

        `ring` must run no bytecode, since Ctrl-C could interrupt it.
        """
        made = cls(owner, _call_ring)
        made.ring = ring
        return made


class Bell:
    """Wakes a task of a loop, if one answers.

    Any thread may call `ring`. Calls have no effect before and after `answer`.
    """

    def __init__(self) -> None:
        self.ring: Any = partial(list)  # typeshed lacks the method that sets its state

    async def answer(self, look: Callable[[], object]) -> None:
        """Call `look` at once and after each ring. Never returns."""
        if write_eventfd is None:
            await self._answer_by_token(look)
            return
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.ring.__setstate__((write_eventfd, (fd, 1), {}, None))
        try:
            while True:
                look()
                await trio.lowlevel.wait_readable(fd)
                os.eventfd_read(fd)
        finally:
            self.mute()
            os.close(fd)

    def mute(self) -> None:
        """Make calls of `ring` do nothing."""
        self.ring.__setstate__(_NOTHING)

    async def _answer_by_token(self, look: Callable[[], object]) -> None:
        """Ring by a token of the loop, without an eventfd; Ctrl-C may interrupt `look`."""
        token = trio.lowlevel.current_trio_token()

        def ring() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(look)

        self.ring.__setstate__((ring, (), {}, None))
        try:
            look()
            await trio.sleep_forever()
        finally:
            self.mute()
