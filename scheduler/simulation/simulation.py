"""The result of a simulation, with its critical steps and the slack of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from ...graph.core.printing import format_bytes, format_count
from ...graph.values.errors import join_lines
from ..costs import Costs
from ..costs.costs import explain_bases
from ..plans.placement import Step, Transfer
from ..plans.plan import Plan
from ..profile import Profile, Record
from .memory_use import MemoryUse, compute_memory_use
from .workload import NEVER, NO_LIMIT, SimulatedHost, Timeline, Workload, to_ns

LISTED_STEPS = 25

EVEN = 1e-6
"""Tolerance within which a lane takes precedence over an order as the bottleneck."""


@dataclass(frozen=True)
class Simulation:
    """A prediction: the times of all events, and the limit of the speed.

    Attributes
    ----------
    plan : Plan
        The plan, with memory for the simulated number of items in flight, divided among replicas.
    costs : Costs
        The times of nodes, subgraphs and copies.
    workload : Workload
        The steps on their devices' lanes.
    host : SimulatedHost timeline : Timeline profile : Profile
        The prediction in the form of a measurement.
    max_in_flight : int
        The number of items in flight, on all replicas together.
    variants : tuple of Plan
        One plan for each set of replicas that items may go to; a single one without replicas.
    bodies : Mapping of str to sequence of Plan
        The same for the batches of rows, by queue.
    keys : tuple of hashable
        The key of each item; empty if all items share one state.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("product")
    >>> x = b.input("x", "float32", (256, 256))
    >>> b.output("y", b.op("MatMul", x, x, name="product"))
    >>> npu = pl.modelled_device("npu", pl.DeviceModel(flops_per_s=1e9))
    >>> simulation = pl.simulate(pl.plan(b.build(), [npu]), items=10)
    >>> simulation.bottleneck
    'npu'
    >>> f"{simulation.items_per_s:.0f} items per second"
    '30 items per second'
    """

    plan: Plan
    costs: Costs = field(repr=False)
    workload: Workload = field(repr=False)
    host: SimulatedHost
    timeline: Timeline = field(repr=False)
    profile: Profile = field(repr=False)
    max_in_flight: int
    variants: tuple[Plan, ...] = field(repr=False)
    bodies: Mapping[str, Sequence[Plan]] = field(repr=False)
    keys: tuple[Hashable, ...] = field(default=(), repr=False)

    @property
    def items(self) -> int:
        """The number of simulated items."""
        return self.timeline.items

    @property
    def makespan_s(self) -> float:
        """Seconds from the first item's admission to the last one's results."""
        return self.timeline.makespan_s

    @property
    def items_per_s(self) -> float:
        """The number of items divided by the makespan."""
        return self.items / self.makespan_s if self.makespan_s else 0.0

    @property
    def records(self) -> tuple[Record, ...]:
        """When everything happened, per item."""
        return self.profile.records

    @property
    def overlap(self) -> float:
        """The share of time in which at least two devices work, of that in which any works."""
        return self.profile.overlap

    @property
    def busy(self) -> dict[str, float]:
        """For every lane the share of the makespan in which it works; some devices share a lane.

        For an async function with limited concurrency, the share of that limit in use.
        """
        spent = [0] * len(self.workload.lanes)
        for entry, ended in enumerate(self.timeline.ended):
            spent[self.timeline.lane[entry]] += ended - self.timeline.started[entry]
        whole = self.makespan_s * 1e9 or 1.0
        pairs = zip(self.workload.lanes, spent, strict=True)
        return {
            lane.name: ns / whole / (lane.depth if lane.awaits else 1)
            for lane, ns in pairs
            if lane.depth < NO_LIMIT
        }

    @cached_property
    def cycles(self) -> dict[str, float]:
        """The mean seconds from start to end of an item's steps with a key of their order, by key.

        No two items of one state are there at a time, so that a stream takes no less for each.
        """
        claims, releases = self.workload.ordered[:2]
        time, found = self.timeline, dict[str, float]()
        for key in dict.fromkeys(key for of_step in releases.values() for key in of_step):
            first = [step for step, keys in claims.items() if key in keys]
            last = [step for step, keys in releases.items() if key in keys]
            spent = 0
            for base in range(0, self.items * time.n_steps, time.n_steps):
                spent += max(time.ended[base + step] for step in last)
                spent -= min(time.started[base + step] for step in first)
            found[key] = spent / self.items / 1e9
        return found

    @property
    def bottleneck(self) -> str | None:
        """The busiest lane, or the order of a function if that is busier; None if nothing works.

        Where items have replicas, each step of a function that keeps state still waits for the item
        before: the length of that cycle may bind, and not a device. With keys, that is the cycle of
        the key with the most items.
        """
        shares = self.busy
        if self.max_in_flight > 1 and self.makespan_s:
            most = max(Counter(self.keys).values(), default=self.items)
            shared = self.workload.ordered.shared
            for key, seconds in self.cycles.items():
                share = seconds * (self.items if key in shared else most) / self.makespan_s
                if share > max(self.busy.values(), default=0.0) + EVEN:
                    shares[f"order of {key}"] = share
        return max(shares, key=shares.__getitem__, default=None)

    @cached_property
    def memory(self) -> Mapping[str, MemoryUse]:
        """The use of every memory over time."""
        land_ns = round(self.host.land_s * 1e9)
        return compute_memory_use(self.variants, self.bodies, self.timeline, land_ns)

    @cached_property
    def critical_path(self) -> tuple[CriticalStep, ...]:
        """The steps that the last result waited for, the first one first."""
        steps = [plan.steps for plan in self.variants]
        of_rows = {queue: [plan.steps for plan in plans] for queue, plans in self.bodies.items()}
        return find_critical_path(self.timeline, self.workload, steps, of_rows)

    @cached_property
    def slack_s(self) -> tuple[float, ...]:
        """How many seconds longer each step could take without delaying the last result.

        It is the minimum over all items.
        """
        return compute_slack_s(self.timeline, self.workload)

    def latency_s(self, quantile: float) -> float:
        """Return a quantile, from 0 to 1, of the seconds from admission to result."""
        return self.profile.latency_s(quantile)

    def save(self, path: str | Path) -> None:
        """Write the predicted trace as JSON for Perfetto (ui.perfetto.dev), as for a profile.

        Raises
        ------
        SessionError
            If the file cannot be written.
        """
        self.profile.save(path)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return {
            "items": self.items,
            "max_in_flight": self.max_in_flight,
            "keys": len({*self.keys}),
            "makespan_s": self.makespan_s,
            "items_per_s": self.items_per_s,
            "latency_ms": {
                name: self.latency_s(q) * 1e3 for name, q in (("p50", 0.5), ("p99", 0.99))
            },
            "busy": self.busy,
            "bottleneck": self.bottleneck,
            "overlap": self.overlap,
            "row_batches": {name: one._asdict() for name, one in self.profile.row_batches.items()},
            "memory": {
                name: {
                    "planned_bytes": use.planned_nbytes,
                    "held_bytes": use.held_nbytes,
                    "occupied_bytes": use.occupied_nbytes,
                }
                for name, use in self.memory.items()
            },
            "steps": self._steps(),
            "critical_path": [
                {
                    "item": one.item,
                    "step": one.step.name,
                    "device": one.step.device,
                    "rows_of": one.rows_of,
                    "started_s": one.started_s,
                    "ended_s": one.ended_s,
                    "after": one.cause,
                }
                for one in self.critical_path
            ],
        }

    def table(self) -> str:
        """Return the figures as text."""
        lines = [
            f"{format_count(self.items, 'item')}, up to {self.max_in_flight} in flight: "
            f"{_format_ms(self.makespan_s)} ms, {self.items_per_s:.1f} items/s",
            f"latency p50 {_format_ms(self.latency_s(0.5))} ms, "
            f"p99 {_format_ms(self.latency_s(0.99))} ms",
        ]
        lines += [f"{name}: busy {share:.0%} of the time" for name, share in self.busy.items()]
        lines += [
            f"{name}: rows per batch {one.rows / one.batches:.1f}, {one.rows} in all"
            for name, one in self.profile.row_batches.items()
        ]
        if mixed := explain_bases(self.costs, self.plan.devices):
            lines.append(mixed)
        lines.append(f"two devices or more at work: {self.overlap:.0%} of the busy time")
        for name, use in self.memory.items():
            lines.append(
                f"memory {name}: {format_bytes(use.planned_nbytes)} planned, at most "
                f"{format_bytes(use.held_nbytes)} held and "
                f"{format_bytes(use.occupied_nbytes)} needed"
            )
        return join_lines([*lines, "", *self._step_table(), "", *self._path_table()])

    def __repr__(self) -> str:
        """Return one line; `table` has the details."""
        items = format_count(self.items, "item")
        return f"<Simulation: {items} in {_format_ms(self.makespan_s)} ms of {self.plan!r}>"

    def _repr_html_(self) -> str:
        from ..reports.html import render_frame

        return render_frame(self)

    def __str__(self) -> str:
        return self.table()

    def _steps(self) -> list[dict[str, Any]]:
        critical = {one.step.index for one in self.critical_path if one.rows_of is None}
        names = dict(zip(self.plan.devices, self.plan.device_names, strict=True))
        return [
            {
                "step": step.name,
                "device": names[step.device],
                "kind": "transfer" if isinstance(step.work, Transfer) else "subgraph",
                "ms": self._step_s(step.index) * 1e3,
                "slack_ms": self.slack_s[step.index] * 1e3,
                "critical": step.index in critical,
            }
            for step in self.plan.steps
        ]

    def _step_s(self, step: int) -> float:
        """Return the seconds of a step; the mean over all items if it waits for batches."""
        if step not in self.workload.calls:
            return self.workload.duration_s[step]
        line = self.timeline
        entries = range(step, line.n_steps * line.items, line.n_steps)
        spent = sum(line.ended[entry] - line.started[entry] for entry in entries)
        return spent / line.items / 1e9

    def _step_table(self) -> list[str]:
        rows = sorted(self._steps(), key=lambda row: -float(row["ms"]))
        lines = [f"{'step':40} {'device':12} {'ms':>9} {'slack ms':>9}"]
        lines += [
            f"{row['step'][:40]:40} {row['device']:12} {row['ms']:9.3f} {row['slack_ms']:9.3f}"
            for row in rows[:LISTED_STEPS]
        ]
        more = len(rows) - LISTED_STEPS
        return [*lines, f"and {more} more steps"] if more > 0 else lines

    def _path_table(self) -> list[str]:
        if self.items > 1:
            return self._path_shares()
        path = self.critical_path
        lines = [f"{'critical path':40} {'device':12} {'from ms':>9} {'to ms':>9}  after"]
        lines += [
            f"{one.step.name[:40]:40} {one.step.device:12} "
            f"{one.started_s * 1e3:9.3f} {one.ended_s * 1e3:9.3f}  {one.cause}"
            for one in path[:LISTED_STEPS]
        ]
        more = len(path) - LISTED_STEPS
        return [*lines, f"and {more} more steps"] if more > 0 else lines

    def _path_shares(self) -> list[str]:
        spent: dict[tuple[str, str], list[float]] = {}
        for one in self.critical_path:
            key = one.step.name, one.step.device
            spent.setdefault(key, []).append(one.ended_s - one.started_s)
        rows = sorted(spent.items(), key=lambda row: -sum(row[1]))
        whole = self.makespan_s or 1.0
        lines = [f"{'critical path':40} {'device':12} {'times':>9} {'share':>9}"]
        for (name, device), seconds in rows[:LISTED_STEPS]:
            share = sum(seconds) / whole
            lines.append(f"{name[:40]:40} {device:12} {len(seconds):9} {share:9.0%}")
        more = len(rows) - LISTED_STEPS
        return [*lines, f"and {more} more steps"] if more > 0 else lines


def _format_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


Cause = Literal["admission", "input", "lane", "memory", "order"]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """A step on the path that decides the makespan."""

    item: int
    """For a step of a batch, the item that completed it with its rows."""
    step: Step
    started_s: float
    ended_s: float
    rows_of: str | None
    """The queue of the batch that the step is part of, if any."""
    cause: Cause
    """The last condition before the start: the ``"admission"`` of the item, an ``"input"``, the
    device's ``"lane"``, ``"memory"`` held by another item, or the ``"order"`` of items."""


