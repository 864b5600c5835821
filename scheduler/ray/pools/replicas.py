"""Replicas: whole sessions of one plan on many hosts of a cluster, and their pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Unpack

import trio

from ....devices.errors import DeviceUnavailableError
from ....graph.core.nested import acts_outside, walk_nodes
from ....graph.core.state import has_assignments
from ...errors import PlanError, SessionError
from ...plans.fetches import Fetches
from ...plans.plan import Plan
from ...runtime.events import Announcer, Observer
from ...runtime.faults import FaultPolicy
from ...runtime.opened.feeds import Keys
from ...runtime.streaming.item_run import run_one
from ...runtime.streaming.options import StreamArguments, StreamOptions, stream_options
from ...runtime.streaming.sources import Source
from ...runtime.streaming.stream import Results, open_stream
from ...runtime.tasks import open_nursery
from ..actors import Ref
from ..payload import SessionPayload
from .autoscaling import Size
from .pool import Pool
from .pool_status import PoolStatus, ReplicaStatus
from .replica import Replica, StartHost
from .replica_manager import ReplicaManager

WINDOW = 64
"""Default limit of a replica's items; of long items it gets only as many as keep it busy."""

ALIVE_BYTES = 256 << 20
"""Default limit of the inputs and outputs of a stream's items, in the driver's memory."""


