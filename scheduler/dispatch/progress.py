"""Progress of one item: the steps that have all they wait for.

Pure counting, without a clock or a lock: the executor counts events, the simulator predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ItemProgress:
    """The readiness counts of one item.

    Each step waits for as many countdowns as `waits` says, its `input_wait_count`, and counts down
    those in `after` when it is complete.
    """

    __slots__ = ("_after", "_counts")

    def __init__(self, waits: Sequence[int], after: Sequence[Sequence[int]]) -> None:
        self._counts = list(waits)
        self._after = after

    def complete(self, step: int) -> list[int]:
        return self.count_down(self._after[step])

    def count_down(self, steps: Iterable[int]) -> list[int]:
        """Count down each of `steps`; return those that have nothing left to wait for."""
        counts, ready = self._counts, []
        for step in steps:
            counts[step] -= 1
            if counts[step] == 0:
                ready.append(step)
        return ready
