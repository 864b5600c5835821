"""The open plans of a session: found by purpose, opened when first needed, evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import trio

from ....devices.device import Device
from ....devices.errors import DeviceMemoryError
from ....graph.values.errors import PlaitError, ShapeError
from ....graph.values.recent import RecentItems
from ....graph.values.tensor import Array
from ...errors import PlanError, session_closed_error
from ...planner.standby import list_devices
from ...plans.plan import Plan, Shapes
from ...plans.regions import Region
from ...profile.timestamps import Timestamps
from ..faults.recovery import Recovery
from ..faults.watch import Watch
from ..status import PlansStatus
from ..virtual_time import VirtualTimeDriver
from .arenas import Lend
from .opener import Opener
from .resized_plans import ResizedPlans
from .slots import Slots

if TYPE_CHECKING:
    from ..recorder import Recorder

T = TypeVar("T")

KEPT_PLANS = 8
"""Idle plans beyond this number are closed, the least recently used first; of each variant."""

KEPT_PARTS = 64
"""The purpose of plans for items that go through several plans."""

KEPT_REFUSALS = 64
"""Limit of remembered keys without a plan."""

KEPT_SIZES, KEPT_NBYTES = 256, 1 << 28
"""Limit of plans in the arenas of others, and of their additional memory; for each variant."""

MORE_PLANS, MORE_NBYTES = 56, 1 << 30
"""Limit of additional plans, one for each closed plan that is needed again, as
long as those that are open take less memory than that; of each variant. Plans that take turns would
close each other otherwise, each before it is used again."""

KEPT_KEYS = 64
"""Plans that were closed and are remembered; of each variant."""


@dataclass(frozen=True, slots=True)
class BoundedParent:
    """The plan with bounds that others run in."""

    key: Hashable
    make: Callable[[int], Plan]
    """Returns the plan for a variant."""
    shapes: Shapes
    """Shapes of the inputs of the plan that is to run in it."""


@dataclass(frozen=True, slots=True)
class PlanProvenance:
    """The plan from which an open plan was made."""

    key: Hashable
    make: Callable[[int], Plan]
    """Returns the plan for a variant."""
    kept: int | None
    """How many plans may stay open beside it; None for the usual number."""
    stands_in: bool
    """True if it replaces that plan on the remaining devices."""
    within: BoundedParent | None = None


class CacheStatistics:
    """Counts hits, misses, and the further plans that it pays to keep open.

    Attributes
    ----------
    more : int
        How many more plans are to be kept than usual, on all variants together.
    """

    def __init__(self, variants: int) -> None:
        self.more = 0
        self._variants = variants
        self._hits = self._misses = 0
        self._closed: RecentItems[Hashable, bool] = RecentItems(KEPT_KEYS * variants)

    def status(self, kept: int) -> PlansStatus:
        return PlansStatus(self._hits, self._misses, kept)

    def hit(self) -> None:
        """Take note that a plan is open when it is looked for."""
        self._hits += 1

    def miss(self, key: Hashable, nbytes: int) -> None:
        """Note that the plan of `key` is not open, and that open plans take `nbytes`."""
        self._misses += 1
        may_keep = self.more < MORE_PLANS * self._variants and nbytes < MORE_NBYTES
        self.more += bool(self._closed.pop(key) and may_keep)

    def close(self, key: Hashable) -> None:
        """Take note that the plan of `key` is closed to make room."""
        self._closed[key] = True


class OpenPlans:
    """Keeps the plans that were used last open; used on the trio thread only.

    A plan with a lost device is replaced by one for the others, and that by the whole one when the
    device is back; those that were replaced are closed when the last item has left them. `devices`
    are open; `lend` returns the arenas of regions that the session keeps. Each of the `variants` of
    a plan is opened for itself, with every node timed if it `measure`s. `hit` counts that a plan
    was open when it was looked for; `order` is that of the items of all plans.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver,
        recovery: Recovery,
        recorder: Recorder,
        lend: Lend,
        watch: Watch,
        *,
        variants: int,
        measure: bool,
    ) -> None:
        self._opener = Opener(
            devices, driver, recovery, self._with_room, recorder, lend, watch, measure
        )
        self.order = self._opener.lanes.order
        self._origins: WeakKeyDictionary[Slots, PlanProvenance] = WeakKeyDictionary()
        self._retired: list[Slots] = []
        self._driver = driver
        self._watch = watch
        self._variants = variants
        self._slots: OrderedDict[tuple[Hashable, int], Slots] = OrderedDict()
        self._resized = ResizedPlans(KEPT_SIZES * variants, KEPT_NBYTES * variants)
        self._refusals: RecentItems[tuple[Hashable, int], PlaitError] = RecentItems(KEPT_REFUSALS)
        self._opening = trio.Lock()
        self._lookups = CacheStatistics(variants)
        self.hit = self._lookups.hit
        self._closing = False
        self._unclosed: list[PlaitError] = []

    @property
    def plans(self) -> Iterator[Plan]:
        return (slots.open_plan.plan for slots in (*self._retired, *self._slots.values()))

    @property
    def grown(self) -> Iterator[Region]:
        """Yield the regions that were allocated beside those of plans, for longer inputs."""
        for slots in (*self._retired, *self._slots.values()):
            yield from slots.open_plan.arenas.grown

    @property
    def _nbytes(self) -> int:
        planned = sum(plan.memory.nbytes for plan in self.plans if plan.memory is not None)
        return planned + sum(region.nbytes for region in self.grown)

    def status(self) -> PlansStatus:
        return self._lookups.status(len(self._slots) + len(self._resized))

    def find(self, key: Hashable, variant: int) -> Slots | None:
        """Return slots of `variant` for `key`, or None if not open; SessionError if closing."""
        slots = self.peek(key, variant)
        if slots is not None:
            self.hit()
        return slots

    def count(self, *, was_bound: bool) -> None:
        if was_bound:
            self.hit()
        else:
            self._lookups.miss(None, 0)

    def peek(self, key: Hashable, variant: int) -> Slots | None:
        """Return slots of `variant` for `key`, or None if its plan is not open; counts no hit.

        Raises SessionError if the session is being closed.
        """
        slots = self._slots.get((key, variant))
        if self._closing:
            raise session_closed_error()
        if slots is not None:
            self._slots.move_to_end((key, variant))
            return slots
        slots = self._resized.find(key, variant)
        within = None if slots is None else self._origins[slots].within
        if within is not None:
            self._slots.move_to_end((within.key, variant))
        return slots

    def one_off(
        self,
        key: Hashable,
        make: Callable[[int], Plan],
        variant: int,
        within: BoundedParent,
        arrays: Mapping[str, Array],
    ) -> Slots | None:
        """Return slots of `variant` in the plan `within` for one item's `arrays`, or None.

        None means that the item needs a plan of its own. If it has to start again, it gets the plan
        of `key`, which `make` makes.
        """
        base = self.peek(within.key, variant)
        slots = None if base is None else base.of_one_off(arrays)
        if slots is not None:
            self._origins[slots] = PlanProvenance(key, make, None, stands_in=False, within=within)
        return slots

    async def open(
        self,
        key: Hashable,
        make: Callable[[int], Plan],
        variant: int,
        *,
        kept: int | None = None,
        within: BoundedParent | None = None,
        marks: Timestamps | None = None,
    ) -> Slots | None:
        """Return the slots of `variant` for `key`, made by `make`, `within` another, unless open.

        None stands for a plan that cannot be opened, since not all its shapes are known. `kept` is
        how many plans stay open at most if they are idle, `KEPT_PLANS` when left out. Where shapes
        fit into a plan with bounds, it is opened in the arenas of that one. `marks` are those of
        the item that waits for it: ``"planning"`` while it is made, ``"binding"`` while programs
        are bound in the arenas of another; nothing where it is open already. Raises PlaitError: any
        error of making the plan; DeviceError if a device refuses; SessionError if the session is
        being closed.
        """
        if within is not None:
            slots = await self._open_within(within, key, make, variant, marks)
        else:
            slots = self.peek(key, variant)
        if slots is None:
            begin_ns = self._driver.now_ns()
            slots = await self._open_whole(key, make, variant, kept=kept, within=within)
            _mark(marks, "planning", begin_ns, self._driver.now_ns())
        return slots

    async def _open_whole(
        self,
        key: Hashable,
        make: Callable[[int], Plan],
        variant: int,
        *,
        kept: int | None,
        within: BoundedParent | None,
    ) -> Slots | None:
        async with self._opening:
            slots = self.peek(key, variant)
            if slots is not None:
                return slots
            # Under the lock: later items of the same shapes wait, and find the plan open.
            plan = await self._make((key, variant), partial(make, variant))
            if not plan.is_static:
                return None
            # Before anything is allocated: plans that were replaced still hold their memory.
            await self._dispose()
            self._lookups.miss((key, variant), self._nbytes)
            # More where plans that were closed were asked for again soon after: memory is cheaper
            # than that.
            most = (kept or KEPT_PLANS) * self._variants + self._lookups.more
            await self._evict(keep=most - 1)
            open_plan = await self._opener.open(plan)
            slots = Slots(open_plan, self._with_room, self._driver)
            self._origins[slots] = PlanProvenance(
                key, make, kept, open_plan.plan is not plan, within
            )
            self._slots[key, variant] = slots
        return self.peek(key, variant)

    async def _open_within(
        self,
        within: BoundedParent,
        key: Hashable,
        make: Callable[[int], Plan],
        variant: int,
        marks: Timestamps | None,
    ) -> Slots | None:
        """Return slots of `variant` for `key` in memory of plan `within`; None if they do not fit.

        `marks` get the times; after a loss, `make` makes the plan again.
        """
        while True:
            base = await self.open(within.key, within.make, variant, marks=marks)
            assert base is not None, "its shapes are known"
            begin_ns = self._driver.now_ns()
            async with self._opening:
                found = self.peek(key, variant)
                if found is not None:  # another item was ahead
                    _mark(marks, "binding", begin_ns, self._driver.now_ns())
                    return found
                await self._dispose()
                fit = partial(self._resized.make, base, within.shapes, base.following)
                open_plan = await self._make((key, variant), fit)
                if self._slots.get((within.key, variant)) is not base:
                    continue  # it was closed or replaced meanwhile
                if open_plan is None:
                    return None
                self._lookups.miss(None, 0)
                slots = self._resized.keep(key, variant, base, open_plan)
                self._origins[slots] = PlanProvenance(
                    key, make, None, stands_in=False, within=within
                )
                _mark(marks, "binding", begin_ns, self._driver.now_ns())
                return slots

    async def again(self, slots: Slots, variant: int) -> Slots:
        """Return the slots of `variant` that replace `slots`, those of a lost plan.

        Raises DeviceError or SessionError as `open`.
        """
        origin = self._origins[slots]
        found = self.peek(origin.key, variant)
        if found is None:
            kept, within = origin.kept, origin.within
            found = await self.open(origin.key, origin.make, variant, kept=kept, within=within)
        assert found is not None, "its shapes are known"
        return found

    def retire(self, device: str) -> None:
        """Take all plans with the lost `device` out of use, with their items."""
        for slots in (*self._retired, *self._slots.values()):
            if device in list_devices(slots.open_plan.plan):
                slots.lose()
        # Items that are there keep their slots until they have failed or ended.
        for key in [key for key, slots in self._slots.items() if slots.are_lost]:
            self._retire(key)

    def discard(self, key: Hashable) -> None:
        """Take the plans of `key` out of use: another plan serves their items from now on."""
        for found in [found for found in self._slots if found[0] == key]:
            self._retire(found)

    def replace(self, lost: Slots) -> None:
        """Take the plan `lost` out of use, with all in its arenas: it has to be planned anew."""
        lost.lose()
        for key in [key for key, slots in self._slots.items() if slots.are_lost]:
            self._retire(key)

    def restore(self, device: str) -> None:
        """Take replacements of plans out of use: `device` is back."""
        for key, slots in list(self._slots.items()):
            if self._origins[slots].stands_in:
                self._retire(key)

    def refuse(self) -> None:
        """Open no more plans, give no more slots, and refuse waiting items."""
        self._closing = True
        for slots in (*self._retired, *self._slots.values()):
            slots.refuse()

    def closings(self) -> Iterator[Callable[[], None]]:
        for slots in (*self._retired, *self._slots.values()):
            yield slots.open_plan.close
            self._resized.drop(slots)
        self._retired.clear()
        self._slots.clear()
        yield self._opener.lanes.instances.close
        for _ in list(self._unclosed):
            yield partial(_raise_first, self._unclosed)

    async def _make(self, key: tuple[Hashable, int], make: Callable[[], T]) -> T:
        if (refusal := self._refusals.get(key)) is not None:
            raise copy(refusal)
        try:
            return await self._driver.on_thread(make)
        except (PlanError, ShapeError) as error:
            self._refusals[key] = copy(error)
            raise

    def _retire(self, key: tuple[Hashable, int]) -> None:
        """Hand out no more slots of the plan at `key`, nor of the plans in its arenas."""
        slots = self._slots.pop(key)
        self._retired.append(slots)
        self._resized.drop(slots)

    async def _dispose(self) -> None:
        for slots in list(self._retired):
            if slots.is_idle:
                self._retired.remove(slots)
                await self._close(slots)

    async def _with_room(self, make: Callable[[], T]) -> T:
        """Call `make` on a thread; close idle plans first if memory is missing."""
        try:
            return await self._watch.on_thread(make)
        except DeviceMemoryError:
            if not await self._evict(keep=0):
                raise
            return await self._watch.on_thread(make)

    async def _evict(self, keep: int) -> bool:
        """Close idle plans until `keep` plans are left; return whether one was closed."""
        # Oldest first, as `_slots` is in the order of use.
        evicted = False
        while len(self._slots) > keep:
            # Chosen anew each time: while one is closed, others may come into use.
            idle = (key for key, slots in self._slots.items() if slots.is_idle)
            key = next(idle, None)
            if key is None:
                break
            slots, evicted = self._slots.pop(key), True
            self._lookups.close(key)
            self._resized.drop(slots)
            await self._close(slots)
        return evicted

    async def _close(self, slots: Slots) -> None:
        """Close the plan of `slots`. Errors of its instances are raised when the session closes."""
        # Half closed it could neither be used nor closed again.
        with trio.CancelScope(shield=True):
            try:
                await self._driver.on_thread(slots.open_plan.close)
            except PlaitError as error:
                self._unclosed.append(error)


def _mark(marks: Timestamps | None, kind: str, begin_ns: int, end_ns: int) -> None:
    if marks is not None:
        marks.prepare(kind, begin_ns, end_ns)


def _raise_first(errors: list[PlaitError]) -> None:
    raise errors.pop(0)