class ReplicaPool:
    """Runs items on replicas of a session, from ``async with`` to its end.

    Made by `Cluster.replicas`, which documents the parameters.

    Notes
    -----
    An item goes to the least loaded replica, short ones several in a call; results are returned in
    the order of the source. When a replica is lost, its items run again elsewhere, and another one
    is started. Items of plans that assign to variables or act outside are not run again. Leaving
    the pool cancels items in flight and ends all replicas.
    """

    def __init__(
        self,
        payload: SessionPayload,
        start: StartHost,
        put: Callable[[Any], Ref],
        *,
        n: int | tuple[int, int] = 1,
        max_in_flight: int | None = None,
        silence_s: float = 30.0,
        start_timeout_s: float = 60.0,
        faults: FaultPolicy | None = None,
        on_event: Observer | None = None,
        seed: int = 0,
    ) -> None:
        plan = payload.plan
        _check(plan, n, max_in_flight)
        self.plan = plan
        self._payload = payload
        self._start = start
        self._put = put
        self._size = Size(n, n) if isinstance(n, int) else Size(*n)
        self._keeps = has_assignments(plan.fed)
        self._acts = any(acts_outside(node) for _, _, node in walk_nodes(plan.fed))
        # Twice as many as run, so that the next items arrive in time.
        least = 2 * plan.in_flight
        # Each item reads the variables that the previous one assigned, so they run one by one.
        self._window = 1 if self._keeps else max_in_flight or max(WINDOW, least)
        self._silence_s = silence_s
        self._start_timeout_s = start_timeout_s
        self._faults = faults or FaultPolicy()
        self._announcer = Announcer(on_event)
        self._keys = Keys(plan, seed)
        self._packed: tuple[Any, ...] = ()
        self._pool: Pool | None = None
        self._manager: ReplicaManager | None = None
        self._context: AbstractAsyncContextManager[None] | None = None
        self._streams = 0

    async def __aenter__(self) -> ReplicaPool:
        if self._context is not None:
            raise SessionError("the pool is open already", fix="make another one")
        self._context = self._running()
        try:
            await self._context.__aenter__()
        except BaseException:
            self._context = None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._context is not None, "it was entered"
        context, self._context = self._context, None
        return await context.__aexit__(kind, error, traceback)

    async def run(
        self,
        inputs: Mapping[str, Any],
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Any:
        """Run one item of `inputs` and return its outputs or `fetches`, as `Session.run` does.

        Any number of tasks may call it; items wait until a replica has room. After cancellation or
        `deadline_s` seconds it returns at once, and the item is cancelled on its replica.

        Raises
        ------
        FetchError, FeedError, DeadlineError, KernelError, DeviceError
            As `Session.run`.
        DeviceLostError
            If its replica was lost, and the item has used all of its replays.
        """
        return await run_one(self._open_pool(), inputs, fetches, deadline_s)

    def stream(
        self, source: Source, **arguments: Unpack[StreamArguments]
    ) -> AbstractAsyncContextManager[Results]:
        """Run the items of `source` on all replicas.

        Parameters
        ----------
        **arguments
            As for `Session.stream`, without keys. By default as many items are alive as all
            replicas have room for, with at most 256 MB of inputs and outputs unless that leaves
            replicas idle. Without copies, results are read-only, and may be read until the item is
            released. An item that is late fails at once.

        Raises
        ------
        SessionError, FetchError, DoesNotFitError
            As `Session.stream`.
        """
        pool = self._open_pool()
        options = self.stream_options(arguments)
        # Only after all checks, so that refused arguments leave no stream registered.
        self._streams += 1
        if options.ordered:
            pool.ordered.add(self._streams)
        return open_stream(pool, source, options, self._streams)

    def stream_options(self, arguments: StreamArguments) -> StreamOptions:
        """Return the options of a stream that is started with `arguments`.

        Raises
        ------
        SessionError, FetchError
            If they are invalid.
        """
        if arguments.get("key") is not None:
            raise SessionError(
                "a pool has no state by key", fix="stream with a session, or each key"
            )
        if arguments.get("max_in_flight") is None:
            most = self._most_alive() * (arguments.get("batch") or 1)
            arguments = {**arguments, "max_in_flight": most}
        return stream_options(self.plan, arguments)

    def status(self) -> PoolStatus:
        """Return the present status: counts of items, and the replicas."""
        pool, manager = self._open_pool(), self._manager
        assert manager is not None
        replicas = {
            name: ReplicaStatus(
                node=one.node,
                process=one.process,
                ready=name in manager.ready,
                under_way=pool.under_way(name),
                done=one.done,
                item_s=pool.item_s(name),
            )
            for name, one in manager.replicas.items()
        }
        counts = pool.done, pool.failed, pool.waiting, pool.in_flight
        return PoolStatus(*counts, replicas, pool.dropped)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._packed = await trio.to_thread.run_sync(self._payload.pack, self._put)
        manager = self._manager = ReplicaManager(
            self._replica, self._size, self._faults, self._announcer, can_restart=not self._keeps
        )
        pool = Pool(
            self.plan,
            manager,
            window=self._window,
            # A lost item may have taken effect already, and would again.
            replays=0 if self._keeps or self._acts else self._faults.replays,
            keeps=self._keeps,
            announcer=self._announcer,
            keys=self._keys,
        )
        async with open_nursery() as nursery:
            nursery.start_soon(manager.run)
            try:
                await self._wait_ready(manager)
                self._pool = pool
                yield
            finally:
                self._pool, self._packed = None, ()
                pool.close()
                nursery.cancel_scope.cancel()

    async def _wait_ready(self, manager: ReplicaManager) -> None:
        with trio.move_on_after(self._start_timeout_s) as scope:
            await manager.wait_ready()
        if scope.cancelled_caught:
            raise DeviceUnavailableError(
                f"no replica has started within {self._start_timeout_s:g} s",
                fix="see that some node of the cluster has the labels of select=, and is free to "
                "give num_cpus= and num_gpus=; or wait longer, with start_timeout_s=",
            )

    def _replica(self, name: str) -> Replica:
        return Replica(name, self._start, self._packed, self._silence_s)

    def _most_alive(self) -> int:
        if self._keeps:
            return 1
        graph = self.plan.graph
        specs = [graph.tensors[name] for name in (*graph.inputs, *graph.outputs)]
        # Tensors with symbols do not count: that admits too many items rather than too few.
        known = [spec.nbytes for spec in specs if spec.is_static]
        least = self._size.most * min(self._window, self.plan.in_flight + 1)
        return max(least, min(self._size.most * self._window, ALIVE_BYTES // max(1, sum(known))))

    def _open_pool(self) -> Pool:
        if self._pool is None:
            raise SessionError(
                "the pool is not open", fix="async with cluster.replicas(plan) as pool"
            )
        return self._pool


def _check(plan: Plan, n: object, max_in_flight: object) -> None:
    """Raise PlanError or SessionError unless `plan`, `n` and `max_in_flight` make a pool."""
    is_pair = isinstance(n, tuple) and len(n) == 2
    if not all(type(one) is int for one in (n if isinstance(n, tuple) and is_pair else (n,))):
        raise SessionError(
            f"n is {n!r}", fix="give how many replicas, or the least and the most: n=(1, 16)"
        )
    if n != 1 and n != (1, 1) and has_assignments(plan.fed):
        raise PlanError(
            "the graph assigns to variables, and each replica would have its own",
            fix="use n=1, or fetch what assigns nothing",
        )
    if max_in_flight is not None and (type(max_in_flight) is not int or max_in_flight < 1):
        raise SessionError(f"max_in_flight is {max_in_flight!r}", fix="use 1 or more")
