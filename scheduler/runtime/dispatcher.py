"""The choice of replicas for each item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import trio

from ..dispatch.hand_over import LONG, get_hand_over_ns
from ..dispatch.rotation import Rotation
from ..plans.replicas import Groups, count_variants
from .items.item import ItemRun
from .opened.lanes import OpenLane
from .opened.open_plan import OpenPlan


@dataclass(slots=True)
class _Bound:
    """An item on a variant.

    The reference is weak: an item that is given up before it has started is never reported.
    """

    item_run: ref[ItemRun]
    variant: int
    has_started: bool = False


class Dispatcher:
    """Gives each item to a variant of the plan; used on the trio thread only.

    Short items of similar length are bound when they are admitted. Of others, each waits in order
    until a lane for its first step is idle, or no other item waits for one (see `Unevenness`).
    `groups` are the replicas; items go last to `lost` devices, which are away. `call` has the trio
    thread call a function, and is for any thread.
    """

    def __init__(
        self,
        groups: Groups,
        lost: Collection[str],
        call: Callable[[Callable[[], object]], object] = lambda function: function(),
    ) -> None:
        self._groups = groups
        self._lost = lost
        self._call = call
        self._count = count_variants(groups)
        self._rotation = Rotation(self._count)
        # A list: all of it is read at each choice, and a dictionary of weak keys takes three times
        # as long to read.
        self._bound: list[_Bound] = []
        self._lanes: dict[int, OpenLane[Any]] = {}
        self._unevenness = Unevenness()
        self._order = trio.StrictFIFOLock()
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_closing = False

    def refuse(self) -> None:
        """Let no item wait for a lane any more."""
        self._is_closing = True
        self._waiting.unpark_all()

    def choose(self, item_run: ItemRun) -> int:
        """Return the index of a variant for `item_run`: one with the fewest items, in rotation.

        While items are bound late, those with a lane that has room come first.
        """
        if self._count == 1:
            return 0
        before: int | None = None
        under_way = [0] * self._count
        bound = []
        for entry in self._bound:
            other = entry.item_run()
            if other is item_run:  # it found no slot there, and is given a place anew
                before = entry.variant
            elif other is not None and not other.is_over:
                under_way[entry.variant] += 1
                bound.append(entry)
        self._bound = bound
        away = self._find_away() if self._lost else set[int]()
        if self._binds_late:
            away |= {index for index in range(self._count) if not self._has_room(index)}
        chosen = self._rotation.choose(under_way, away, before)
        bound.append(_Bound(ref(item_run, self._forget), chosen))
        return chosen

    def move(self, item_run: ItemRun) -> int:
        """Return the index of a variant for `item_run`, which lost its own.

        The item keeps its variant while consumers hold slots: they may wait for this very
        item.
        """
        others = (entry.item_run() for entry in self._bound)
        is_held = any(one is not None and one.holds and not one.is_over for one in others)
        return item_run.variant if is_held else self.choose(item_run)

    def start(self, item_run: ItemRun, open_plan: OpenPlan | None) -> None:
        """Note that `item_run` has begun on `open_plan`, or on several plans if that is None."""
        if self._count == 1:
            return
        for entry in self._bound:
            if entry.item_run() is item_run:
                entry.has_started = True
        if open_plan is not None and open_plan.order.first:
            self._lanes[item_run.variant] = open_plan.lane[open_plan.order.first[0]]

    def end(self, open_plan: OpenPlan, times: Sequence[int]) -> None:
        if self._count == 1 or not open_plan.order.first:
            return
        first = open_plan.lane[open_plan.order.first[0]]
        self._unevenness.note(
            sum(
                times[3 * step + 2] - times[3 * step + 1]
                for step, lane in enumerate(open_plan.lane)
                if lane is first
            )
        )

    def look_again(self) -> None:
        """Let items that wait for a lane look again: another one has ended."""
        if self._waiting:
            self._waiting.unpark_all()

    def _forget(self, _: object) -> None:
        if self._waiting:
            self._call(self.look_again)

    @property
    def has_room(self) -> bool:
        """True if the next item may be bound now."""
        return not self._binds_late or any(map(self._has_room, range(self._count)))

    async def wait_for_room(self) -> None:
        """Wait until the next item may be bound; items that came before go first."""
        if self.has_room and not self._order.locked():
            return
        async with self._order:
            on_room = partial(self._call, self.look_again)
            try:
                for lane in self._lanes.values():
                    lane.on_room = on_room
                while not self.has_room:  # read after `on_room` is set: lanes may have room by now
                    await self._waiting.park()
            finally:
                for lane in self._lanes.values():
                    lane.on_room = None

    @property
    def _binds_late(self) -> bool:
        if self._count == 1 or not self._unevenness.is_worth_waiting:
            return False
        if self._lost or self._is_closing:
            return False
        # The lane must distinguish the variants.
        return len(set(self._lanes.values())) == self._count

    def _has_room(self, variant: int) -> bool:
        lane = self._lanes[variant]
        is_free = lane.is_idle if self._unevenness.are_unequal else not lane.has_waiting
        return is_free and not any(
            entry.variant == variant
            and not entry.has_started
            and (item_run := entry.item_run()) is not None
            and not item_run.is_over
            for entry in self._bound
        )

    def _find_away(self) -> set[int]:
        groups, lost = self._groups, self._lost
        return {
            index
            for index in range(self._count)
            if any(names[index % len(names)] in lost for names in groups)
        }


WORTH = 100
"""Mean deviation, in hand-overs, from which late binding saves more than it costs."""

MEMORY = 16
"""About this number of items is remembered."""


class Unevenness:
    """The mean deviation of a time from its mean, over the last items.

    An item that is bound when it is admitted may queue after a long one while another lane idles.
    An item that is bound when a lane is idle does not, but the lane idles until the loop has fed
    it: for some hand-overs. In streams of 96 items on 2 to 8 replicas, late binding saves a tenth
    to a fifth of the mean deviation, for each item. Between these, one item waits for each lane: it
    never idles, and a single longer item holds up only one other.
    """

    def __init__(self) -> None:
        self._mean_ns = self._deviation_ns = 0.0

    def note(self, ns: int) -> None:
        if not self._mean_ns:
            self._mean_ns = ns
        deviation_ns = abs(ns - self._mean_ns)
        self._mean_ns += (ns - self._mean_ns) / MEMORY
        self._deviation_ns += (deviation_ns - self._deviation_ns) / MEMORY

    @property
    def are_unequal(self) -> bool:
        """True if an item is to be bound to an idle lane only."""
        return self._deviation_ns > WORTH * get_hand_over_ns()

    @property
    def is_worth_waiting(self) -> bool:
        """True if at most one item is to wait for a lane, also before any has ended."""
        hand_over_ns = get_hand_over_ns()
        is_short = 0 < self._mean_ns <= LONG * hand_over_ns
        return not is_short or self._deviation_ns > WORTH * hand_over_ns
