"""Open plans for other shapes, in the arenas of one for the largest shapes, or for the first.

They take Python objects and bound programs, and hardly any arenas: many can be kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from ....devices.device import can_share_constants
from ....devices.errors import DeviceError
from ....devices.memory import HOST
from ...planner.bounded_shapes import BoundedShapes
from ...plans.placement import Transfer
from ...plans.plan import Shapes
from ...shapes.formulas import LEAST
from .one_off import bind_one_off_lengths
from .open_plan import OpenPlan
from .slots import Slots

NODE_NBYTES = 4096
"""An estimate of the memory of a bound node: views, and data that its kernel prepares."""


class _Kept(NamedTuple):
    """The slots of an open plan, those of the plan with its arenas, and its memory."""

    slots: Slots
    base: Slots
    nbytes: Mapping[Hashable, int]


class ResizedPlans:
    """Keeps those that were used last; used on the trio thread only, but for `make`.

    Parameters
    ----------
    count, nbytes : int
        Limits of kept plans, and of their estimated memory.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self._most, self._most_nbytes = count, nbytes
        self._taken = _SharedBytes()
        self._slots: OrderedDict[tuple[Hashable, int], _Kept] = OrderedDict()
        self._fittings: WeakKeyDictionary[Slots, BoundedShapes] = WeakKeyDictionary()
        self._refused: WeakSet[Slots] = WeakSet()  # items cannot bind their steps

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, key: Hashable, variant: int) -> Slots | None:
        found = self._slots.get((key, variant))
        if found is None:
            return None
        self._slots.move_to_end((key, variant))
        return found.slots

    def make(self, base: Slots, shapes: Shapes, following: int) -> OpenPlan | None:
        """Return an open plan for `shapes` in the arenas of `base`, or None if it does not fit.

        Its slot `following` is made, too, which saves a change of threads. Raises ShapeError if
        shapes do not fit together inside the graph.
        """
        plan = base.open_plan.plan
        if plan.template is None:  # it stands in for one that has symbols
            return None
        fitting = self._fittings.get(base)
        if fitting is None:
            fitting = self._fittings[base] = BoundedShapes(plan)
        fitted = fitting.fit(shapes)
        if fitted is None:
            return None
        made = base.open_plan.resized(fitted)
        only_calls = made.only_calls and fitting.only_calls
        has_formulas = fitting.has_formulas and made.binds_briefly and base not in self._refused
        with suppress(DeviceError):  # the item that needs the slot tries again
            if only_calls or has_formulas:
                # Bound here once, steps that do not depend on lengths are there for all others.
                base.open_plan.make_slot(following)
            made.make_slot(following)
            if only_calls:
                base.one_off = bind_one_off_lengths(base.one_off, base.open_plan, made, following)
            elif has_formulas:
                base.one_off = bind_one_off_lengths(
                    base.one_off, base.open_plan, made, following, least=LEAST, compiles=True
                )
                if base.one_off is None:
                    self._refused.add(base)
        return made

    def keep(self, key: Hashable, variant: int, base: Slots, open_plan: OpenPlan) -> Slots:
        slots = base.beside(open_plan)
        kept = self._slots[key, variant] = _Kept(slots, base, _estimate_nbytes(open_plan))
        self._taken.add(kept.nbytes)
        while len(self._slots) > 1 and self._is_too_much:
            _, oldest = self._slots.popitem(last=False)
            self._taken.remove(oldest.nbytes)
        return slots

    @property
    def _is_too_much(self) -> bool:
        return len(self._slots) > self._most or self._taken.total > self._most_nbytes

    def drop(self, base: Slots) -> None:
        base.one_off = None
        for key in [key for key, kept in self._slots.items() if kept.base is base]:
            kept = self._slots.pop(key)
            self._taken.remove(kept.nbytes)
            kept.slots.open_plan.unbind()


class _SharedBytes:
    """The memory of several plans, with shared parts counted once."""

    def __init__(self) -> None:
        self.total = 0
        self._users = Counter[Hashable]()

    def add(self, nbytes: Mapping[Hashable, int]) -> None:
        for holder, its in nbytes.items():
            self.total += 0 if self._users[holder] else its
            self._users[holder] += 1

    def remove(self, nbytes: Mapping[Hashable, int]) -> None:
        for holder, its in nbytes.items():
            self._users[holder] -= 1
            if not self._users[holder]:
                del self._users[holder]
                self.total -= its


def _estimate_nbytes(open_plan: OpenPlan) -> dict[Hashable, int]:
    """Estimate the bytes of `open_plan` by owner, without steps of its base.

    Constants lie in the host's memory: programs that do not read them there, or have forms of their
    own of their inputs, hold copies, which those for other shapes may have in common.
    """
    found: dict[Hashable, int] = {}
    for step, programs in open_plan.own_programs:
        if isinstance(step.work, Transfer):
            continue
        graph = step.work.graph
        found[open_plan, step.index] = open_plan.period * len(graph.nodes) * NODE_NBYTES
        offers = open_plan.plan.prototypes[step.device].capabilities
        arrays = graph.constants.values()
        if offers.atomic_programs:
            loaded = [one.loaded for one in programs if can_share_constants(one)]
            for holder in loaded or [(open_plan, step.index, "constants")]:
                found[holder] = sum(array.nbytes for array in arrays)
        elif HOST not in offers.accesses:
            found.update((id(array), array.nbytes) for array in arrays)
    return found
