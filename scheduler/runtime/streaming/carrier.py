"""The interface of streams to the runtime of a session, or to a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ....graph.values.tensor import Array
from ...dispatch.way_choice import WayMemory
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ..items.input_staging import InputStagingPool
from ..items.item import ItemRun
from ..opened.feeds import Keys
from ..opened.results import Results
from ..opened.shape_plan_cache import ShapePlanCache
from ..running.inline_runner import InlineTerms
from .options import StreamOptions

if TYPE_CHECKING:
    from .keyed_batch import KeyedBatching

T = TypeVar("T")


class Carrier(Protocol):
    """Runs items; used on the trio thread only."""

    plan: Plan
    keys: Keys
    """The keys of random numbers."""
    spares: InputStagingPool
    """Arrays for inputs of items that wait."""
    now_ns: Callable[[], int]
    """The clock that items are timed with."""

    @property
    def item_ns(self) -> int:
        """How long the steps of an item take on one thread, lately; 0 if that is not known."""

    @property
    def way_memory(self) -> WayMemory | None:
        """The findings of earlier streams, or None if none are kept."""
        return None

    async def checkpoint(self) -> None:
        """Let other tasks run, now and then."""

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        """Return the result of `copy`, which runs on a thread if the `arrays` are large."""

    def borrowed(self, inputs: Any) -> Any:
        """Return `inputs` with loans of arrays on devices; called on the caller's thread."""

    def announce(self, marks: Timestamps, error: BaseException | None) -> None:
        """Count an item with `marks` that has ended, with `error` or None, and notify observers."""

    async def await_recovery(self) -> None:
        """Wait, after an item has failed for a lost device, until that may have changed."""
        return

    def count_dropped(self) -> None:
        """Count an item of a live source that there was no room for."""

    def run_at_once(
        self, inputs: Mapping[str, Any], marks: Timestamps, terms: InlineTerms
    ) -> Results | None:
        """Run `inputs` here if that is likely to be brief enough for `terms`, or return None.

        If None, nothing has happened; other items may be under way. Plans have the slots that
        `terms` say; `marks` get the times. Any thread may call it while the loop has nothing to do
        with the session; several threads at the same time, if each has a variant. Raises the errors
        of `admit`, or of the item.
        """
        return None

    async def plan_for(self, fetched: frozenset[str]) -> Plan:
        """Return the plan for the names `fetched`, planned on first use.

        Raises FetchError or PlanError or DeviceError if planning fails.
        """

    async def prepare(self, max_in_flight: int, fetched: frozenset[str]) -> None:
        """Open `max_in_flight` slots for the names `fetched` now, if the shapes are known.

        Raises the errors of `plan_for`, or SessionError if no item could ever start.
        """
        return

    async def begin_keys(self, options: StreamOptions) -> KeyedBatching | None:
        """Prepare for items with keys; return their batching, or None if `options` have none.

        Raises SessionError if the graph takes no batches, GraphError if an initial value cannot be
        computed, and the errors of `prepare`.
        """
        return None

    async def admit(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str],
    ) -> None:
        """Start `item_run` on `inputs` once one of `max_in_flight` slots is free.

        The slot is in a plan for the names `fetched`. Raises FetchError, FeedError, ShapeError,
        PlanError, DeviceError or SessionError if it cannot start; nothing is held then.
        """

    async def admit_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str],
        *,
        may_run_here: bool = True,
    ) -> bool:
        """Start `item_run` as `admit` does and return True, or return False if it has to wait.

        `max_in_flight` and `fetched` are as there. It runs on this thread only if `may_run_here`.
        The `inputs` are `borrowed`, and not kept. Raises the errors of `admit`; KernelError if the
        item ran here and fails.
        """

    async def drain(self, item_runs: set[ItemRun]) -> None:
        """Cancel `item_runs` and wait until all of them have ended; not to be cancelled itself."""


class Starter(Carrier, Protocol):
    """Starts items of a session on plans of its own."""

    async def admit_on(
        self,
        shape_plans: ShapePlanCache,
        inputs: Mapping[str, Array],
        max_in_flight: int,
        item_run: ItemRun,
    ) -> None:
        """Start `item_run` on checked `inputs` in one of `max_in_flight` slots of `shape_plans`."""
