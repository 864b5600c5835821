"""Batches of items that have different keys: each row has the state of its own.

`KeyedItems` runs them on one thread, as `stacked_items` does with items without keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ....graph.values.errors import PlaitError
from ....graph.values.tensor import Array
from ...errors import FeedError
from ...profile.timestamps import Timestamps
from ...shapes.specialise import bind_inputs
from ..items.item import ItemRun
from ..items.pipeline import KeyState
from ..opened.feeds import check_feeds, mark_checked
from ..opened.results import (
    NOT_RUN,
    NOTHING,
    Outcome,
    Results,
    copy_results,
    to_values,
    view_results,
)
from ..opened.shape_plan_cache import ShapePlanCache
from ..running.inline_runner import InlineTerms
from ..variables.variables import Variables
from .batching import Batch, Batching, Pace, join_rows, may_succeed_alone
from .carrier import Carrier, Starter
from .sources import Puller
from .stacked_items import StackedItems

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


class KeyedItems(StackedItems):
    """Consecutive items, which run in rounds: of each key one after the other."""

    def __init__(self, batching: Batching) -> None:
        super().__init__(batching)
        assert isinstance(batching, KeyedBatching)
        self._keyed = batching
        self._outcomes: dict[int, Outcome] = {}

    def pull(self, puller: Puller) -> bool:
        if self.pulled:  # a source that is slower than devices is not waited for
            _, marks, _ = self.pulled[-1]
            is_slow = marks.given_ns - marks.asked_ns >= self._keyed.pace.row_ns
            if is_slow or len(self.pulled) >= self._keyed.size:
                return False
        if not puller.pulled and (puller.is_exhausted or not puller.pull()):
            return False
        _, _, inputs = item = puller.take()
        try:
            feeds, _ = self._keyed.check_rows(inputs)
            for name, array in feeds.items():  # the source may use its arrays again
                feeds[name] = array.copy()
            self.feeds.append(feeds)
        except Exception as error:
            self._refused[len(self.pulled)] = error
        self.pulled.append(item)
        return True

    def run(self, carrier: Carrier, terms: InlineTerms) -> list[Outcome] | None:
        """Return the outcomes on `carrier` within `terms`, some `NOT_RUN`; None if all would be."""
        if not self._keyed.variables.are_free:
            return None
        terms = terms._replace(shape_plans=self._keyed.shape_plans)
        rows = self._find_rows()
        while rows and self._run_rows(self._keyed.find_ready(rows, ()), carrier, terms):
            rows = [row for row in rows if row[0] not in self._outcomes]
        if not self._outcomes:
            return None
        for place, (_, error) in sorted(self._outcomes.items()):
            carrier.announce(self.pulled[place][1], error)
        return [self._outcomes.get(place, NOT_RUN) for place in range(len(self.pulled))]

    def _find_rows(self) -> list[Row[int]]:
        rows, fed = list[Row[int]](), iter(self.feeds)
        find = self._keyed.variables.states.find_nowait
        for place, (_, marks, _) in enumerate(self.pulled):
            try:
                if place in self._refused:
                    raise self._refused[place]
                # Of a dropped key, items that have to be handed over would begin anew.
                feeds, state = next(fed), find(marks.key, drops=False)
                if state is None:
                    break
                rows.append((place, state, feeds))
            except Exception as error:
                self._outcomes[place] = NOTHING, error
        return rows

    def _run_rows(self, rows: Sequence[Row[int]], carrier: Carrier, terms: InlineTerms) -> bool:
        """Run `rows` on `carrier`, or each alone if they fail; False if `terms` forbid it here."""
        places, states, feeds = zip(*rows, strict=True)
        own = [self.pulled[place][1] for place in places]
        marks = Timestamps(own[0].asked_ns, own[-1].given_ns, stream=own[0].stream)
        failure: Exception | None = None
        try:
            results = carrier.run_at_once(self._keyed.join(feeds, states), marks, terms)
            if results is None:
                return False
            parts, values = self._keyed.split(results, len(rows))
        except Exception as error:
            if len(rows) > 1 and may_succeed_alone(error):
                return all(self._run_rows([row], carrier, terms) for row in rows)
            failure = error
        self._keyed.pace.note(marks, len(rows))
        for number, place in enumerate(places):
            own[number].copy_run(marks)
            if failure is None:
                states[number].versions.hold(values[number])
                self._outcomes[place] = to_values(parts[number]), None
            else:
                # Each has a copy: a catcher adds notes, and raises it with its own traceback.
                again = failure.again() if isinstance(failure, PlaitError) else failure
                self._outcomes[place] = NOTHING, again
        return True
