"""The core of a pool of replicas: admits items, deals them, and handles answers."""

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
from ....graph.values.dtypes import has_objects, hold_object, hold_objects
from ....graph.values.errors import PlaitError
from ....graph.values.tensor import Array
from ...errors import session_closed_error
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ...runtime.events import Announcer, ItemDone, ItemReplayed
from ...runtime.items.input_staging import InputStagingPool
from ...runtime.items.item import ItemRun
from ...runtime.opened.copying import are_small
from ...runtime.opened.feeds import Keys, check_feeds
from ...runtime.opened.fetch_plan_cache import ALL, KEPT_FETCHES
from ...runtime.streaming.carrier import Carrier
from .load_balancing import LoadBalancer
from .replica import Replica
from .replica_load import PoolCall
from .replica_manager import ReplicaManager
from .serving_sessions import Answer, Asked, Outcome

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Entry:
    """An admitted item that has not ended."""

    item_run: ItemRun
    inputs: dict[str, Array]
    fetches: tuple[str, ...] | None


class Pool(Carrier):
    """Carries items to replicas and back; it needs no preparation, and waits for lost replicas.

    Parameters
    ----------
    window : int
        The number of items that a replica may have.
    replays : int
        How often an item is run again after the loss of its replica.
    keeps : bool
        Whether replicas keep variables, so that another replica cannot replace a lost one.

    Attributes
    ----------
    plan, keys, spares, now_ns
        As streams need them.
    done, failed : int
        Items that have ended, and those among them that failed.
    dropped : int
        Items of live sources that there was no room for.
    ordered : set of int
        The numbers of the streams with ordered results.
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
        self._plans: dict[frozenset[str], Plan] = {}
        manager.on_ready, manager.on_loss = self._join, self._lose
        manager.on_failure = self._fail_all
        manager.crowd = self._crowd

    @property
    def waiting(self) -> int:
        """The number of items that wait for a replica."""
        return self._balancer.waiting

    @property
    def in_flight(self) -> int:
        """The number of admitted items that have not ended."""
        return len(self._entries)

    def under_way(self, replica: str) -> int:
        return self._balancer.under_way(replica) if replica in self._balancer.replicas else 0

    def item_s(self, replica: str) -> float | None:
        return self._balancer.item_s(replica) if replica in self._balancer.replicas else None

    def _crowd(self) -> tuple[int, int]:
        waiting = self._balancer.waiting
        under_way = len(self._entries) - waiting
        return waiting, max(1, under_way // max(1, len(self._manager.ready)))

    def close(self) -> None:
        """Cancel all items, and admit no more."""
        self._refusal = session_closed_error
        for entry in list(self._entries.values()):
            entry.item_run.cancel()

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        return copy() if are_small(arrays) else await trio.to_thread.run_sync(copy)

    def borrowed(self, inputs: Any) -> Any:
        """Return `inputs` unchanged: a pool accepts no arrays on devices."""
        return inputs

    def announce(self, marks: Timestamps, error: BaseException | None) -> None:
        self.done += 1
        self.failed += error is not None
        if self._announcer.is_heard:
            latency_ns = max(0, marks.landed_ns - marks.admitted_ns)
            self._announcer.tell(ItemDone(latency_ns / 1e9, error))

    item_ns = 0  # unknown: items run elsewhere

    def count_dropped(self) -> None:
        self.dropped += 1

    async def plan_for(self, fetched: frozenset[str]) -> Plan:
        if fetched == ALL:
            return self.plan
        if fetched not in self._plans:
            made = await trio.to_thread.run_sync(self.plan.fetching, *sorted(fetched))
            while len(self._plans) >= KEPT_FETCHES:
                del self._plans[next(iter(self._plans))]
            self._plans[fetched] = made
        return self._plans[fetched]

    async def admit(
        self,
        inputs: Mapping[str, Any],
        max_in_flight: int,
        item_run: ItemRun,
        fetched: frozenset[str] = ALL,
    ) -> None:
        plan = await self.plan_for(fetched)
        arrays = check_feeds(plan.fed, plan.unneeded, inputs)
        if self._refusal is not None:
            raise self._refusal()
        # Copied now, since the caller may change them while the item waits or is replayed.
        own = partial(self.spares.copy_into, arrays, self.spares.room_for(arrays))
        names = tuple(sorted(fetched)) or None
        entry = _Entry(item_run, await self.copying(arrays.values(), own), names)
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
        await self.admit(inputs, max_in_flight, item_run, fetched)
        return True

    async def drain(self, item_runs: set[ItemRun]) -> None:
        """Cancel `item_runs`, without waiting for replicas that have begun them."""
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
        item_run.on_cancel = partial(self._cancel, number)
        # Small items travel several in a call, large ones alone.
        nbytes = sum(array.nbytes for array in entry.inputs.values())
        self._balancer.put(number, nbytes, in_order=item_run.marks.stream in self.ordered)
        self._deal()

    def _deal(self) -> None:
        for call in self._balancer.deal():
            replica = self._manager.replicas[call.replica]
            # Marked busy now, so that the pool does not stop it meanwhile.
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
        answer = None if error is not None else Answer(*value)
        # A host that answers may have lost a device: its session cannot run items any more.
        loss = error if answer is None else find_lost_device(answer, replica.name)
        if isinstance(loss, DeviceLostError):
            replica.lose(loss)  # all of its items run again
            return
        item_s = None if answer is None else replica.item_s(answer)
        outcomes = {} if answer is None else {one[0]: Outcome(*one) for one in answer.outcomes}
        for number in self._balancer.answered(call, item_s):
            if number in outcomes:
                self._land(number, outcomes[number], replica)
            else:
                # Otherwise the caller of an item that the answer omits would wait forever.
                self._fail(number, error or DeviceError(f"{replica.name!r} said nothing of it"))
        self._deal()
        if not self.under_way(replica.name):
            replica.idle_since = trio.current_time()
            self._manager.look_again()

    def _land(self, number: int, outcome: Outcome, replica: Replica) -> None:
        replica.done += 1
        replica.starts = 0  # it works, so that a later loss has all attempts to start again
        item_run = self._pop(number)
        item_run.marks.finished_ns = self.now_ns()
        if outcome.error is not None:
            item_run.finish(error=rebuild(outcome.error, f"replica {replica.name!r}"))
        elif outcome.results is None:
            item_run.finish(error=session_closed_error())
        else:
            try:
                taken = item_run.take(self._hold(outcome.results), {})
            except (MemoryError, PlaitError) as error:
                item_run.finish(error=error)
            else:
                item_run.marks.landed_ns = self.now_ns()
                item_run.land(taken, None, lambda: None)

    def _hold(self, results: Mapping[str, Any]) -> dict[str, Array]:
        made, tensors = dict(results), self.plan.graph.tensors
        for name, value in results.items():
            if has_objects((spec := tensors[name]).dtype):
                made[name] = hold_objects(value) if spec.shape else hold_object(value)
        return made

    def _cancel(self, number: int) -> None:
        call = self._balancer.drop(number)
        item_run = self._pop(number)
        # The other items of the call go on.
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
        """Replay the items of `replica` after its `loss` if they may run again, or fail them."""
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
        kind = error if isinstance(error, PlaitError) else DeviceError(str(error))
        if self._refusal is not session_closed_error:
            self._refusal = kind.again
        for number in list(self._entries):
            self._balancer.drop(number)
            self._fail(number, kind)


def lost_item_error(name: str, loss: DeviceLostError, replays: int) -> DeviceLostError:
    """Return the error of an item that was lost with its replica `name`, because of `loss`.

    It had run again `replays` times.
    """
    fix = "it may have taken effect, so it is not run again: feed it again if that does no harm"
    if replays:
        fix = f"it ran {replays + 1} times, and no replica survived; see what ends them"
    return DeviceLostError(f"{name!r} was lost with the item: {loss.what}", at=loss.at, fix=fix)


def lost_variables_error(name: str, loss: DeviceLostError) -> DeviceLostError:
    """Return the error of all items after the `loss` of replica `name`, with variables."""
    return DeviceLostError(
        f"{name!r} was lost, and what the variables held there: {loss.what}",
        at=loss.at,
        fix="open another pool, of a plan with the variables of a checkpoint",
    )


def find_lost_device(answer: Answer, name: str) -> DeviceLostError | None:
    """Return the error in `answer` from replica `name` if it lost a device for good, or None."""
    for outcome in answer.outcomes:
        error = outcome[2]
        if error is not None and error[0][0][0] == DeviceLostError.__name__:
            rebuilt = rebuild(error, f"replica {name!r}")
            return rebuilt if isinstance(rebuilt, DeviceLostError) else None
    return None
