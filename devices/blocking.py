"""Calls that block a thread, and the end by force of what they wait for.

Whoever runs such a call for others knows when nobody wants its result any more; what it waits for
is known deep inside it, perhaps a process that runs a function which never returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

T = TypeVar("T")

End: TypeAlias = Callable[[str], bool]
"""Ends something by force, given the reason; says whether it did."""

_here = threading.local()


class BlockingCall:
    """A call of a function that may wait for what can be ended by force."""

    def __init__(self) -> None:
        self._end: End | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Call the function, on the calling thread."""
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def end(self, reason: str) -> bool:
        """End what the function waits for at this moment, if it can be; from any thread."""
        end = self._end
        return end is not None and end(reason)


@contextmanager
def waiting_for(end: End) -> Iterator[None]:
    """Wait, inside, for what `end` ends by force, should nobody want it any more."""
    call: BlockingCall | None = getattr(_here, "call", None)
    if call is None:
        yield
        return
    call._end = end
    try:
        yield
    finally:
        call._end = None
