"""The lock of a session's variables: items that assign take turns.

Items that assign run one at a time, in order of arrival, or as a group of items that hand variables
on to each other. Items that only read run at any time, also during an assigning item: its values
are private until it commits them. During a commit, no item reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio

from ...errors import session_closed_error


class VariableLock:
    """Gives turns to holders, which are identified by a hashable; used on the trio thread only.

    To take a turn twice, or to leave without one, has no effect. While it `is_closing`, turns are
    refused.
    """

    def __init__(self) -> None:
        self._readers: set[Hashable] = set()
        self._writer: Hashable | None = None
        self._queue: deque[tuple[Hashable, trio.Event, Hashable]] = deque()
        self._members: set[Hashable] = set()
        self._committing = False
        self._changed = trio.Event()
        self.is_closing = False

    @property
    def is_read(self) -> bool:
        """True while items that do not assign are reading."""
        return bool(self._readers)

    @property
    def is_assigned(self) -> bool:
        """True while a turn to assign is taken or waited for."""
        return self._committing or self._writer is not None or bool(self._queue)

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def has_joined(self, holder: Hashable) -> bool:
        return holder in self._members

    def refuse(self) -> None:
        self.is_closing = True
        self._wake()
        for _, reached, _ in self._queue:
            reached.set()
        self._queue.clear()

    async def share(self, holder: Hashable) -> None:
        """Give `holder` a turn to read, shared with other readers.

        Raises SessionError if the session is being closed.
        """
        while self._committing and not self.is_closing:
            await self._changed.wait()
        self._check()
        self._readers.add(holder)

    async def take(self, holder: Hashable) -> None:
        """Give `holder` a turn to assign, after all earlier ones.

        Raises SessionError if the session is being closed.
        """
        self._check()
        if self._writer == holder:
            return
        if self._writer is None:
            self._writer = holder
            return
        await self._wait(holder, None)

    def join_nowait(self, holder: Hashable, group: Hashable) -> bool:
        """Join `group` if it has or can take the turn; return whether `holder` is a member."""
        self._check()
        if holder in self._members:
            return True
        if self._queue or self._writer not in (None, group):
            return False
        self._writer = group
        self._members.add(holder)
        return True

    async def join(self, holder: Hashable, group: Hashable) -> None:
        """Have `holder` join `group`, and wait for its turn.

        Raises SessionError if the session is being closed.
        """
        if not self.join_nowait(holder, group):
            await self._wait(holder, group)

    async def _wait(self, holder: Hashable, group: Hashable) -> None:
        waiting = holder, trio.Event(), group
        self._queue.append(waiting)
        try:
            await waiting[1].wait()
            self._check()
        except BaseException:
            if waiting in self._queue:
                self._queue.remove(waiting)
            elif self.leave(holder):
                self.pass_on()
            raise

    def leave(self, holder: Hashable) -> bool:
        """End the turn of `holder`; return True for the last of a group: then call `pass_on`."""
        if holder in self._readers:
            self._readers.discard(holder)
            self._wake()
        if holder in self._members:
            self._members.discard(holder)
            return not self._members
        if self._writer == holder and holder is not None:
            self._writer = None
            self.pass_on()
        return False

    def pass_on(self) -> None:
        """Give the turn to the next in the queue, unless a group has it meanwhile."""
        if self._members:
            return
        self._writer = None
        while self._queue:
            holder, reached, group = self._queue[0]
            if self._writer is not None and (group is None or group != self._writer):
                return
            self._queue.popleft()
            self._writer = holder if group is None else group
            if group is not None:
                self._members.add(holder)
            reached.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Exclude readers; the caller must have the turn to assign."""
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
