"""Batches of items that have different keys: each row has the state of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ....graph.values.tensor import Array
from ...errors import FeedError
from ...shapes.specialise import bind_inputs
from ..items.item import ItemRun
from ..items.pipeline import KeyState
from ..opened.feeds import check_feeds, mark_checked
from ..opened.results import Results, copy_results, view_results
from ..opened.shape_plan_cache import ShapePlanCache
from ..variables.variables import Variables
from .batching import Batch, Batching, Pace, join_rows
from .carrier import Starter

if TYPE_CHECKING:
    from ...shapes.lifted_rows import LiftedGraph

T = TypeVar("T")

Row: TypeAlias = tuple[T, KeyState, Mapping[str, Array]]
"""An item, with the state of its key and its inputs."""

_shape = attrgetter("shape")


@dataclass(frozen=True, slots=True)
class KeyedBatching(Batching):
    """How items of a graph with state become batches."""

    lifted: LiftedGraph
    shape_plans: ShapePlanCache
    """The plans of the lifted graph."""
    variables: Variables
    starter: Starter
    accepted: deque[Sequence[tuple[int, ...]]] = field(default_factory=lambda: deque(maxlen=8))
    """The shapes of some items that fit."""
    pace: Pace = field(default_factory=Pace)

    def check_rows(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return `inputs` as arrays, and 1; raise FeedError if they are not those of one item."""
        arrays = check_feeds(self.graph, self.unneeded, inputs)
        known = [*map(_shape, arrays.values())]
        if known in self.accepted:
            return arrays, 1
        shapes = dict(zip(arrays, known, strict=True))
        bind_inputs(self.graph, shapes)
        for name, shape in shapes.items():
            axis, added = self.lifted.places[name]
            if not added and shape[axis] != 1:
                raise FeedError(
                    f"input {name!r} of an item has {shape[axis]} rows",
                    fix="feed one row, which has the state of the item's key",
                )
        self.accepted.append(known)
        return arrays, 1

    def find_ready(self, rows: Iterable[Row[T]], seen: Iterable[KeyState]) -> list[Row[T]]:
        ready, passed = list[Row[T]](), set(seen)
        shapes: list[tuple[int, ...]] = []
        for row in rows:
            _, state, arrays = row
            if state not in passed:
                passed.add(state)
                own = [*map(_shape, arrays.values())]
                if not ready or own == shapes:
                    ready.append(row)
                    shapes = own
                if len(ready) == self.size:
                    break
        return ready

    def join(
        self, feeds: Sequence[Mapping[str, Array]], states: Sequence[KeyState]
    ) -> dict[str, Array]:
        """Return the inputs of a batch of `feeds`, and the values of `states`."""
        parts = {name: [one[name] for one in feeds] for name in feeds[0]}
        for variable, (name, _) in self.lifted.states.items():
            parts[name] = [one.versions.view_committed(variable) for one in states]
        fed, missing = self.shape_plans.plan.fed, self.padded(len(feeds)) - len(feeds)
        found = dict[str, Array]()
        for name in fed.inputs:
            place, arrays = self.lifted.places[name], parts[name]
            if place.added:
                arrays = [array.reshape(place.spread(array.shape, 1)) for array in arrays]
            found[name] = join_rows(arrays, place.axis, missing)
        return mark_checked(fed, found)

    def split(self, results: Results, count: int) -> tuple[list[Results], list[dict[str, Array]]]:
        """Return the parts of `count` items in `results`, and their next values by variable."""
        states, take = self.lifted.states.items(), copy_results if self.copy else view_results
        own = {name: self._cut_rows(name, results[name], count) for name in self.graph.outputs}
        following = {one: self._cut_rows(name, results[name], count) for one, (_, name) in states}
        places = range(count)
        parts = [take({name: rows[place] for name, rows in own.items()}) for place in places]
        values = [{name: rows[i].copy() for name, rows in following.items()} for i in places]
        return parts, values

    def _cut_rows(self, name: str, array: Array, count: int) -> list[Array]:
        axis, added = self.lifted.axes[name], self.lifted.added[name]
        if axis is None:
            return [array] * count
        rows, shape = self.padded(count), array.shape
        parts = array.reshape(*shape[:axis], rows, shape[axis] // rows, *shape[axis + 1 :])
        parts = np.moveaxis(parts, axis, 0)[:count]
        return [*parts[(slice(None), *(0,) * added)]]


class KeyedBatch(Batch):
    """Items of different keys that go through a graph together; used as `Batch`."""

    def __init__(self, batching: KeyedBatching, on_done: Callable[[Batch], object]) -> None:
        super().__init__(batching, on_done)
        self._keyed = batching
        self._values: dict[ItemRun, Mapping[str, Array]] = {}

    @property
    def _states(self) -> list[KeyState]:
        return [member.state for member in self.members if member.state is not None]

    def arrays(self) -> Iterator[Array]:
        yield from super().arrays()
        for name in self._keyed.lifted.states:
            yield from (state.versions.view_committed(name) for state in self._states)

    def stacked(self) -> dict[str, Array]:
        return self._keyed.join(self.feeds, self._states)

    def divide(self, results: Results) -> list[Results]:
        """Return each item's part of `results`, and keep its next values until it has ended."""
        parts, values = self._keyed.split(results, len(self.members))
        self._values = dict(zip(self.members, values, strict=True))
        return parts

    def _land(self, member: ItemRun, part: Results, error: BaseException | None) -> None:
        if error is None and member.state is not None:
            member.state.versions.hold(self._values[member])
        super()._land(member, part, error)
