"""The lock of a session's variables: items that assign take turns.

Items that assign go one at a time, in the order in which they came. Items that only read go when
they like, also while one that assigns is under way: what that assigns it keeps to itself until it
is committed. For that moment, nobody reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio

from ..opened.slots import session_closed_error


class VariableLock:
    """Used on the trio thread only; whoever has a turn is known by something hashable.

    Taking a turn again that one has already changes nothing, nor does leaving without one.

    Attributes
    ----------
    is_closing : bool
        True when no more turns are given.
    """

    def __init__(self) -> None:
        self._readers: set[Hashable] = set()
        self._writer: Hashable | None = None
        self._queue: deque[tuple[Hashable, trio.Event]] = deque()
        self._committing = False
        self._changed = trio.Event()
        self.is_closing = False

    @property
    def is_read(self) -> bool:
        """True while items read that do not assign."""
        return bool(self._readers)

    @property
    def is_assigned(self) -> bool:
        """True while a turn to assign is taken or waited for."""
        return self._committing or self._writer is not None or bool(self._queue)

    def refuse(self) -> None:
        """Turn away whoever waits, and all that come."""
        self.is_closing = True
        self._wake()
        for _, reached in self._queue:
            reached.set()
        self._queue.clear()

    async def share(self, who: Hashable) -> None:
        """Take a turn beside others that read.

        Raises
        ------
        SessionError
            If the session is being closed.
        """
        while self._committing and not self.is_closing:
            await self._changed.wait()
        self._check()
        self._readers.add(who)

    async def take(self, who: Hashable) -> None:
        """Wait until all that came before to assign have left.

        Raises
        ------
        SessionError
            If the session is being closed.
        """
        self._check()
        if self._writer == who:
            return
        if self._writer is None:
            self._writer = who
            return
        waiting = who, trio.Event()
        self._queue.append(waiting)
        try:
            await waiting[1].wait()
            self._check()
        except BaseException:
            if waiting in self._queue:
                self._queue.remove(waiting)
            self.leave(who)
            raise

    def leave(self, who: Hashable) -> None:
        """Give a turn up."""
        if who in self._readers:
            self._readers.discard(who)
            self._wake()
        if self._writer == who and who is not None:
            self._writer = None
            if self._queue:
                self._writer, reached = self._queue.popleft()
                reached.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep others from reading; for who has the turn to assign."""
        self._committing = True
        try:
            while self._readers:
                await self._changed.wait()
            yield
        finally:
            self._committing = False
            self._wake()

    def _check(self) -> None:
        if self.is_closing:
            raise session_closed_error()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
