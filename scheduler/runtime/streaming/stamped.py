"""Items with the time, or the key, that their source gave them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any, NamedTuple


class Stamped(NamedTuple):
    """What a source gives, and when that is from, or which of its kind it is.

    Streams take it in place of an item, which then has the stamp; `join` matches by it.

    Attributes
    ----------
    stamp : float or int
        A time in seconds, on a clock that the sources have in common, or a whole number as a key.
    value : Mapping or array
        The feeds of an item; for `join` also what is fed to one input, or None as a heartbeat: the
        source has come as far as the stamp, and has no item there.
    """

    stamp: float
    value: Any


class ClosableSource(Generator[Stamped, None, None]):
    """A generator that is written as a class; what is thrown in closes it."""

    def throw(
        self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /
    ) -> Stamped:
        """Close it, and raise."""
        self.close()
        return super().throw(kind, value, traceback)


class AsyncClosableSource(AsyncGenerator[Stamped, None]):
    """The same for an asynchronous one."""

    async def athrow(
        self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /
    ) -> Stamped:
        """Close it, and raise."""
        await self.aclose()
        return await super().athrow(kind, value, traceback)
