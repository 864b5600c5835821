"""Open plans by the shapes of inputs.

Dtypes are the graph's own: inputs of another one are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeAlias

from ....devices.errors import DeviceMemoryError, KernelError
from ....graph.core.nested import acts_outside
from ....graph.values.errors import GraphError, ShapeError
from ....graph.values.tensor import Array
from ...dispatch.inline_policy import Estimates
from ...errors import PlanError
from ...planner.joined_stages import join_stages
from ...planner.known_values import evaluate_known
from ...planner.replanning import replan_beside
from ...planner.staged_plans import StagedGraph, make_entry
from ...plans.plan import Bounds, Plan, Shapes
from ...plans.request import unknown_plan_error
from ...plans.variants import make_variant
from ...profile.timestamps import Timestamps
from ...shapes.bounds import check_within, find_fed_bounds, undecided_error
from ...shapes.fixed import is_mostly_fixed
from ...shapes.specialise import bind_inputs
from .ample_bounds import AmpleBounds, may_be_ample, plan_amply
from .feeds import check_feeds
from .open_plans import KEPT_PLANS, BoundedParent, OpenPlans
from .slots import Slots

_shape = attrgetter("shape")

KEPT_SHAPES = 256
"""Limit of remembered shapes that fit."""

_JOINED = "joined"
"""Marks the keys of plans for all stages."""

_AMPLE = "ample"
"""Marks the keys of plans that have room for longer inputs."""

_SHARED = "shared"
"""Marks the keys of plans beside which others run."""

AmpleKey: TypeAlias = tuple[str, tuple[tuple[str, tuple[int, int]], ...], int, Hashable]
"""A mark, the bounds of each symbol, the number of slots, and the plan's purpose."""

Key: TypeAlias = tuple[tuple[tuple[int, ...], ...], int, Hashable]
"""The shapes of the inputs, the number of slots of each variant, and the purpose of the plan."""