def find_critical_path(
    timeline: Timeline,
    workload: Workload,
    steps: Sequence[Sequence[Step]],
    of_rows: Mapping[str, Sequence[Sequence[Step]]],
) -> tuple[CriticalStep, ...]:
    """Return the steps of `workload` that delayed the end of `timeline`, first to last.

    `steps` are given per variant, those of batches (`of_rows`) by queue.
    """
    path: list[CriticalStep] = []
    last = max(range(timeline.items), key=timeline.landed.__getitem__)
    entry = timeline.finished_by[last]
    while entry != NEVER:
        owner, step = timeline.place(entry)
        before = timeline.bound[entry]
        cause = _find_cause(entry, before, timeline, workload)
        times = timeline.started[entry] / 1e9, timeline.ended[entry] / 1e9
        known, item, queue = steps, owner, None
        if owner >= timeline.items:
            queue, item = (
                timeline.batches[owner - timeline.items].queue,
                _find_item(owner, timeline),
            )
            known = of_rows[queue]
        path.append(CriticalStep(item, known[timeline.variant[owner]][step], *times, queue, cause))
        entry = _find_bound(entry, timeline)
    return tuple(reversed(path))


def _find_item(owner: int, timeline: Timeline) -> int:
    while owner >= timeline.items:
        owner, _ = timeline.place(timeline.admitted_by[owner])
    return owner


