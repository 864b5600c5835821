"""A trampoline: a thread's actions after the end of a step, one after the other.

The end of a step may lead to the start of others, on this thread, and their end to that of more.
So that this does not go deeper and deeper, whatever is to follow is noted, and done in turn by the
outermost call: first what only has to be handed to other threads, then what takes time on this one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]


class Trampoline(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.first: deque[Action] = deque()
        self.later: deque[Action] = deque()
        self._is_bouncing = False
        self.n_later = 0

    def run(self) -> None:
        """Do what was noted, unless an outer call on this thread is about to."""
        if self._is_bouncing or not (self.first or self.later):
            return
        self._is_bouncing, self.n_later = True, 0
        try:
            while self.first or self.later:
                if self.first:
                    self.first.popleft()()
                else:
                    self.n_later += 1
                    self.later.popleft()()
        finally:
            self._is_bouncing = False
