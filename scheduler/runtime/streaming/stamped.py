"""Items with a time or key from their source."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ...errors import SourceError
from ...profile.timestamps import Timestamps


class Stamped(NamedTuple):
    """A value from a source, with its time or its key.

    Streams accept it as an item, which then has the stamp; `join` matches items by stamp.

    Attributes
    ----------
    stamp : float or int
        A time in seconds, on a clock common to the sources, or a whole number as a key.
    value : Mapping or array
        The feeds of an item; for `join` also the value of one input, or None as a heartbeat: the
        source has reached the stamp, and has no item there.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> one = pl.Stamped(0.04, {"frame": np.zeros(2)})
    >>> one.stamp
    0.04
    """

    stamp: float
    value: Any


class Matched(Stamped):
    """The items of a join: one of its first source, with its partners.

    Attributes
    ----------
    waited_ns : int
        For how long the join had it, and they had not come.
    """

    waited_ns = 0


def is_stamp(value: object, by: str = "time") -> bool:
    """Return whether `value` is a whole number of 64 bits, or a finite one if `by` is "time"."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return -(1 << 63) <= int(value) < 1 << 63
    return by == "time" and isinstance(value, float | np.floating) and math.isfinite(value)


def stamp_error(source: str, stamp: object, by: str = "time") -> SourceError:
    try:
        shown = repr(stamp)
    except ValueError:  # an integer of thousands of digits
        shown = "of thousands of digits"
    wanted = "a time in seconds" if by == "time" else "a whole number of 64 bits at most"
    return SourceError(f"{source} gave the {by} {shown:.80}", fix=f"stamp items with {wanted}")


def unstamp(item: Stamped, marks: Timestamps) -> Any:
    """Return the feeds of `item`, and note its stamp in `marks`.

    Raises SourceError if the stamp is not a number.
    """
    if not is_stamp(item.stamp):
        raise stamp_error("the source", item.stamp)
    marks.stamp = item.stamp
    if isinstance(item, Matched):
        marks.prepare("partners", marks.given_ns - item.waited_ns, marks.given_ns)
    return item.value


class Handed(NamedTuple):
    """An item that another thread has pulled from a source, with its times."""

    marks: Timestamps
    feeds: Mapping[str, Any]


class ClosableSource(Generator[Stamped, None, None]):
    """A generator that is written as a class; thrown errors close it."""

    def throw(
        self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /
    ) -> Stamped:
        self.close()
        return super().throw(kind, value, traceback)


class AsyncClosableSource(AsyncGenerator[Stamped, None]):
    async def athrow(
        self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /
    ) -> Stamped:
        await self.aclose()
        return await super().athrow(kind, value, traceback)