def _find_bound(entry: int, timeline: Timeline) -> int:
    before = timeline.bound[entry]
    return before if before != NEVER else timeline.admitted_by[timeline.place(entry)[0]]


def _find_cause(entry: int, before: int, timeline: Timeline, workload: Workload) -> Cause:
    if before == NEVER:
        return "admission"
    (owner, step), (other, earlier) = timeline.place(entry), timeline.place(before)
    if owner == other and (owner >= timeline.items or earlier in workload.waits[step]):
        return "input"
    ordered = workload.ordered
    if not {*ordered.claims.get(step, ())}.isdisjoint(ordered.releases.get(earlier, ())):
        return "order"
    return "lane" if timeline.lane[entry] == timeline.lane[before] else "memory"


def compute_slack_s(timeline: Timeline, workload: Workload) -> tuple[float, ...]:
    """Return by how many seconds each step could end later without delaying the last landing.

    It is the minimum over all items of `timeline`, a run of `workload`. Order, durations and the
    gap between the end of a step and the start of one that waited for it last stay as they are, so
    steps on the critical path have no slack; neither do steps that delay a batch of rows.
    """
    n, end = timeline.n_steps, max(timeline.landed[: timeline.items])
    of_items = n * timeline.items
    slack = [end] * of_items + [0] * (len(timeline.started) - of_items)
    before = _collect_causes(timeline, workload)
    # Steps without duration start together with their followers and must come first.
    order = sorted(TopologicalSorter(before).static_order(), key=timeline.started.__getitem__)
    after = _collect_followers(before, order, timeline, workload)
    for entry in reversed(order):
        if entry >= of_items:
            continue
        item = entry // n
        spare = end - timeline.landed[item]
        if entry != timeline.finished_by[item]:
            spare += timeline.ended[timeline.finished_by[item]] - timeline.ended[entry]
        for follower in after[entry]:
            gap = 0
            if entry != _find_bound(follower, timeline):
                lag = _measure_lag(timeline, workload, entry, follower)
                gap = max(timeline.started[follower] - timeline.ended[entry] - lag, 0)
            spare = min(spare, gap + slack[follower])
        slack[entry] = spare
    return tuple(min(slack[step:of_items:n]) / 1e9 for step in range(n))


