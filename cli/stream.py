"""Runs a plan for the command line: one item, or a stream of items with its failures."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from ..graph.core.printing import format_count
from ..graph.values.errors import PlaitError
from ..scheduler.runtime.session import Session
from ..scheduler.runtime.tasks import open_nursery
from .cluster import Size, open_session
from .live import LiveView
from .options import is_interrupt
from .output import show_progress, write_arrays
from .streaming import Streaming

if TYPE_CHECKING:
    from ..graph.values.tensor import Array
    from ..scheduler.plans.plan import Plan
    from ..scheduler.profile import Profile
    from ..scheduler.ray import Cluster
    from ..scheduler.ray.pools.replicas import ReplicaPool

MakeItem: TypeAlias = Callable[[int], Mapping[str, "Array"]]


@dataclass(slots=True)
class Streamed:
    done: int = 0
    """Successful items."""
    failures: dict[int, BaseException] = field(default_factory=dict)
    """Failed items, by number."""
    dropped: int = 0
    """Items that there was no room for."""
    elapsed_s: float = 0.0
    """From the first item asked for to the last result, without opening and closing devices."""
    profile: Profile | None = None
    """None before the end of the stream, and for replicas."""
    was_interrupted: bool = False
    """True if Ctrl-C ended the stream early."""

    @property
    def per_second(self) -> float:
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        failures = [{"item": index, "error": str(e)} for index, e in sorted(self.failures.items())]
        return {
            "done": self.done,
            "failures": failures,
            "dropped": self.dropped,
            "seconds": self.elapsed_s,
            "items_per_second": self.per_second,
            "interrupted": self.was_interrupted,
        }

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        how = "interrupted after " if self.was_interrupted else ""
        rate = f"{self.per_second:.1f} items/s"
        items = format_count(self.done, "item")
        return f"{how}{items} in {self.elapsed_s:.3f} s: {rate}{failed}{dropped}"


def run_once(
    plan: Plan,
    item: Mapping[str, Array],
    trace: Path | None,
    cluster: Cluster | None = None,
    replicas: Size = 0,
) -> tuple[dict[str, Array], float]:
    """Run `item` in a session of `plan`, or on `replicas` in `cluster`; return outputs and seconds.

    A profile of the run is saved to the file `trace`, if given.
    """

    async def run() -> tuple[dict[str, Array], float]:
        async with open_session(plan, cluster, replicas, measure=trace is not None) as session:
            start = time.perf_counter()
            outputs = await session.run(item)
            elapsed_s = time.perf_counter() - start
            save_trace(_profile(session), trace)
            return outputs, elapsed_s

    return trio.run(run)


def run_stream(
    plan: Plan,
    make_item: MakeItem,
    count: int,
    output: Path | None,
    *,
    label: str,
    measure: bool = False,
    streaming: Streaming | None = None,
    live: bool = False,
    cluster: Cluster | None = None,
    replicas: Size = 0,
) -> Streamed:
    """Run items 0 to `count` - 1 of `make_item` by `plan`, as many at a time as it allows.

    They run in a session that may `measure`, or on `replicas` in `cluster`; progress is shown with
    `label`, or `live`. An item that cannot be made, or fails, is recorded, and the others continue,
    unless `streaming` says otherwise. The outputs of each are written to the folder `output`, if
    given. After Ctrl-C it returns the results so far.
    """
    streamed = Streamed()
    how = streaming or Streaming({})

    async def run() -> None:
        async with open_session(plan, cluster, replicas, measure=measure) as session:
            try:
                async with _show_progress(session, label, count, live=live) as advance:
                    await _consume(session, make_item, count, output, streamed, advance, how)
            finally:
                # Also after Ctrl-C, and before the session closes.
                streamed.profile = _profile(session)
                streamed.dropped = session.status().dropped

    try:
        trio.run(run)
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if not is_interrupt(error):
            raise
        streamed.was_interrupted = True
    return streamed


@asynccontextmanager
async def _show_progress(
    session: Session | ReplicaPool, label: str, count: int, *, live: bool
) -> AsyncIterator[Callable[[], None]]:
    if not live or not isinstance(session, Session):
        with show_progress(label, count) as advance:
            yield advance
        return
    async with open_nursery() as nursery:
        nursery.start_soon(LiveView(session, count).run)
        yield lambda: None
        nursery.cancel_scope.cancel()


def _profile(session: Session | ReplicaPool) -> Profile | None:
    return session.profile() if isinstance(session, Session) else None


def save_trace(profile: Profile | None, trace: Path | None) -> None:
    if profile is not None and trace is not None:
        profile.save(trace)


async def _consume(
    session: Session | ReplicaPool,
    make_item: MakeItem,
    count: int,
    output: Path | None,
    streamed: Streamed,
    advance: Callable[[], None],
    how: Streaming,
) -> None:
    under_way: dict[int, int] = {}  # which item the stream's next ones are: some were not made
    fed = itertools.count()

    async def source() -> AsyncIterator[Mapping[str, Array]]:
        for index in range(count):
            try:
                # On a thread, so that files are read while devices compute.
                item = await trio.to_thread.run_sync(make_item, index)
            except PlaitError as error:
                streamed.failures[index] = error
                advance()
                if how.stop:
                    return
            else:
                under_way[next(fed)] = index
                yield item

    start = time.perf_counter()
    try:
        async with session.stream(source(), **how.arguments) as results:
            async for item in results:
                # Popped, so that an endless stream does not accumulate items.
                index = under_way.pop(item.index)
                if item.error is not None:
                    streamed.failures[index] = item.error
                else:
                    if output is not None:
                        write_arrays(output / f"{index:04d}.npz", item.outputs)
                    streamed.done += 1
                advance()
                if streamed.failures and how.stop:
                    break
    finally:
        streamed.elapsed_s = time.perf_counter() - start
