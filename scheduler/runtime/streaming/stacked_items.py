"""Items of a stream that are stacked, run and divided on one thread.

A hand-over for each item, to be stacked elsewhere, takes longer than the rows of most batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....graph.values.errors import PlaitError
from ...profile.timestamps import Timestamps
from ..opened.feeds import mark_checked
from ..opened.results import NOTHING, Outcome, Results, to_values
from ..running.inline_runner import InlineTerms
from .batching import Batching, ItemStack
from .carrier import Carrier
from .sources import Pulled, Puller


class StackedItems(ItemStack):
    """Consecutive items of a source that run together."""

    def __init__(self, batching: Batching) -> None:
        super().__init__(batching)
        self._refused: dict[int, Exception] = {}
        self.pulled: list[Pulled] = []

    @property
    def is_complete(self) -> bool:
        """Whether the batch is full, counting items that will fail."""
        return len(self.pulled) >= self._batching.size or self.is_full

    def pull(self, puller: Puller) -> bool:
        """Pull an item from `puller`; return False without one, or without room for it."""
        if self.is_complete:
            return False
        if not puller.pulled and (puller.is_exhausted or not puller.pull()):
            return False
        assert puller.pulled is not None
        return self.add(puller.pulled) and puller.take() is not None

    def add(self, item: Pulled) -> bool:
        """Add `item`; return False if it does not fit. It will fail if it fits into no batch."""
        index, marks, inputs = item
        try:
            arrays, rows = self._batching.check_rows(inputs)
            # The source may use its arrays again.
            copies = {name: array.copy() for name, array in arrays.items()}
            inputs = own = mark_checked(self._batching.graph, copies)
            padded = self._batching.pad(own)
            if not self.fits(padded, rows):
                return False
            self.push(padded, rows)
        except Exception as error:
            self._refused[len(self.pulled)] = error
        self.pulled.append((index, marks, inputs))
        return True

    def run(self, carrier: Carrier, terms: InlineTerms) -> list[Outcome] | None:
        first, last = self.pulled[0][1], self.pulled[-1][1]
        marks = Timestamps(first.asked_ns, last.given_ns, stream=first.stream)
        shared: BaseException | None = None
        divided: list[Results] = []
        try:
            if self.feeds:
                joined = self.stacked()
                results = carrier.run_at_once(joined, marks, terms)
                if results is None:
                    return None
                divided = self.divide(results)
        except Exception as error:
            shared = error
        return self._settle(carrier, marks, iter(map(to_values, divided)), shared)

    def _settle(
        self,
        carrier: Carrier,
        marks: Timestamps,
        parts: Iterator[Results],
        shared: BaseException | None,
    ) -> list[Outcome]:
        outcomes = list[Outcome]()
        for place, (_, own_marks, _) in enumerate(self.pulled):
            error: BaseException | None = self._refused.get(place)
            if error is None:
                own_marks.copy_run(marks)
                # Each has a copy: a catcher adds notes, and raises it with its own traceback.
                error = shared.again() if isinstance(shared, PlaitError) else shared
            carrier.announce(own_marks, error)
            outcomes.append((next(parts) if error is None else NOTHING, error))
        return outcomes
