"""Overheads between steps, from a profile: wake-ups of threads and processes, work of the loop.

Steps of the host alone are evaluated, without contention: a step that found its lane idle gives the
latency of a hand-over, a queued step the time from one step of a lane to the next, an item that was
alone in the session the time of the loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..costs.figures import HERE, LOOP, Loop
from ..costs.host import ALONE_BYTES, HOST_BYTES_PER_S, is_on_host
from ..dispatch.hand_over import get_hand_over_ns
from ..dispatch.inline_policy import inline_steps

if TYPE_CHECKING:
    from ..plans.plan import Plan
    from . import Profile, Record, Span

NEXT_NS = 2_000_000
"""Longest gap after which an item counts as waiting for the one before it."""


Summary: TypeAlias = Callable[[Sequence[float]], float | None]
"""Summarizes figures; None if they say nothing."""


class _Way(NamedTuple):
    """The time from the end of work on one device, or the loop, to a step on another."""

    source: str
    target: str
    ns: int


def measure_hops(
    profile: Profile, plan: Plan, summary: Summary | None = None
) -> dict[tuple[str, str], float]:
    """Measure the seconds between steps of `plan` in `profile`, by devices; `LOOP` is the loop.

    `summary` replaces the default summary. From a device to itself it is the time between a step
    and the next one, if that was queued.
    """
    here = {name for name, device in plan.prototypes.items() if is_on_host(device)}
    here |= {LOOP, HERE}
    found: dict[tuple[str, str], list[int]] = {}
    quick = _find_inline_steps(profile, plan)
    for way in [*_list_starts(profile, plan, quick), *_list_landings(profile, quick)]:
        if way.source in here and way.target in here:
            found.setdefault((way.source, way.target), []).append(max(way.ns, 0))
    if summary is None:
        return {
            (a, b): _summarize_usual(every, crowded=a == b) / 1e9 for (a, b), every in found.items()
        }
    told = {way: summary(every) for way, every in found.items()}
    return {way: ns / 1e9 for way, ns in told.items() if ns is not None}


def _summarize_usual(found: Sequence[int], *, crowded: bool) -> float:
    """Return the median of `found`; if `crowded`, as lanes wait for cores, the lower quartile."""
    ordered = sorted(found)
    return ordered[len(ordered) // (4 if crowded else 2)]


def measure_loop(profile: Profile, plan: Plan, summary: Summary = statistics.median) -> Loop | None:
    """Measure the loop's time per item of `profile` by `summary`; None if no item was alone."""
    fed = _predict_copy_s(
        plan, [name for name in plan.graph.inputs if name not in plan.ends.inputs]
    )
    alone = list(_find_lone_items(profile))
    feeds = [
        min(span.ready_ns for span in record.spans()) - record.admitted_ns for record, _ in alone
    ]
    lands = [gap for _, gap in alone if gap is not None and gap < NEXT_NS]
    if not feeds or not lands or fed is None:
        return None
    feed_ns, land_ns = summary(feeds), summary(lands)
    if feed_ns is None or land_ns is None:
        return None
    return Loop(feed_s=max(0.0, feed_ns / 1e9 - fed), land_s=land_ns / 1e9)


def _predict_copy_s(plan: Plan, names: Sequence[str]) -> float | None:
    """Predict the time in which the loop copies `names` of `plan`; None if a thread copies them."""
    nbytes = sum(plan.graph.tensors[name].nbytes for name in names)
    return nbytes / HOST_BYTES_PER_S if nbytes <= ALONE_BYTES else None


def _find_lone_items(profile: Profile) -> Iterator[tuple[Record, int | None]]:
    records = sorted(profile.records, key=lambda record: record.admitted_ns)
    ended = 0
    for record, following in zip_longest(records, records[1:]):
        is_alone = record.admitted_ns >= ended and not record.failed and any(record.spans())
        ended = max(ended, record.landed_ns)
        if is_alone and (following is None or following.admitted_ns >= record.landed_ns):
            yield record, None if following is None else following.admitted_ns - record.landed_ns


def _list_landings(profile: Profile, quick: Container[int]) -> Iterator[_Way]:
    for record, _ in _find_lone_items(profile):
        last = max(record.spans(), key=lambda span: span.ended_ns)
        if last.step.awaited:  # the loop knows at once
            continue
        on_loop = all(span.step.index in quick for span in record.spans())
        yield _Way(HERE if on_loop else last.step.device, LOOP, record.landed_ns - last.ended_ns)


def _list_starts(profile: Profile, plan: Plan, quick: Container[int]) -> Iterator[_Way]:
    """Yield certain hand-overs to steps of `plan` in `profile`; `quick` steps run on the loop."""
    by_device: dict[str, list[tuple[Span, Mapping[int, Span]]]] = {}
    for record in profile.records:
        if len(record.parts) == 1 and not record.failed:
            spans: Mapping[int, Span] = {span.step.index: span for span in record.spans()}
            for span in spans.values():
                if span.step.awaited:
                    continue
                by_device.setdefault(span.step.device, []).append((span, spans))
    for device, every in by_device.items():
        every.sort(key=lambda pair: pair[0].started_ns)
        before = [None, *(span for span, _ in every[:-1])]
        for earlier, (span, known) in zip(before, every, strict=True):
            if earlier is not None and earlier.ended_ns > span.ready_ns:
                yield _Way(device, device, span.started_ns - earlier.ended_ns)
                continue
            waits = [known[index] for index in plan.steps[span.step.index].waits if index in known]
            last = max(waits, key=lambda one: one.ended_ns, default=None)
            is_quick = span.step.index in quick
            if last is not None and last.step.awaited:
                continue
            if last is None:
                yield _Way(LOOP, HERE if is_quick else device, span.started_ns - span.ready_ns)
            elif not is_quick:
                yield _Way(last.step.device, device, span.started_ns - last.ended_ns)


def _find_inline_steps(profile: Profile, plan: Plan) -> set[int]:
    """Return the steps of `plan` that usually ran inline in `profile`, without waking a thread."""
    spent: dict[int, list[int]] = {}
    for record in profile.records:
        for span in record.spans() if len(record.parts) == 1 else ():
            spent.setdefault(span.step.index, []).append(span.ended_ns - span.started_ns)
    inline = inline_steps(plan.steps, plan.prototypes)
    quick_ns = get_hand_over_ns()
    return {index for index in inline & spent.keys() if statistics.median(spent[index]) < quick_ns}