class ShapePlanCache:
    """Finds the open plans that a plan stands for, and has them made; on the trio thread only.

    `purpose` is that of the plan: the fetched tensors, or the queue of its rows; by default it is
    for all outputs of the session's graph. `variants` are the plan's. `may_run_at_once` is false
    where no item can run wholly on the thread that asks for it, and `acts` true if items have
    effects. `not_brief` says how long the steps of the first variant of a static plan take, and its
    lanes, if its last item was not brief. `check` returns the fed inputs as arrays, as
    `check_feeds` does. If shapes depend on values, `entries` has the stages for items instead of
    one plan, by number of slots.
    """

    def __init__(self, plan: Plan, open_plans: OpenPlans, purpose: Hashable = frozenset()) -> None:
        self.plan = plan
        self.variants, self._in_flight = plan.variants, plan.max_in_flight
        self.may_run_at_once = not plan.ends.devices
        self.not_brief: tuple[Estimates, int] | None = None
        self.check: Callable[[Mapping[str, Any]], Mapping[str, Array]] = partial(
            check_feeds, plan.fed, plan.unneeded
        )
        self.acts = any(map(acts_outside, plan.graph.nodes))
        self._purpose = purpose
        self._fed = plan.fed
        self._open_plans = open_plans
        self._planned = lru_cache(KEPT_PLANS if plan.replicas else 0)(partial(_replan, plan))
        self.entries: dict[int, StagedGraph] = {}
        self._joined: dict[int, bool] = {}  # the stages are one plan, by number of slots
        self._plan_joined = lru_cache(KEPT_PLANS)(lambda count: join_stages(self.entries[count]))
        self._check_shapes = lru_cache(KEPT_SHAPES)(self._shapes_checked)
        self._planned_shared = lru_cache(KEPT_PLANS if plan.replicas else 0)(partial(_share, plan))
        self._planned_amply = lru_cache(KEPT_PLANS if plan.replicas else 0)(self._plan_amply)
        self._ample: dict[int, AmpleBounds] = {}
        self._most_nbytes = self._refused_nbytes = 0
        self._first: dict[int, Key] = {}
        self._shares = _can_share(plan)
        self._may_be_ample = not self._shares and may_be_ample(plan)
        self._is_bounded = (
            bool(plan.computed) and find_fed_bounds(self._fed, plan.computed) is not None
        )

    def count(self, max_in_flight: int) -> int:
        """Return the slots that each variant needs to have `max_in_flight` or more together."""
        return max(-(-max_in_flight // self.variants), self._in_flight)

    def find(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Return `count` open slots of variant `index` or None, and `arrays` in a form to feed."""
        slots, fed = self.peek(count, arrays, index)
        if slots is None:
            slots = self.one_off(count, arrays, index)
        known = self.not_brief
        if known and index == 0 and (slots is None or slots.open_plan.estimates is not known[0]):
            self.not_brief = None  # the plan was opened anew
        if slots is not None and slots.stages is None:  # otherwise items report at their end
            self._open_plans.hit()
        return slots, fed

    def peek(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Find slots for `count`, `arrays` and `index` as `find` does, without counting a hit."""
        slots = None
        # One plan serves all lengths within bounds, so that shapes are not a key; they are checked
        # once.
        if count in self._joined:
            self._check_shapes(tuple(map(_shape, arrays.values())))
            slots = self._open_plans.peek((_JOINED, count, self._purpose), index)
        if slots is None:
            key = tuple(map(_shape, arrays.values())), count, self._purpose
            slots = self._open_plans.peek(key, index)
        return (slots, arrays) if slots is not None else self._whole(count, arrays, index)

    def one_off(self, count: int, arrays: Mapping[str, Array], index: int) -> Slots | None:
        """Return slots for `arrays` in a plan for other lengths, or None without such a plan.

        They are of variant `index`, with `count` slots. To open a plan for some lengths pays if
        they come again; of files, each has others.
        """
        key = self._key(arrays, count)
        self._check_shapes(key[0])
        within: BoundedParent | None = None
        if self.plan.bounds:
            within = self._within(key, _find_shapes(self.plan, key))
        elif count in self._first:
            within = self._parent(self._first[count], key)
        elif count in self._ample:
            within = self._ample_parent(key, self._ample[count].find(_find_shapes(self.plan, key)))
        if within is None:
            return None
        return self._open_plans.one_off(key, partial(self._variant, key), index, within, arrays)

    async def open(
        self, count: int, arrays: Mapping[str, Array], index: int, marks: Timestamps
    ) -> Slots | None:
        """Open `count` slots of variant `index` for `arrays`; return None if values decide more.

        Preparations for the item are recorded in its `marks`. Raises FeedError or ShapeError or
        PlanError or DeviceError or SessionError if there is none.
        """
        return await self._slots(self._key(arrays, count), index, marks)

    def entry(self, count: int) -> StagedGraph | None:
        """Return the first stage of items that run in several plans; None if no item has yet.

        `count` is the number of items in flight. If all fed lengths have bounds, and values decide
        the others, no item has to run to find it.
        """
        found = self.entries.get(count)
        return self._enter(count) if found is None and self._is_bounded else found

    async def open_joined(self, count: int) -> list[Slots]:
        """Open one plan of `count` slots for all stages, if they join; return slots by variant."""
        found = [await self._open_joined(count, i, None) for i in range(self.variants)]
        return [slots for slots in found if slots is not None]

    async def _open_joined(self, count: int, index: int, marks: Timestamps | None) -> Slots | None:
        if not self._joined.setdefault(count, True):
            return None
        key, make = (_JOINED, count, self._purpose), partial(self._joined_variant, count)
        slots = await self._open_plans.open(key, make, index, marks=marks)
        # Whether stages can be joined does not change, and to find out takes planning.
        self._joined[count] = slots is not None
        return slots

    def _joined_variant(self, count: int, index: int) -> Plan:
        joined = self._plan_joined(count)
        return self.plan if joined is None else make_variant(joined, index)

    async def open_own(self, count: int) -> list[Slots]:
        own = self._own_key(count)
        found = [await self._slots(own, index) for index in range(self.plan.variants)]
        return [slots for slots in found if slots is not None]

    def _whole(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        entry = None if self.plan.graph.variables else self.entries.get(count)
        stage = entry.find(arrays) if entry is not None else None
        if stage is None or stage.whole is None:
            return None, arrays
        slots = self._open_plans.peek(id(stage.whole), index)
        fed = arrays if slots is None else {n: arrays[n] for n in stage.whole.graph.inputs}
        return slots, fed

    async def _slots(self, key: Key, index: int, marks: Timestamps | None = None) -> Slots | None:
        shapes, count = dict(zip(self._fed.inputs, key[0], strict=True)), key[1]
        self._check_shapes(key[0])
        if self.entry(count) is not None:
            return await self._open_joined(count, index, marks) if self._is_bounded else None
        if self.plan.bounds:
            within = self._within(key, shapes)
        else:
            within = await self._beside(key, index, marks)
            within = within or await self._within_ample(key, index, marks)
        make = partial(self._variant, key)
        slots = await self._open_plans.open(key, make, index, within=within, marks=marks)
        if slots is None:
            self._enter(count)
        return slots

    def _shapes_checked(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Raise FeedError if `shapes` do not fit the inputs, or the bounds of computed lengths."""
        named = dict(zip(self._fed.inputs, shapes, strict=True))
        bind_inputs(self._fed, named)
        check_within(self._fed, self.plan.computed, named)

    def _enter(self, count: int) -> StagedGraph:
        if self.plan.ends.devices:
            raise unknown_plan_error(self.plan.graph)
        return self.entries.setdefault(count, make_entry(self.plan, count))

    def _within(self, key: Key, shapes: Shapes) -> BoundedParent | None:
        """Return the plan with bounds in which `shapes` run, or None if it has the same `key`."""
        check_within(self._fed, self.plan.bounds, shapes)
        base = self._own_key(key[1])
        return None if key == base else BoundedParent(base, partial(self._variant, base), shapes)

    async def _beside(self, key: Key, index: int, marks: Timestamps | None) -> BoundedParent | None:
        """Open the plan for the first shapes as parent of `key`; None if others cannot share it.

        Variant `index` is opened, and timed in `marks`.
        """
        if not self._shares:
            return None
        first = self._first.get(key[1], key)
        parent = self._parent(first, key)
        try:
            await self._open_plans.open(parent.key, parent.make, index, marks=marks)
        except ShapeError:  # of these shapes alone, which their own plan will say
            return None
        except PlanError:
            # No plan that others can run beside: it is not tried for each shape anew.
            self._shares = False
            return None
        self._first[key[1]] = first
        return parent

    async def _within_ample(
        self, key: Key, index: int, marks: Timestamps | None
    ) -> BoundedParent | None:
        """Open variant `index` of a plan with room for `key`; return it as parent, or None."""
        if not self._may_be_ample:
            return None
        ample = self._ample.setdefault(key[1], AmpleBounds(self._fed))
        before = ample.bounds
        parent = self._ample_parent(key, ample.extend(_find_shapes(self.plan, key)))
        if parent is None:
            return None
        if before and before != ample.bounds:
            self._open_plans.discard(self._ample_key(before, key[1]))
        try:
            await self._open_plans.open(parent.key, parent.make, index, marks=marks)
        except (PlanError, GraphError, DeviceMemoryError, KernelError):
            # Operators may refuse longer inputs. Each shape gets its plan, as before; if these grow
            # there may be memory for one with room.
            self._may_be_ample = self._most_nbytes >= 2 * self._refused_nbytes
            self._refused_nbytes = self._most_nbytes
            self._ample.clear()
            return None
        return parent

    def _ample_parent(self, key: Key, bounds: Bounds | None) -> BoundedParent | None:
        if bounds is None:
            return None
        ample_key = self._ample_key(bounds, key[1])
        make = partial(self._ample_variant, ample_key)
        return BoundedParent(ample_key, make, _find_shapes(self.plan, key))

    def _ample_key(self, bounds: Bounds, count: int) -> AmpleKey:
        return _AMPLE, tuple(bounds.items()), count, self._purpose

    def _ample_variant(self, key: AmpleKey, index: int) -> Plan:
        return make_variant(self._planned_amply(key), index)

    def _plan_amply(self, key: AmpleKey) -> Plan:
        return plan_amply(evaluate_known(self.plan), dict(key[1]), key[2], self._most_nbytes)

    def _parent(self, first: Key, key: Key) -> BoundedParent:
        shapes = _find_shapes(self.plan, key)
        return BoundedParent((_SHARED, first), partial(self._shared, first), shapes)

    def _shared(self, key: Key, index: int) -> Plan:
        return make_variant(self._planned_shared(key), index)

    def _variant(self, key: Key, index: int) -> Plan:
        planned = self._planned(key)
        if planned.memory is not None:
            self._most_nbytes = max(self._most_nbytes, planned.memory.nbytes)
        return make_variant(planned, index)

    def _key(self, arrays: Mapping[str, Array], count: int) -> Key:
        return tuple(map(_shape, arrays.values())), count, self._purpose

    def _own_key(self, count: int) -> Key:
        return _own_shapes(self.plan), count, self._purpose


def _replan(plan: Plan, key: Key) -> Plan:
    if plan.is_static and key[0] == _own_shapes(plan):
        return plan if key[1] == plan.max_in_flight else plan.replan(key[1])
    shapes = _find_shapes(plan, key)
    plan = evaluate_known(plan)
    try:
        made = plan.for_shapes(shapes, key[1])
    except ShapeError as error:  # which may be said of a node deep inside
        fed = ", ".join(f"{name}{list(shape)}" for name, shape in shapes.items())
        error.at = f"{error.at or plan.graph.name}; fed is {fed}"
        raise
    if plan.bounds and not made.is_static:
        raise undecided_error(made.graph)
    return made


def _can_share(plan: Plan) -> bool:
    asked = plan.request
    if plan.is_static or plan.bounds or asked.memory_limits or asked.precision or not plan.folds:
        return False
    return is_mostly_fixed(plan.fed)


def _share(plan: Plan, key: Key) -> Plan:
    """Make `plan` again for the shapes and slots in `key`; other shapes can run beside these."""
    return replan_beside(evaluate_known(plan), _find_shapes(plan, key), key[1])


def _find_shapes(plan: Plan, key: Key) -> Shapes:
    return dict(zip(plan.graph.inputs, key[0], strict=True))


def _own_shapes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    return tuple(plan.graph.tensors[name].static_shape for name in plan.graph.inputs)
