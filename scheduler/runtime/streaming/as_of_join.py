"""The as-of join: each item of one source with those of others that are nearest by stamp.

The result follows from the order of each source alone, not from which source was faster. An
item is late if its stamp is below its source's watermark: the highest stamp so far, less the
lateness that is allowed. So at most the items within lateness and tolerance wait here.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...errors import SourceError
from .stamped import Matched, Stamped, is_stamp, stamp_error

By = Literal["time", "key"]
Missing = Literal["drop", "previous", "raise"]


@dataclass(frozen=True, slots=True)
class JoinStatus:
    """The state of a join; mappings are by source.

    Attributes
    ----------
    matched : int
        The number of items of the first source that were returned with their partners.
    missing : Mapping of str to int
        The number of items of the first source without a partner in that source; they were dropped,
        unless ``missing="previous"`` found an earlier partner.
    late : Mapping of str to int
        The number of items below the watermark of their source, which were dropped.
    unused : Mapping of str to int
        The number of items of the other sources that were not used as a partner.
    waiting : Mapping of str to int
        The number of items that are held, for their partners or for their place in the order.

    Examples
    --------
    >>> import plait as pl
    >>> frames = [pl.Stamped(0.00, "f0"), pl.Stamped(0.04, "f1")]
    >>> sounds = [pl.Stamped(0.01, "s0")]
    >>> joined = pl.join({"frame": frames, "sound": sounds}, tolerance_s=0.02)
    >>> len(list(joined))
    1
    >>> status = joined.status()
    >>> status.matched, status.missing
    (1, {'sound': 1})
    """

    matched: int
    missing: Mapping[str, int]
    late: Mapping[str, int]
    unused: Mapping[str, int]
    waiting: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain values, for JSON."""
        return asdict(self)


class AsOfJoin:
    """Matches each item of the first source with those of the others, as they come.

    `tolerance` and `lateness` have the unit of the stamps.
    """

    def __init__(
        self,
        names: Sequence[str],
        by: By,
        tolerance: float,
        lateness: float,
        missing: Missing,
        max_waiting: int,
    ) -> None:
        self._by = by
        self._tolerance = tolerance
        self._missing = missing
        self._sides = {name: _Side(name, lateness, max_waiting) for name in names}
        self._first, *self._others = self._sides.values()
        self._matched = 0

    def put(self, name: str, item: object) -> None:
        """Take `item`, the next of source `name`.

        Raises SourceError if it has no stamp, or more wait than may.
        """
        self._sides[name].put(self._checked(name, item))

    def end(self, name: str) -> None:
        self._sides[name].watermark = math.inf

    def lacking(self) -> list[str]:
        """Return the names of sources that must advance before another item can be matched.

        None of them can be done without: `pop` waits for each. Without any all is over.
        """
        head = self._first.head
        if head is None:
            return [self._first.name] if self._first.watermark < math.inf else []
        is_next = head.stamp <= self._first.watermark  # an equal one that comes later follows it
        lacking = [] if is_next else [self._first.name]
        return lacking + [side.name for side in self._others if not self._is_settled(side, head)]

    def pop(self) -> Stamped | None:
        """Return the next item with its partners; None as long as sources are `lacking`.

        Raises SourceError if a partner is missing, and that is to be raised.
        """
        while (head := self._first.head) is not None and not self.lacking():
            self._first.items.pop(0)
            found = {self._first.name: head}
            for side in self._others:
                # Later items of the first source have stamps as high: items too far below this
                # one is for none.
                keep_last = self._missing == "previous"
                side.forget(head.stamp, self._tolerance, keep_last=keep_last)
                partner = self._partner(side, head)
                if partner is None:
                    side.missing += 1
                    partner = self._stand_in(side, head)
                if partner is not None:
                    found[side.name] = partner
            if len(found) == len(self._sides):
                self._matched += 1
                for one in found.values():
                    one.is_used = True
                matched = Matched(head.stamp, _merge_feeds(found))
                matched.waited_ns = time.perf_counter_ns() - head.since_ns
                return matched
        # Nothing asks for partners any more: all that wait are unused.
        if self._first.head is None and self._first.watermark == math.inf:
            for side in self._others:
                side.forget(math.inf, 0)
        return None

    def status(self) -> JoinStatus:
        sides = self._sides.values()
        return JoinStatus(
            self._matched,
            {side.name: side.missing for side in self._others},
            {side.name: side.late for side in sides},
            {side.name: side.unused for side in self._others},
            {side.name: len(side.items) for side in sides},
        )

    def _partner(self, side: _Side, head: _Waiting) -> _Waiting | None:
        # Of two that are as near, `min` takes the first, which is the earlier one.
        around = side.around(head.stamp)
        nearest = min(around, key=lambda one: abs(one.stamp - head.stamp), default=None)
        is_near = nearest is not None and abs(nearest.stamp - head.stamp) <= self._tolerance
        return nearest if is_near else None

    def _is_settled(self, side: _Side, head: _Waiting) -> bool:
        partner, ahead = self._partner(side, head), side.watermark - head.stamp
        if partner is None:
            # Later than that, nothing that comes is near enough.
            return ahead > self._tolerance
        distance = abs(partner.stamp - head.stamp)
        # Later items are at the watermark or above: if that is as far away, none is nearer.
        return distance == 0 or ahead >= distance

    def _stand_in(self, side: _Side, head: _Waiting) -> _Waiting | None:
        if self._missing == "raise":
            raise SourceError(
                f"{self._first.name!r} at {self._by} {head.stamp} has no partner in {side.name!r}",
                fix="allow more tolerance or lateness, or missing='drop' or 'previous'",
            )
        return side.latest_before(head.stamp) if self._missing == "previous" else None

    def _checked(self, name: str, item: object) -> Stamped:
        if not isinstance(item, tuple) or len(item) != 2:
            raise SourceError(
                f"source {name!r} gave a {type(item).__name__} without a stamp",
                fix=f"yield pl.Stamped({self._by}, value)",
            )
        if not is_stamp(item[0], self._by):
            raise stamp_error(f"source {name!r}", item[0], self._by)
        return Stamped(*item)