def _collect_causes(timeline: Timeline, workload: Workload) -> dict[int, set[int]]:
    before: dict[int, set[int]] = {}
    for entry in range(len(timeline.started)):
        owner, step = timeline.place(entry)
        waits = workload.waits[step] if owner < timeline.items else ()
        inputs = (owner * timeline.n_steps + wait for wait in waits)
        before[entry] = {*inputs, _find_bound(entry, timeline)} - {NEVER}
    return before


def _collect_followers(
    before: Mapping[int, Set[int]], order: Sequence[int], timeline: Timeline, workload: Workload
) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in order]
    latest: dict[int, int] = {}
    for entry in order:
        lane = timeline.lane[entry]
        for earlier in before[entry] | {latest.get(lane, NEVER)} - {NEVER}:
            after[earlier].append(entry)
        if not workload.lanes[lane].awaits:
            latest[lane] = entry
    return after


def _measure_lag(timeline: Timeline, workload: Workload, entry: int, follower: int) -> int:
    """Return the least ns between the end of `entry` and the start of `follower` in `timeline`."""
    lane, other = (workload.lanes[timeline.lane[one]] for one in (entry, follower))
    if lane is other:
        return to_ns(lane.gap_s)
    woken = other.woken_by_s(lane.device)
    owner, step = timeline.place(follower)
    if owner < timeline.items and step in workload.inline:
        woken = min(woken, other.here_s)
    return to_ns(lane.report_s) + to_ns(woken)
