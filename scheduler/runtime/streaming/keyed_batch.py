"""Batches of items that have different keys: each row has the state of its own."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ....graph.values.tensor import Array
from ...errors import FeedError
from ...shapes.specialise import bind_inputs
from ..items.item import ItemRun
from ..opened.feeds import check_feeds
from ..opened.results import Results, copy_results, view_results
from ..opened.shape_plan_cache import ShapePlanCache
from ..variables.variables import Variables
from .batching import Batch, Batching
from .carrier import Starter

if TYPE_CHECKING:
    from ...shapes.lifted_rows import LiftedGraph


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

    def check(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return the inputs as arrays, and 1; raise FeedError if they are not those of one item."""
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


class KeyedBatch(Batch):
    """Items of different keys that go through a graph together; used as `Batch`."""

    def __init__(self, batching: KeyedBatching, on_done: Callable[[Batch], object]) -> None:
        super().__init__(batching, on_done)
        self._lifted = batching.lifted
        self._fed = batching.shape_plans.plan.fed.inputs
        self._values: dict[ItemRun, Sequence[Array]] = {}

    def arrays(self) -> Iterator[Array]:
        yield from super().arrays()
        for name in self._lifted.states:
            yield from self._list_values(name)

    def stacked(self) -> dict[str, Array]:
        parts = {name: [feeds[name] for feeds in self.feeds] for name in self.feeds[0]}
        for variable, (name, _) in self._lifted.states.items():
            parts[name] = self._list_values(variable)
        rows, found = self._batching.padded(len(self.members)), dict[str, Array]()
        for name in self._fed:
            place, arrays = self._lifted.places[name], parts[name]
            arrays += arrays[-1:] * (rows - len(arrays))
            if place.added:
                arrays = [array.reshape(place.spread(array.shape, 1)) for array in arrays]
            found[name] = _join_rows(arrays, place.axis)
        return found

    def _list_values(self, variable: str) -> list[Array]:
        states = (member.state for member in self.members)
        return [one.versions.view_committed(variable) for one in states if one is not None]

    def divide(self, results: Results) -> list[Results]:
        """Return each item's part of `results`, and keep its next values until it has ended."""
        values = [
            [part.copy() for part in self._cut_rows(name, results[name])]
            for _, name in self._lifted.states.values()
        ]
        for index, member in enumerate(self.members):
            self._values[member] = [parts[index] for parts in values]
        names = self._batching.graph.outputs
        parts = zip(*[self._cut_rows(name, results[name]) for name in names], strict=True)
        take = copy_results if self._batching.copy else view_results
        return [take(dict(zip(names, one, strict=True))) for one in parts]

    def _cut_rows(self, name: str, array: Array) -> list[Array]:
        axis, added = self._lifted.axes[name], self._lifted.added[name]
        count = len(self.members)
        if axis is None:
            return [array] * count
        rows, shape = self._batching.padded(count), array.shape
        parts = array.reshape(*shape[:axis], rows, shape[axis] // rows, *shape[axis + 1 :])
        parts = np.moveaxis(parts, axis, 0)[:count]
        return [*parts[(slice(None), *(0,) * added)]]

    def _land(self, member: ItemRun, part: Results, error: BaseException | None) -> None:
        if error is None and member.state is not None:
            values = zip(self._lifted.states, self._values[member], strict=True)
            member.state.versions.hold(dict(values))
        super()._land(member, part, error)


def _join_rows(arrays: Sequence[Array], axis: int) -> Array:
    first = arrays[0]
    is_one_run = math.prod(first.shape[:axis]) == 1 and not first.dtype.hasobject
    if not is_one_run or not all(a.dtype == first.dtype and a.flags.c_contiguous for a in arrays):
        return np.concatenate(arrays, axis)
    # numpy would give the interpreter up and ask for it again for each of them.
    shape = (*first.shape[:axis], -1, *first.shape[axis + 1 :])
    return np.frombuffer(b"".join(arrays), first.dtype).reshape(shape)