@dataclass(slots=True, eq=False)
class _Waiting:
    """An item that waits for partners, or to be one."""

    stamp: float
    value: Any
    since_ns: int
    is_used: bool = False


class _Side:
    """The waiting items of one source, by stamp and order of arrival."""

    def __init__(self, name: str, lateness: float, max_waiting: int) -> None:
        self.name = name
        self.watermark = -math.inf
        self.items: list[_Waiting] = []
        self.missing = self.late = self.unused = 0
        self._lateness = lateness
        self._max_waiting = max_waiting

    @property
    def head(self) -> _Waiting | None:
        return self.items[0] if self.items else None

    def put(self, item: Stamped) -> None:
        # By the watermark before it: no item makes itself late.
        is_late = item.stamp < self.watermark
        self.watermark = max(self.watermark, item.stamp - self._lateness)
        if item.value is None:  # a heartbeat
            return
        if is_late:
            self.late += 1
            return
        if len(self.items) == self._max_waiting:
            raise SourceError(
                f"{self._max_waiting:,} items of source {self.name!r} wait for others to come",
                fix="see that its stamps grow; allow less lateness, or more by max_waiting=",
            )
        # After those of the same stamp: they came earlier.
        place = bisect_right(self.items, item.stamp, key=_stamp)
        self.items.insert(place, _Waiting(*item, time.perf_counter_ns()))

    def around(self, stamp: float) -> Iterable[_Waiting]:
        items = self.items
        place = bisect_left(items, stamp, key=_stamp)
        # Of equal stamps the first, as ties go to the earlier item.
        if place:
            yield items[bisect_left(items, items[place - 1].stamp, key=_stamp)]
        yield from items[place : place + 1]

    def latest_before(self, stamp: float) -> _Waiting | None:
        place = bisect_left(self.items, stamp, key=_stamp)
        return self.items[place - 1] if place else None

    def forget(self, stamp: float, tolerance: float, *, keep_last: bool = False) -> None:
        """Drop items more than `tolerance` below `stamp`; `keep_last` keeps the last of them."""
        # By differences, as partners are: a sum could be rounded to the other side.
        over = bisect_left(self.items, -tolerance, key=lambda one: one.stamp - stamp)
        gone = self.items[: max(over - keep_last, 0)]
        self.unused += sum(not one.is_used for one in gone)
        del self.items[: len(gone)]


def _stamp(one: _Waiting) -> float:
    return one.stamp


def _merge_feeds(found: Mapping[str, _Waiting]) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    for name, one in found.items():
        part = one.value if isinstance(one.value, Mapping) else {name: one.value}
        both = feeds.keys() & part.keys()
        if both:
            raise SourceError(
                f"source {name!r} and one before it both give {min(both)!r}",
                fix="give each input by one source",
            )
        feeds.update(part)
    return feeds
