"""Which open plan an item runs in: it follows from the shapes of what is fed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import TypeAlias

from ...graph.tensor import Array
from ..bounds import check_within, undecided
from ..ends import not_decided
from ..planning import Plan
from ..replicas.variant import variant
from ..specialise import Shapes, bind_inputs
from ..stages import Entry
from .open_plans import KEPT_PLANS, OpenPlans, Within
from .slots import Slots

_shape = attrgetter("shape")

Key: TypeAlias = tuple[tuple[tuple[int, ...], ...], int]
"""The shapes of the inputs, and the number of slots of each variant."""


class ByShapes:
    """Finds the open plans that a plan stands for, and has them made; on the trio thread only.

    Parameters
    ----------
    plan : Plan
    open_plans : OpenPlans

    Attributes
    ----------
    entries : Mapping of int to Entry
        Where shapes depend on values: what items enter instead of one plan, by number of slots.
    """

    def __init__(self, plan: Plan, open_plans: OpenPlans) -> None:
        self._plan = plan
        self._inputs = plan.fed.inputs
        self._open_plans = open_plans
        self._planned = lru_cache(KEPT_PLANS if plan.replicas else 0)(partial(_planned, plan))
        self.entries: dict[int, Entry] = {}

    def count(self, max_in_flight: int) -> int:
        """Return how many slots each variant has, so that together they have that many."""
        return max(-(-max_in_flight // self._plan.variants), self._plan.max_in_flight)

    def find(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Return the slots of the one open plan that these inputs need, and what it is fed."""
        slots = self._open_plans.find(_key(arrays, count), index)
        return (slots, arrays) if slots is not None else self._whole(count, arrays, index)

    async def open(self, count: int, arrays: Mapping[str, Array], index: int) -> Slots | None:
        """Open the plan that these inputs need; None where values have to be known too.

        Raises
        ------
        FeedError, ShapeError, PlanError, DeviceError, SessionError
            If there is none.
        """
        return await self._slots(_key(arrays, count), index)

    async def open_own(self, count: int) -> list[Slots]:
        """Open the variants of a plan whose shapes are all known."""
        own = _own_key(self._plan, count)
        found = [await self._slots(own, index) for index in range(self._plan.variants)]
        return [slots for slots in found if slots is not None]

    def _whole(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Return the slots of the one plan that an item needs for all its stages, if so."""
        entry = self.entries.get(count)
        stage = entry.find(arrays) if entry is not None else None
        if stage is None or stage.whole is None:
            return None, arrays
        slots = self._open_plans.find(id(stage.whole), index)
        fed = arrays if slots is None else {n: arrays[n] for n in stage.whole.graph.inputs}
        return slots, fed

    async def _slots(self, key: Key, index: int) -> Slots | None:
        shapes, count = dict(zip(self._inputs, key[0], strict=True)), key[1]
        bind_inputs(self._plan.fed, shapes)
        if count in self.entries:
            return None
        within = self._within(key, shapes) if self._plan.bounds else None
        make = partial(self._variant, key)
        slots = await self._open_plans.open(key, make, index, within=within)
        if slots is None:
            if self._plan.ends.devices:
                raise not_decided(self._plan.graph)
            whole = replace(self._plan, max_in_flight=count)
            self.entries.setdefault(count, Entry(whole, whole.graph, OrderedDict()))
        return slots

    def _within(self, key: Key, shapes: Shapes) -> Within | None:
        """Return the plan with bounds in which others may run; None for that one itself."""
        check_within(self._plan.fed, self._plan.bounds, shapes)
        base = _own_key(self._plan, key[1])
        return None if key == base else Within(base, partial(self._variant, base), shapes)

    def _variant(self, key: Key, index: int) -> Plan:
        return variant(self._planned(key), index)


def _planned(plan: Plan, key: Key) -> Plan:
    """Return the plan for some shapes and number of slots, for the first of all replicas."""
    if plan.is_static and key == _own_key(plan, key[1]):
        return plan if key[1] == plan.max_in_flight else plan.again(key[1])
    made = plan.for_shapes(dict(zip(plan.graph.inputs, key[0], strict=True)), key[1])
    if plan.bounds and not made.is_static:
        raise undecided(made.graph)
    return made


def _own_key(plan: Plan, count: int) -> Key:
    """Return the key of the shapes that a static plan was made for."""
    return tuple(plan.graph.tensors[name].static_shape for name in plan.graph.inputs), count


def _key(arrays: Mapping[str, Array], count: int) -> Key:
    return tuple(map(_shape, arrays.values())), count
