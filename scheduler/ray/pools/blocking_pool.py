"""A pool of replicas for synchronous code: its loop runs on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from ...bridges.blocking_results import BlockingResults
from ...bridges.blocking_session import check_no_trio, run_on
from ...bridges.loop_thread import LoopThread
from ...plans.fetches import Fetches
from ...runtime.events import Observer
from ...runtime.faults import FaultPolicy
from ...runtime.streaming.options import StreamArguments
from ...runtime.streaming.sources import SourceItem, check_source
from .pool_status import PoolStatus
from .replicas import ReplicaPool


class ReplicaArguments(TypedDict, total=False):
    """The arguments of `Cluster.replicas` except the plan and the number."""

    devices: str | Sequence[str] | None
    planning: Mapping[str, Any] | None
    select: Mapping[str, str] | None
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] | None
    max_in_flight: int | None
    faults: FaultPolicy | None
    on_event: Observer | None
    seed: int


class BlockingReplicaPool:
    """Runs items on replicas of a session until it is closed, as a `ReplicaPool` does.

    Made by `Cluster.blocking_replicas`, which opens it.

    Examples
    --------
    ::

        with pl.ray.cluster("auto") as cluster:
            with cluster.blocking_replicas(plan, n=4) as pool:
                for item in pool.stream(frames):
                    show(item["boxes"])

    Notes
    -----
    Any thread may run items, several at once.
    """

    def __init__(self, pool: ReplicaPool) -> None:
        check_no_trio()
        self._loop = LoopThread(pool, owner=self)
        self._loop.open()

    def run(
        self,
        inputs: Mapping[str, Any],
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Any:
        """Run one item of `inputs` and return its outputs or `fetches`, as `ReplicaPool.run` does.

        Raises
        ------
        SessionError
            If the pool is closed, or if called in a trio task, which it would block.
        PlaitError
            If the item fails, also when it takes longer than `deadline_s`.
        """
        pool = self._loop.session
        return run_on(self._loop, partial(pool.run, inputs, fetches, deadline_s=deadline_s))

    def stream(
        self, source: Iterable[SourceItem], **arguments: Unpack[StreamArguments]
    ) -> BlockingResults:
        """Run the items of `source` on all replicas, and return an iterator over the results.

        Parameters
        ----------
        source : iterable of Mapping
            Iterated on the thread that iterates over the results, as by `BlockingSession.stream`.
        **arguments
            As for `ReplicaPool.stream`. Results are always copies.

        Raises
        ------
        SessionError
            If the pool is closed, a trio task calls, or the arguments are invalid.
        PlaitError
            If the stream cannot be opened.
        """
        check_no_trio()
        check_source(source, blocking=True)
        options = self._loop.session.stream_options(arguments)
        return BlockingResults(self._loop, source, options, owner=self)

    def status(self) -> PoolStatus:
        """Return the present status, as `ReplicaPool.status` does."""
        check_no_trio()
        status: PoolStatus = self._loop.status().result()
        return status

    def close(self) -> None:
        """Cancel items in flight and end all replicas. May be called twice."""
        self._loop.close()

    def __enter__(self) -> BlockingReplicaPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
