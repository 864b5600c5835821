"""Items of a stream by key that run in batches on one thread, like `stacked_items`."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.values.errors import PlaitError
from ...profile.timestamps import Timestamps
from ..opened.results import NOT_RUN, NOTHING, Outcome, to_values
from ..running.inline_runner import InlineTerms
from .batching import Batching, may_succeed_alone
from .carrier import Carrier
from .keyed_batch import KeyedBatching, Row
from .sources import Puller
from .stacked_items import StackedItems


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
