"""Sections of the report: decision, reasons, nodes, memory, passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter

from ...graph.core.printing import format_bytes, format_count, format_seconds, list_some
from ...graph.passes.pipeline import Applied
from ...graph.values.errors import join_lines
from ..planner.memory.prepared import AT_OPEN, name_next_region, name_region
from ..plans.partition import Decision, Option
from ..plans.plan import Plan
from ..plans.regions import ADMISSION, MemoryPlan, Pool, Region

LISTED_CANDIDATES = 8
LISTED_REASONS = 40
WIDEST = 60
"""Width of a column at most: a longer name shifts its own line only."""


def may_choose_again(plan: Plan) -> bool:
    """Return whether nodes of `plan` may get other devices once shapes are known."""
    if plan.is_static or plan.request.strategy != "auto" or plan.decision is None:
        return False
    return any(
        sum(option.supported for option in options) > 1
        and not plan.reasons.get(name, "").startswith("pinned")
        for name, options in plan.decision.options.items()
    )


def describe_decision(decision: Decision) -> Iterator[str]:
    chosen = "" if decision.chosen == decision.strategy else f": {decision.chosen}"
    yield f"strategy {decision.strategy}, for {decision.objective}{chosen}"
    yield f"  {decision.why}"
    if not decision.candidates:
        return
    listed = decision.candidates[:LISTED_CANDIDATES]
    predicted = "per item" if decision.objective == "throughput" else "predicted"
    width = max(len(one.name) for one in listed)
    places = [", ".join(one.devices) for one in listed]
    across = max(map(len, places))
    yield f"  {'candidate':{width}}  {predicted:>9}  {'subgraphs':>9}  on"
    for one, place in zip(listed, places, strict=True):
        line = (
            f"  {one.name:{width}}  {format_seconds(one.seconds):>9}  {one.subgraphs:9}  "
            f"{place:{across}}  {one.note}"
        )
        yield line.rstrip()
    if len(decision.candidates) > LISTED_CANDIDATES:
        yield f"  and {len(decision.candidates) - LISTED_CANDIDATES} more candidates"


def list_reasons(plan: Plan) -> Iterator[str]:
    yield "why" if len(plan.assignment) == len(plan.graph.nodes) else "why, nested graphs included"
    grouped: dict[tuple[str, str, frozenset[str]], list[str]] = {}
    for name, device in plan.assignment.items():
        able = frozenset(_get_offers(plan, name))  # only nodes with the same choice are summed up
        grouped.setdefault((device, _classify_reason(plan, name), able), []).append(name)
    for (device, kind, _), names in list(grouped.items())[:LISTED_REASONS]:
        what = names[0] if len(names) == 1 else f"{len(names)} nodes"
        reason = plan.reasons[names[0]] if len(names) == 1 else kind + _sum_seconds(plan, names)
        yield f"  {device}: {what}: {reason}"
    if len(grouped) > LISTED_REASONS:
        yield f"  and {len(grouped) - LISTED_REASONS} more reasons: report(nodes=True) lists all"


def _classify_reason(plan: Plan, name: str) -> str:
    offers = _get_offers(plan, name)
    if not offers:
        return plan.reasons[name]
    here = offers[plan.assignment[name]]
    return (
        "with their neighbours: " if min(offers.values()) < here else "no slower than elsewhere: "
    )


def _sum_seconds(plan: Plan, names: Sequence[str]) -> str:
    totals: dict[str, float] = {}
    device = plan.assignment[names[0]]
    for name in names:
        for other, seconds in _get_offers(plan, name).items():
            totals[other] = totals.get(other, 0.0) + seconds
    if not totals:
        return ""
    here = [f"{format_seconds(totals.pop(device))} here"]
    return ", ".join(here + [f"{format_seconds(s)} on {other}" for other, s in totals.items()])


def _get_offers(plan: Plan, name: str) -> dict[str, float]:
    options = plan.decision.options.get(name, ()) if plan.decision is not None else ()
    seconds = {one.device: one.seconds for one in options if one.seconds is not None}
    had_choice = plan.assignment[name] in seconds and len(seconds) > 1
    return seconds if had_choice and not plan.reasons[name].startswith("pinned") else {}


def list_nodes(plan: Plan) -> Iterator[str]:
    """Tabulate the nodes of `plan`: device, predicted times, reason."""
    options = plan.decision.options if plan.decision is not None else {}
    offers = {name: {one.device: one for one in options.get(name, ())} for name in plan.assignment}
    known = [one for row in offers.values() for one in row.values() if one.seconds is not None]
    # The most frequent basis is named once, in the title.
    usual = max(Counter(one.basis for one in known).items(), key=itemgetter(1), default=(None,))[0]
    told = f"; predicted times are {_BASES[usual]} where nothing else is said" if usual else ""
    yield f"nodes{told}"
    devices = [name for name in plan.devices if any(one.device == name for one in known)]
    rows = [["node", "device", *(f"on {name}" for name in devices)]]
    for name, device in plan.assignment.items():
        rows.append(
            [name, device, *(_format_cost(offers[name].get(one), usual) for one in devices)]
        )
    whys = ["why", *(_explain_placement(plan, name, offers[name]) for name in plan.assignment)]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*rows, strict=True)]
    for row, why in zip(rows, whys, strict=True):
        texts = [f"{text:<{width}}" for text, width in zip(row[:2], widths, strict=False)]
        texts += [f"{text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True)]
        yield "  " + "  ".join([*texts, why]).rstrip()


_BASES = {"measured": "measured", "scaled": "scaled from other shapes", "model": "by model"}


def _format_cost(option: Option | None, usual: str | None) -> str:
    if option is None or option.seconds is None:
        return "-"
    basis = "" if option.basis in (usual, None) else f" ({option.basis})"
    return format_seconds(option.seconds) + basis


def _explain_placement(plan: Plan, name: str, offers: Mapping[str, Option]) -> str:
    reason = plan.reasons[name]
    shown = [] if _is_restated(reason, offers.get(plan.assignment[name])) else [reason]
    lacking = (one for one in offers.values() if not one.supported and one.reason not in reason)
    return "; ".join([*shown, *(f"{one.device}: {one.reason}" for one in lacking)])


def _is_restated(reason: str, option: Option | None) -> bool:
    if option is None or option.seconds is None or any(mark in reason for mark in ";("):
        return False
    return reason.startswith(f"{format_seconds(option.seconds)} here")


LISTED_REGIONS = 12
LISTED_EDGES = 8
LISTED_STEPS = 3


def describe_memory(plan: Plan, memory: MemoryPlan) -> Iterator[str]:
    """Tabulate `memory` of `plan`: regions, limits, and the waits added for limits."""
    columns = ("total", "one item", "bound", "unshared", "constants")
    width = max((len(name) for name in memory.pools), default=6)
    yield f"{'memory':{width}} " + " ".join(f"{column:>11}" for column in columns) + "  layout"
    for name, pool in memory.pools.items():
        sizes = (
            pool.nbytes,
            pool.item_nbytes,
            pool.lower_bound,
            pool.tensors_nbytes,
            pool.constants_nbytes,
        )
        texts = (f"{format_bytes(nbytes):>11}" for nbytes in sizes)
        yield f"{name:{width}} {' '.join(texts)}  {pool.layout}"
        yield from _list_regions(plan, pool)
    for name, nbytes in (plan.request.memory_limits or {}).items():
        yield f"limit of {name}: {format_bytes(nbytes)}"
    yield from _list_added_waits(plan, memory)


def _list_regions(plan: Plan, pool: Pool) -> Iterator[str]:
    regions = [region for region in pool.regions.values() if region.nbytes]
    if len(regions) < 2 and pool.slots == 1:
        return  # the pool's line says it all
    for region in regions[:LISTED_REGIONS]:
        copies = f"{region.copies} copies of " if region.copies > 1 else ""
        size = copies + format_bytes(region.nbytes)
        yield f"  {region.name}: {size}, {_describe_holding(plan, region)}"
    if len(regions) > LISTED_REGIONS:
        yield f"  and {len(regions) - LISTED_REGIONS} more regions"


def _describe_holding(plan: Plan, region: Region) -> str:
    if region.name == AT_OPEN:
        return "computed when the plan is opened, the same for all items"
    variables = [node.name for node in plan.graph.variables.values()]
    if region.name in map(name_region, variables):
        return "kept by the session from item to item"
    if region.name in map(name_next_region, variables):
        return "changes places with it when an item has ended well"
    if not region.claims:
        return "shared by items: its device runs one step at a time"
    return f"held from {_list_points(plan, region.claims)} to {_list_points(plan, region.releases)}"


def _list_points(plan: Plan, points: tuple[int, ...]) -> str:
    ends = {ADMISSION: "admission", len(plan.steps): "landing"}
    named = [ends.get(point) or plan.steps[point].name for point in points]
    return list_some(named, LISTED_STEPS)


def _list_added_waits(plan: Plan, memory: MemoryPlan) -> Iterator[str]:
    if not memory.added_edges:
        return
    yield (
        f"{format_count(len(memory.added_edges), 'wait')} added to keep the limits: "
        f"{memory.slowdown - 1:.1%} slower, as predicted"
    )
    for earlier, later in memory.added_edges[:LISTED_EDGES]:
        yield f"  {plan.steps[later].name} waits for {plan.steps[earlier].name}"
    if len(memory.added_edges) > LISTED_EDGES:
        yield f"  and {len(memory.added_edges) - LISTED_EDGES} more"


LISTED_NAMES = 200
LISTED_DEAD = 20


def list_passes(applied: Sequence[Applied]) -> Iterator[str]:
    # From the first pass to the last of each nested graph.
    first = {one.inside: one.before for one in reversed(applied)}
    last = {one.inside: one.after for one in applied}
    before, after = sum(first.values()), sum(last.values())
    seconds = format_seconds(sum(one.seconds for one in applied))
    yield f"passes: {before:,} -> {after:,} nodes in {seconds}"
    width = max(len(_name_pass(one)) for one in applied)
    for one in applied:
        sizes = f"{one.before:5,} -> {one.after:5,}"
        yield f"  {_name_pass(one):{width}}  {sizes}  {_count_changes(one)}"


def list_dead_nodes(dead: Mapping[str, str]) -> Iterator[str]:
    if not dead:
        return
    yield f"dead: {format_count(len(dead), 'node')} that no output needs, dropped"
    for name, why in islice(dead.items(), LISTED_DEAD):
        yield f"  {name}: {why}"
    if len(dead) > LISTED_DEAD:
        yield f"  and {format_count(len(dead) - LISTED_DEAD, 'node')} more"


def list_pass_changes(applied: Sequence[Applied], dead: Mapping[str, str]) -> str:
    if not applied:
        return "\n".join(["passes: none of them found anything to do", *list_dead_nodes(dead)])
    lines = [*list_passes(applied), *list_dead_nodes(dead)]
    for one in applied:
        lines += ["", f"{_name_pass(one)}, {format_seconds(one.seconds)}"]
        for what in ("rewritten", "added", "removed"):
            names = getattr(one, what)
            lines += [f"  {what:9}  {name}" for name in names[:LISTED_NAMES]]
            if len(names) > LISTED_NAMES:
                lines.append(f"  and {format_count(len(names) - LISTED_NAMES, 'node')} more")
    return join_lines(lines)


def _name_pass(one: Applied) -> str:
    return f"{one.name} in {one.inside}" if one.inside else one.name


def _count_changes(one: Applied) -> str:
    counts = ("rewritten", one.rewritten), ("added", one.added), ("removed", one.removed)
    listed = ", ".join(f"{len(names):,} {what}" for what, names in counts if names)
    return listed or "constants alone"
