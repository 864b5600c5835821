"""Differences between two plans: nodes that moved, bytes, memory, predicted time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...graph.core.printing import format_bytes, format_count, format_seconds, list_some, rate_text
from ...graph.values.errors import join_lines
from ..errors import PlanError
from ..planner.simulate import predict
from ..plans.placement import Transfer
from ..plans.plan import Plan

LISTED_NODES = 6


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that moved to another device."""

    node: str
    source: str
    target: str
    reason: str
    """Reason for the target."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The figures of one plan."""

    graph: str
    devices: tuple[str, ...]
    strategy: str
    objective: str
    max_in_flight: int
    subgraphs: int
    transfers: int
    transferred_nbytes: int
    """Per item."""
    memory: Mapping[str, int]
    """Bytes of each memory, for all items in flight; with replicas, on one variant."""
    predicted_s: float | None
    """Predicted time of one item; None where shapes are not known."""
    items_per_s: float | None
    """Rate of a stream with `max_in_flight` items in flight."""


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences between two plans.

    Attributes
    ----------
    before, after : PlanSummary
    moved : tuple of Moved
    removed, added : tuple of str
        The nodes that only one of the plans has.
    copied : Mapping of (str, str) to (int, int)
        Bytes per item from one memory to another, before and after, if they differ.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> graph = b.build()
    >>> found = pl.diff(pl.plan(graph, ["cpu"]), pl.plan(graph, ["worker:0"]))
    >>> [(one.node, one.source, one.target) for one in found.moved]
    [('relu', 'cpu', 'worker:0')]
    """

    before: PlanSummary
    after: PlanSummary
    moved: tuple[Moved, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    copied: Mapping[tuple[str, str], tuple[int, int]]

    @property
    def is_empty(self) -> bool:
        """True if both plans make the same decisions."""
        same = not (self.moved or self.removed or self.added or self.copied)
        return same and self.before == self.after

    @property
    def predicted_change(self) -> float | None:
        """The relative change of the predicted time of an item: -0.25 for a quarter less."""
        old, new = self.before.predicted_s, self.after.predicted_s
        return new / old - 1 if old and new is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "format": "plait plan diff",
            "version": 1,
            "before": _to_dict(self.before),
            "after": _to_dict(self.after),
            "predicted_change": self.predicted_change,
            "moved": [asdict(one) for one in self.moved],
            "removed": list(self.removed),
            "added": list(self.added),
            "copied": [
                {"source": source, "target": target, "before": old, "after": new}
                for (source, target), (old, new) in self.copied.items()
            ],
        }

    def __str__(self) -> str:
        return join_lines(_list_differences(self))


def diff(before: Plan, after: Plan) -> PlanDiff:
    """Return the differences between the plans `before` and `after`.

    Both are predicted with the costs of `after`, because times from different costs could not be
    compared.

    Raises
    ------
    PlanError
        If one of them is not a plan.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> plan = pl.plan(b.build())
    >>> pl.diff(plan, plan).is_empty
    True
    """
    for one in (before, after):
        if not isinstance(one, Plan):
            raise PlanError(
                f"expected a plan, got {type(one).__name__}",
                fix="compare what plan() or load_plan() made",
            )
    old, new = before.assignment, after.assignment
    moved = [
        Moved(name, old[name], device, after.reasons[name])
        for name, device in new.items()
        if name in old and old[name] != device
    ]
    sums = _sum_copied(before), _sum_copied(after)
    pairs = {pair: tuple(one.get(pair, 0) for one in sums) for pair in {**sums[0], **sums[1]}}
    return PlanDiff(
        _summarize(before, after),
        _summarize(after, after),
        tuple(moved),
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name not in old),
        {pair: (both[0], both[1]) for pair, both in pairs.items() if both[0] != both[1]},
    )


def _summarize(plan: Plan, judge: Plan) -> PlanSummary:
    # Both use the costs of one plan, or the difference could be that of the costs.
    copied, prediction = _sum_copied(plan), predict(plan, judge.costs)
    return PlanSummary(
        plan.graph.name,
        plan.device_names,
        plan.strategy,
        plan.request.objective,
        plan.in_flight,
        len(plan.subgraphs),
        sum(isinstance(step.work, Transfer) for step in plan.steps),
        sum(copied.values()),
        {} if plan.memory is None else {n: pool.nbytes for n, pool in plan.memory.pools.items()},
        None if prediction is None else prediction.seconds,
        None if prediction is None else prediction.items_per_s,
    )


def _sum_copied(plan: Plan) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            pair = step.work.source, step.work.target
            sums[pair] = sums.get(pair, 0) + step.work.nbytes
    return sums


def _to_dict(summary: PlanSummary) -> dict[str, Any]:
    return {**asdict(summary), "devices": list(summary.devices), "memory": dict(summary.memory)}


def _list_differences(found: PlanDiff) -> Iterator[str]:
    before, after = found.before, found.after
    yield f"from a plan for {before.graph!r} on {', '.join(before.devices)}"
    yield f"to a plan for   {after.graph!r} on {', '.join(after.devices)}"
    if found.is_empty:
        yield "they decide the same"
        return
    yield from _compare_figures(found)
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found.moved:
        groups.setdefault((one.source, one.target), []).append(one.node)
    if groups:
        yield f"moved: {format_count(len(found.moved), 'node')}"
        for (source, target), names in groups.items():
            yield f"  {source} to {target}: {list_some(names, LISTED_NODES)}"
    for what, names in (("removed", list(found.removed)), ("added", list(found.added))):
        if names:
            yield f"{what}: {format_count(len(names), 'node')}: {list_some(names, LISTED_NODES)}"
    if found.copied:
        yield "bytes per item"
    for (source, target), (old, new) in found.copied.items():
        yield f"  {source} to {target}: {format_bytes(old)}, now {format_bytes(new)}"


def _compare_figures(found: PlanDiff) -> Iterator[str]:
    before, after = found.before, found.after
    rows = [
        ("strategy", before.strategy, after.strategy),
        ("objective", before.objective, after.objective),
        ("in flight", str(before.max_in_flight), str(after.max_in_flight)),
        ("one item", format_seconds(before.predicted_s), format_seconds(after.predicted_s)),
        ("a stream", _format_rate(before), _format_rate(after)),
        ("subgraphs", str(before.subgraphs), str(after.subgraphs)),
        ("transfers", str(before.transfers), str(after.transfers)),
        ("copied", format_bytes(before.transferred_nbytes), format_bytes(after.transferred_nbytes)),
    ]
    for name in {**before.memory, **after.memory}:
        old, new = (format_bytes(one.memory.get(name, 0)) for one in (before, after))
        rows.append((f"memory {name}", old, new))
    changes = {
        "one item": _format_change(before.predicted_s, after.predicted_s),
        "a stream": _format_change(before.items_per_s, after.items_per_s),
    }
    width = max(len(name) for name, _, _ in rows)
    yield f"{'':{width}} {'before':>14} {'after':>14}"
    for name, old, new in rows:
        # Equal rows are left out, except the most important one.
        if old != new or name == "one item":
            yield f"{name:{width}} {old:>14} {new:>14}{changes.get(name, '')}"


def _format_rate(summary: PlanSummary) -> str:
    return "-" if summary.items_per_s is None else rate_text(summary.items_per_s)


def _format_change(old: float | None, new: float | None) -> str:
    if not old or new is None:
        return ""
    # A large percentage is harder to read than a factor.
    return f"  {new / old - 1:+.1%}" if new < 10 * old else f"  {new / old:.3g} times"
