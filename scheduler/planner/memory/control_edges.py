"""Waits between steps beyond those of the data: a little concurrency given up for memory.

Planned lifetimes overlap wherever nothing keeps two steps apart, though in time they may be far
apart. Where a predicted gap between them exceeds a margin, one step can be made to wait for the
other at little cost, and their buffers can share bytes. Of all the waits that a placement of the
buffers could rely on, those that it does rely on are added.

Waits lead from a step to a later one of the plan alone, as those of the data do: no cycle arises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from ...costs.costs import Costs
from ...plans.placement import Step, Transfer
from .buffers import Buffer
from .happens_before import HappensBefore, Relation, closure
from .layouts import BufferGroup

Edge: TypeAlias = tuple[int, int]
"""A step, and a later one that waits for it."""

MARGINS = (0.3, 0.1, 0.03, 0.01, 0.0)
"""Gaps beyond these parts of the makespan are relied upon, the widest first."""

MAX_WIDTHS = 8
"""So many numbers of devices that are busy at once are tried."""


class StepSpan(NamedTuple):
    """When a step is predicted to run, in seconds."""

    start: float
    end: float


def predict(
    steps: Sequence[Step], durations: Sequence[float], width: int | None = None
) -> list[StepSpan]:
    """Return when the steps of one item run, each device taking what was ready first.

    At most `width` devices are busy at once, if it is given.
    """
    counts = [len(step.waits) for step in steps]
    ready: dict[str, list[tuple[float, int]]] = {step.device: [] for step in steps}
    running: list[tuple[float, int]] = []
    spans = [StepSpan(0.0, 0.0)] * len(steps)
    now, idle = 0.0, set(ready)
    for step in steps:
        if not step.waits:
            heappush(ready[step.device], (now, step.index))
    while running or any(ready.values()):
        heads = sorted((ready[device][0], device) for device in idle if ready[device])
        for (_, index), device in heads[: None if width is None else width - len(running)]:
            heappop(ready[device])
            idle.remove(device)
            spans[index] = StepSpan(now, now + durations[index])
            heappush(running, (spans[index].end, index))
        now, done = heappop(running)
        idle.add(steps[done].device)
        for later in steps[done].dependents:
            counts[later] -= 1
            if counts[later] == 0:
                heappush(ready[steps[later].device], (now, later))
    return spans


def durations_of(steps: Sequence[Step], costs: Costs) -> list[float]:
    """Return how long each step is expected to take, in seconds."""
    return [_duration(step, costs) for step in steps]


def makespan(spans: Iterable[StepSpan]) -> float:
    """Return when the last step ends."""
    return max((span.end for span in spans), default=0.0)


def stricter_orders(
    order: HappensBefore, steps: Sequence[Step], durations: Sequence[float]
) -> Iterator[list[HappensBefore]]:
    """Yield orders with more in them than the given one, in groups, the cheapest first.

    What is far apart in time anyway; then what is when fewer devices are busy at once; at last,
    one step after the other.
    """
    spans = predict(steps, durations)
    yield [timed(order, spans, margin) for margin in MARGINS]
    n_devices = len({step.device for step in steps})
    for width in range(n_devices - 1, max(0, n_devices - 1 - MAX_WIDTHS), -1):
        yield [timed(order, predict(steps, durations, width), 0.0)]
    yield [HappensBefore.given([(1 << step) - 1 for step in range(len(order.earlier))])]


def timed(order: HappensBefore, spans: Sequence[StepSpan], margin: float) -> HappensBefore:
    """Return the order in which steps with a gap between them are one after the other, too.

    It stays transitive: what ends before a step starts ends before anything that follows it.
    """
    gap = margin * makespan(spans)
    ends = sorted((span.end + gap, index + 1) for index, span in enumerate(spans))
    over = [0, *accumulate((1 << step for _, step in ends), lambda a, b: a | b)]
    earlier = list(order.earlier)
    position = 0
    for start, step in sorted((span.start, index + 1) for index, span in enumerate(spans)):
        while position < len(ends) and ends[position][0] <= start:
            position += 1
        earlier[step] |= over[position] & ((1 << step) - 1)
    return HappensBefore.given(earlier)


def relied_upon(
    buffers: Sequence[Buffer],
    groups: Iterable[BufferGroup],
    sizes: Sequence[int],
    relation: Relation,
    strict: HappensBefore,
) -> Iterator[Edge]:
    """Yield the waits that keep buffers apart which share bytes and conflict without waits."""
    for group in groups:
        before: list[tuple[int, int]] = []
        for offset, index in sorted(zip(group.packing.offsets, group.indices, strict=True)):
            if not sizes[index]:
                continue  # it shares nothing, wherever it lies
            before = [(end, other) for end, other in before if end > offset]
            below = np.array([other for _, other in before], np.int64)
            for other in below[np.isin(below, relation.near(index))].tolist():
                yield from _between(buffers[index], buffers[other], strict)
            before.append((offset + sizes[index], index))


def reduced(order: HappensBefore, steps: Sequence[Step], edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return the edges that neither the plan's own waits nor the other edges imply."""
    needed = {(a, b) for a, b in edges if not order.earlier[b + 1] >> (a + 1) & 1}
    waits = [set(step.waits) for step in steps]
    for a, b in needed:
        waits[b].add(a)
    earlier = closure(waits)
    return tuple(
        sorted(
            (a, b)
            for a, b in needed
            if not any(earlier[other + 1] >> (a + 1) & 1 for other in waits[b])
        )
    )


def _between(a: Buffer, b: Buffer, order: HappensBefore) -> Iterator[Edge]:
    """Yield the waits between two buffers, whichever the order has first."""
    if not _is_over(a, b, order):
        a, b = b, a
    for earlier in {step for step, _ in a.accesses}:
        for later in {step for step, _ in b.writers} - {earlier}:
            yield earlier - 1, later - 1


def _is_over(a: Buffer, b: Buffer, order: HappensBefore) -> bool:
    return all(order.precedes(access, writer) for access in a.accesses for writer in b.writers)


def _duration(step: Step, costs: Costs) -> float:
    work = step.work
    if isinstance(work, Transfer):
        return costs.copy_s(work.source, work.target, work.nbytes)
    return costs.program_s(step.device, work.graph)
