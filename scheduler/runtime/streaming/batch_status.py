"""The status of micro-batches: for live views and gauges."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MicroBatchesStatus:
    """The present and past work of `MicroBatches`."""

    waiting: int
    """Items in the queue."""
    in_flight: int
    """Batches under way."""
    batches: int
    items: int
    rows: int
    """Batches that were started, the items in them, and the rows of these. Those that run again
    alone are not counted again."""
    waited_s: float
    """How long these items waited in the queue, in seconds, all of them together."""
    refused: int
    """Items that the queue had no room for."""
    expired: int
    """Items that were not done within their deadlines, in the queue or in a batch."""
    retried_alone: int
    """Items that run again alone, since their batch failed."""

    @property
    def mean_rows(self) -> float:
        """The rows of a batch in the mean; 0 before the first one."""
        return self.rows / self.batches if self.batches else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean_rows": self.mean_rows}
