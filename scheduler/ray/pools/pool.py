"""The inside of a pool of replicas: items that were admitted, dealt, and come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

import trio

from ....devices.errors import DeviceError, DeviceLostError
from ....devices.worker.remote_errors import rebuild
from ....graph.errors import PlaitError
from ....graph.tensor import Array
from ...dispatch.inline_policy import ON_LOOP, InlineLimit
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ...runtime.events import Announcer, ItemDone, ItemReplayed
from ...runtime.items.feeds import check_feeds
from ...runtime.items.inline_runner import Share
from ...runtime.items.input_staging import InputStagingPool
from ...runtime.items.item import ItemRun
from ...runtime.items.keys import Keys
from ...runtime.opened.copying import are_small
from ...runtime.opened.fetch_plan_cache import ALL
from ...runtime.opened.slots import session_closed_error
from .fetched_plans import FetchedPlans
from .load_balancing import LoadBalancer
from .replica import Replica
from .replica_load import PoolCall
from .replica_manager import ReplicaManager
from .serving_sessions import Answer, Asked, Outcome

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Entry:
    """An item that was admitted and has not ended."""

    item_run: ItemRun
    inputs: dict[str, Array]
    fetches: tuple[str, ...] | None


class Pool:
    """Carries items to replicas and back; used on the trio thread only.

    Parameters
    ----------
    plan : Plan
    manager : ReplicaManager
    window : int
        How many items a replica may have.
    replays : int
        How often an item is run again because its replica was lost.
    keeps : bool
        Whether a replica keeps what items leave there, so that none stands in for another.
    announcer : Announcer
    keys : Keys

    Attributes
    ----------
    plan, keys, spares, now_ns
        As streams need them.
    done, failed : int
        Items that have ended, and those among them that failed.
    dropped : int
        Items of live sources that there was no room for.
    ordered : set of int
        The streams whose results are wanted in order, by number.
    """

    def __init__(
        self,
        plan: Plan,
        manager: ReplicaManager,
        *,
        window: int,
        replays: int,
        keeps: bool,
        announcer: Announcer,
        keys: Keys,
    ) -> None:
        self.plan = plan
        self.keys = keys
        self.spares = InputStagingPool(plan)
        self.now_ns = time.perf_counter_ns
        self.done = self.failed = self.dropped = 0
        self.ordered: set[int] = set()
        self._manager = manager
        self._window = window
        self._replays = replays
        self._keeps = keeps
        self._announcer = announcer
        self._balancer = LoadBalancer(replays)
        self._entries: dict[int, _Entry] = {}
        self._count = 0
        self._refusal: Callable[[], PlaitError] | None = None
        self._plans = FetchedPlans(plan)
        manager.on_ready, manager.on_loss = self._join, self._lose
        manager.on_failure = self._fail_all
        manager.crowd = self._crowd

    @property
    def waiting(self) -> int:
        """How many items no replica has."""
        return self._balancer.waiting

    @property
    def in_flight(self) -> int:
        """How many items were admitted and have not ended."""
        return len(self._entries)

    def under_way(self, replica: str) -> int:
        """Return how many items a replica has."""
        return self._balancer.under_way(replica) if replica in self._balancer.replicas else 0

    def item_s(self, replica: str) -> float | None:
        """Return how long an item takes there, once that is known."""
        return self._balancer.item_s(replica) if replica in self._balancer.replicas else None

    def _crowd(self) -> tuple[int, int]:
        """Return how many items wait, and how many a replica has that is full."""
        waiting = self._balancer.waiting
        under_way = len(self._entries) - waiting
        return waiting, max(1, under_way // max(1, len(self._manager.ready)))

    def close(self) -> None:
        """Cancel what is under way, and admit no more."""
        self._refusal = session_closed_error
        for entry in list(self._entries.values()):
            entry.item_run.cancel()

    async def checkpoint(self) -> None:
        """Let other tasks run."""
        await trio.lowlevel.checkpoint()

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        """Call what copies arrays, on a thread if they are large."""
        return copy() if are_small(arrays) else await trio.to_thread.run_sync(copy)

    def borrowed(self, inputs: Any) -> Any:
        """Return what is fed: arrays on devices do not travel."""
        return inputs

    def announce(self, marks: Timestamps, error: BaseException | None) -> None:
        """Count an item that has ended, and tell observers."""
        self.done += 1
        self.failed += error is not None
        if self._announcer.is_heard:
            latency_ns = max(0, marks.landed_ns - marks.admitted_ns)
            self._announcer.tell(ItemDone(latency_ns / 1e9, error))

    item_ns = 0
    """Unknown: items run elsewhere."""

    way_memory = None

    async def await_recovery(self) -> None:
        """Wait for nothing: a pool holds items back by itself while it has no replica."""

    def count_dropped(self) -> None:
        """Count an item of a live source that there was no room for."""
        self.dropped += 1

    def run_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        marks: Timestamps,
        fetched: frozenset[str],
        limit: InlineLimit = ON_LOOP,
        share: Share | None = None,
    ) -> None:
        """Leave that to the replicas."""

    async def plan_for(self, fetched: frozenset[str]) -> Plan:
        """Return the plan for what is fetched; raises as `FetchedPlans.find`."""
        return await self._plans.find(fetched)

    async def prepare(self, max_in_flight: int, fetched: frozenset[str] = ALL) -> None:
        """Do nothing: replicas open their plans themselves."""

    async def admit(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str] = ALL,
    ) -> None:
        """Let an item wait for a replica; callers see to it that there are not too many.

        Raises
        ------
        FetchError, FeedError, SessionError, DeviceError
            If it cannot start.
        """
        plan = await self._plans.find(fetched)
        arrays = check_feeds(plan.fed, inputs, plan.unneeded)
        if self._refusal is not None:
            raise self._refusal()
        # Copied at once, since the caller may change them while the item waits, or runs again.
        own = partial(self.spares.copy_into, arrays, self.spares.room_for(arrays))
        entry = _Entry(item_run, await self.copying(arrays.values(), own), _names(fetched))
        if self._refusal is not None or item_run.cancelled:  # meanwhile
            raise session_closed_error() if self._refusal is None else self._refusal()
        self._put(entry)

    async def admit_at_once(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str] = ALL,
        *,
        may_run_here: bool = True,
    ) -> bool:
        """Do as `admit`, which has nothing to wait for."""
        await self.admit(inputs, max_in_flight, item_run, fetched)
        return True

    async def drain(self, item_runs: set[ItemRun]) -> None:
        """Cancel items; what of them has begun ends where it is, with nobody waiting for it."""
        for item_run in list(item_runs):
            item_run.cancel()
        with trio.CancelScope(shield=True):
            for item_run in list(item_runs):
                await item_run.done.wait()

    @trio.lowlevel.enable_ki_protection
    def _put(self, entry: _Entry) -> None:
        number, item_run = self._count, entry.item_run
        self._count += 1
        self._entries[number] = entry
        item_run.age = number
        item_run.marks.admitted_ns = self.now_ns()
        item_run.on_cancel = partial(self._give_up, number)
        # Small items travel several in a call, large ones alone.
        nbytes = sum(array.nbytes for array in entry.inputs.values())
        self._balancer.put(number, nbytes, in_order=item_run.marks.stream in self.ordered)
        self._deal()

    def _deal(self) -> None:
        """Give away what there is room for."""
        for call in self._balancer.deal():
            replica = self._manager.replicas[call.replica]
            # Nothing is idle that was just given work: the pool may shrink meanwhile.
            replica.idle_since = inf
            asked = [self._asked(number) for number in call.items]
            replica.run(asked, partial(self._answered, call, replica))
        if self._balancer.waiting:
            self._manager.look_again()

    def _asked(self, number: int) -> Asked:
        entry = self._entries[number]
        entry.item_run.marks.fed_ns = self.now_ns()
        return Asked(number, entry.inputs, entry.fetches)

    def _answered(
        self, call: PoolCall, replica: Replica, value: Any, error: BaseException | None
    ) -> None:
        """Take what came of a call, and give away more."""
        answer = None if error is not None else Answer(*value)
        # A device of the host may be lost though the host answers: sessions there are of no use
        # then.
        loss = error if answer is None else lost_device(answer, replica.name)
        if isinstance(loss, DeviceLostError):
            replica.lose(loss)  # all that it has is run again
            return
        item_s = None if answer is None else replica.item_s(answer)
        outcomes = {} if answer is None else {one[0]: Outcome(*one) for one in answer.outcomes}
        for number in self._balancer.answered(call, item_s):
            if number in outcomes:
                self._land(number, outcomes[number], replica)
            else:
                # An answer that leaves an item out must not leave somebody waiting for ever.
                self._fail(number, error or DeviceError(f"{replica.name!r} said nothing of it"))
        self._deal()
        if not self.under_way(replica.name):
            replica.idle_since = trio.current_time()
            self._manager.look_again()

    def _land(self, number: int, outcome: Outcome, replica: Replica) -> None:
        """End an item that a replica is through with."""
        replica.done += 1
        # It works: what it took to start it is forgotten, and it may be started as often again.
        replica.starts = 0
        item_run = self._pop(number)
        item_run.marks.finished_ns = self.now_ns()
        if outcome.error is not None:
            item_run.finish(error=rebuild(outcome.error, f"replica {replica.name!r}"))
        elif outcome.results is None:
            item_run.finish(error=session_closed_error())
        else:
            try:
                taken = item_run.take(outcome.results)
            except (MemoryError, PlaitError) as error:
                item_run.finish(error=error)
            else:
                item_run.marks.landed_ns = self.now_ns()
                item_run.land(taken, None, _nothing)

    def _give_up(self, number: int) -> None:
        """End an item that was cancelled; what of it has begun is told to end."""
        call = self._balancer.drop(number)
        item_run = self._pop(number)
        # Its replica goes on with the others of the call, and is told only to skip this one.
        if call is not None and call.replica in self._manager.ready:
            self._manager.replicas[call.replica].cancel([number])
        item_run.finish(error=session_closed_error())

    def _fail(self, number: int, error: BaseException) -> None:
        own = error.again() if isinstance(error, PlaitError) else error
        self._pop(number).finish(error=own)

    def _pop(self, number: int) -> ItemRun:
        entry = self._entries.pop(number)
        self.spares.take_back(entry.inputs.values())
        return entry.item_run

    def _join(self, replica: Replica) -> None:
        if self._refusal is not session_closed_error:
            self._refusal = None
        in_flight = min(self._window, self.plan.in_flight)
        self._balancer.join(replica.name, in_flight, self._window)
        self._deal()

    def _lose(self, replica: Replica, loss: DeviceLostError) -> None:
        """Have what a replica had run again, where that may be."""
        losses = self._balancer.lose(replica.name)
        for _ in losses.replayed:
            self._announcer.tell(ItemReplayed(replica.name))
        for number in losses.failed:
            self._fail(number, lost_item_error(replica.name, loss, self._replays))
        if self._keeps:
            self._fail_all(lost_variables_error(replica.name, loss))
        else:
            self._deal()

    def _fail_all(self, error: Exception) -> None:
        """Fail what waits, and what comes: there is no replica for it."""
        kind = error if isinstance(error, PlaitError) else DeviceError(str(error))
        if self._refusal is not session_closed_error:
            self._refusal = kind.again
        for number in list(self._entries):
            self._balancer.drop(number)
            self._fail(number, kind)


def _names(fetched: frozenset[str]) -> tuple[str, ...] | None:
    return tuple(sorted(fetched)) if fetched else None


def _nothing() -> None:
    """There is no slot to let go."""


def lost_item_error(name: str, loss: DeviceLostError, replays: int) -> DeviceLostError:
    """Return what an item fails with that is not run again, or not once more."""
    fix = "it may have taken effect, so it is not run again: feed it again if that does no harm"
    if replays:
        fix = f"it ran {replays + 1} times, and no replica survived; see what ends them"
    return DeviceLostError(f"{name!r} was lost with the item: {loss.what}", at=loss.at, fix=fix)


def lost_variables_error(name: str, loss: DeviceLostError) -> DeviceLostError:
    """Return what all items fail with from now on."""
    return DeviceLostError(
        f"{name!r} was lost, and what the variables held there: {loss.what}",
        at=loss.at,
        fix="open another pool, of a plan with the variables of a checkpoint",
    )


def lost_device(answer: Answer, name: str) -> DeviceLostError | None:
    """Return what a host says that has lost a device for good: another one may do better."""
    for outcome in answer.outcomes:
        error = outcome[2]
        if error is not None and error[0][0][0] == DeviceLostError.__name__:
            rebuilt = rebuild(error, f"replica {name!r}")
            return rebuilt if isinstance(rebuilt, DeviceLostError) else None
    return None
