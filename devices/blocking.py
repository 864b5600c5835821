"""Calls that block a thread, and how to end by force the work they wait for.

The caller on behalf of others knows when the result is not wanted any more. The work is known deep
inside of the call: perhaps a process that runs a function which never returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

T = TypeVar("T")

End: TypeAlias = Callable[[str], bool]
"""Ends something by force, given the reason; returns whether it did."""

_here = threading.local()


class BlockingCall:
    """A call of a function that may wait for work which can be ended by force."""

    def __init__(self) -> None:
        self._end: End | None = None

    def run(self, function: Callable[[], T]) -> T:
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def end(self, reason: str) -> bool:
        """End the work that is waited for, given `reason`; return whether it did. Thread-safe."""
        end = self._end
        return end is not None and end(reason)


@contextmanager
def allow_end(end: End) -> Iterator[None]:
    """Let the thread's BlockingCall, if any, end the work by `end` inside a `with` block."""
    call: BlockingCall | None = getattr(_here, "call", None)
    if call is None:
        yield
        return
    call._end = end
    try:
        yield
    finally:
        call._end = None
