"""Waits between steps beyond those of the data, which trade some concurrency for memory.

Planned lifetimes overlap unless something orders two steps, though their times may be far apart. If
the predicted gap between them exceeds a margin, one step can wait for the other at little cost, and
their buffers can share bytes. Only the waits that the chosen placement of buffers relies on are
added.

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
from .happens_before import HappensBefore, Relation, close_waits
from .layouts import BufferGroup

Edge: TypeAlias = tuple[int, int]
"""A step, and a later one that waits for it."""

MARGINS = (0.3, 0.1, 0.03, 0.01, 0.0)
"""Usable gaps as shares of the makespan, the widest first."""

MAX_WIDTHS = 8
"""Numbers of concurrently busy devices to try."""


class StepSpan(NamedTuple):
    start: float
    end: float


def predict(
    steps: Sequence[Step], durations: Sequence[float], width: int | None = None
) -> list[StepSpan]:
    """Predict spans of `steps` from their `durations`; each device takes the first that is ready.

    At most `width` devices are busy at once.
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


def find_makespan(spans: Iterable[StepSpan]) -> float:
    return max((span.end for span in spans), default=0.0)


def list_stricter_orders(
    order: HappensBefore, steps: Sequence[Step], durations: Sequence[float]
) -> Iterator[list[HappensBefore]]:
    """Yield groups of orders that are stricter than `order`, the cheapest first.

    First steps are ordered that are far apart in time, by their `durations`, then those apart when
    fewer devices are busy at once; the last order is sequential.
    """
    spans = predict(steps, durations)
    yield [order_by_time(order, spans, margin) for margin in MARGINS]
    n_devices = len({step.device for step in steps})
    for width in range(n_devices - 1, max(0, n_devices - 1 - MAX_WIDTHS), -1):
        yield [order_by_time(order, predict(steps, durations, width), 0.0)]
    yield [HappensBefore.given([(1 << step) - 1 for step in range(len(order.earlier))])]


def order_by_time(order: HappensBefore, spans: Sequence[StepSpan], margin: float) -> HappensBefore:
    """Return `order` with all pairs of steps added that are `margin` of the whole time apart.

    `spans` are the predicted times of steps. The result stays transitive: a step that ends before
    another starts ends before its followers.
    """
    gap = margin * find_makespan(spans)
    ends = sorted((span.end + gap, index + 1) for index, span in enumerate(spans))
    over = [0, *accumulate((1 << step for _, step in ends), lambda a, b: a | b)]
    earlier = list(order.earlier)
    position = 0
    for start, step in sorted((span.start, index + 1) for index, span in enumerate(spans)):
        while position < len(ends) and ends[position][0] <= start:
            position += 1
        earlier[step] |= over[position] & ((1 << step) - 1)
    return HappensBefore.given(earlier)


def find_needed_waits(
    buffers: Sequence[Buffer],
    groups: Iterable[BufferGroup],
    sizes: Sequence[int],
    relation: Relation,
    strict: HappensBefore,
) -> Iterator[Edge]:
    """Yield the waits of `strict` between `buffers` that share bytes in one of `groups`.

    `sizes` are the bytes of buffers, and `relation` has their conflicts.
    """
    for group in groups:
        before: list[tuple[int, int]] = []
        for offset, index in sorted(zip(group.packing.offsets, group.indices, strict=True)):
            if not sizes[index]:
                continue  # it shares nothing anywhere
            before = [(end, other) for end, other in before if end > offset]
            below = np.array([other for _, other in before], np.int64)
            for other in below[np.isin(below, relation.near(index))].tolist():
                yield from _list_waits(buffers[index], buffers[other], strict)
            before.append((offset + sizes[index], index))


def reduce_edges(
    order: HappensBefore, steps: Sequence[Step], edges: Iterable[Edge]
) -> tuple[Edge, ...]:
    needed = {(a, b) for a, b in edges if not order.earlier[b + 1] >> (a + 1) & 1}
    waits = [set(step.waits) for step in steps]
    for a, b in needed:
        waits[b].add(a)
    earlier = close_waits(waits)
    return tuple(
        sorted(
            (a, b)
            for a, b in needed
            if not any(earlier[other + 1] >> (a + 1) & 1 for other in waits[b])
        )
    )


def _list_waits(a: Buffer, b: Buffer, order: HappensBefore) -> Iterator[Edge]:
    if not _is_over(a, b, order):
        a, b = b, a
    for earlier in {step for step, _ in a.accesses}:
        for later in {step for step, _ in b.writers} - {earlier}:
            yield earlier - 1, later - 1


def _is_over(a: Buffer, b: Buffer, order: HappensBefore) -> bool:
    return all(order.precedes(access, writer) for access in a.accesses for writer in b.writers)


def estimate_duration(step: Step, costs: Costs) -> float:
    work = step.work
    if isinstance(work, Transfer):
        return costs.copy_s(work.source, work.target, work.nbytes)
    return costs.program_s(step.device, work.graph)
