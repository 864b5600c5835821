"""A trampoline: a thread's actions after the end of a step, one after the other.

The end of a step may lead to the start of others, on this thread, and their end to that of more.
To limit the depth of calls, later work is noted, and done in turn by the
outermost call: first handing work to other threads, then work on this one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]


class Trampoline(threading.local):
    def __init__(self) -> None:
        self.first: deque[Action] = deque()
        self.later: deque[Action] = deque()
        self._is_bouncing = False
        self.n_later = 0

    def run(self) -> None:
        """Do the noted work, unless an outer call on this thread will."""
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
