"""What streams ask of whoever runs their items: the runtime of a session, or a pool of replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from ...graph.tensor import Array
from ..planning import Plan
from ..running.item import Flight, Results
from ..running.keys import Keys
from ..running.marks import Marks
from ..running.quick import ON_LOOP, Limit
from ..running.spares import Spares

T = TypeVar("T")


class Carrier(Protocol):
    """Takes items to their results; used on the trio thread only."""

    @property
    def plan(self) -> Plan:
        """What it runs."""
        ...

    @property
    def keys(self) -> Keys:
        """The keys of random numbers."""
        ...

    @property
    def spares(self) -> Spares:
        """Arrays for inputs of items that wait."""
        ...

    @property
    def now_ns(self) -> Callable[[], int]:
        """The clock that items are timed with."""
        ...

    async def checkpoint(self) -> None:
        """Let other tasks run, now and then."""
        ...

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        """Call what copies arrays, on a thread if they are large."""
        ...

    def borrowed(self, inputs: Any) -> Any:
        """Return what is fed, with loans of what lies on devices."""
        ...

    def announce(self, marks: Marks, error: BaseException | None) -> None:
        """Count an item that has ended, and tell observers."""
        ...

    def run_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        marks: Marks,
        fetched: frozenset[str],
        limit: Limit = ON_LOOP,
    ) -> Results | None:
        """Run an item on this thread that is likely to keep within a limit; None if it is not."""
        ...

    async def plan_for(self, fetched: frozenset[str]) -> Plan:
        """Return the plan for what is fetched; raise if there is none."""
        ...

    async def prepare(self, max_in_flight: int, fetched: frozenset[str]) -> None:
        """Be ready for a number of items in flight; raise if no item could ever start."""
        ...

    async def admit(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        flight: Flight,
        fetched: frozenset[str],
    ) -> None:
        """Start an item, once there is room for it; raise if it cannot start."""
        ...

    async def admit_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        flight: Flight,
        fetched: frozenset[str],
    ) -> bool:
        """Start an item if nothing has to be waited for, and say so; inputs are not kept."""
        ...

    async def drain(self, flights: set[Flight]) -> None:
        """Cancel items and wait until the last of them has ended; not to be cancelled itself."""
        ...
