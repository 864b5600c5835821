"""A profile as text: totals, attribution, critical path, steps, nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...graph.core.printing import format_count, format_seconds, rate_text
from ...graph.values.errors import Argument, Fix, Spelling, join_lines
from ..dispatch.hand_over import describe_hand_over
from .limit import describe_limit

if TYPE_CHECKING:
    from .profile import Profile

LISTED_NODES = 25
LISTED_ON_PATH = 10
LISTED_OF_STEP = 3

IDLE = 0.01
"""Share of idle time above which it is reported."""

SMALL = 0.001
"""Kinds of time below this share of an item's time share a line."""

FEWER_SHAPES = Fix(
    "bound the lengths, ", Argument("bounds", {"n": 64}), ", or feed few of them, padded"
)
"""Advice for streams of mostly new shapes."""

MEANINGS = {
    "source": "the source made it",
    "partners": "a join waited for others",
    "planning": "a plan for its shapes was made",
    "binding": "programs were bound to memory",
    "back_pressure": "waited for a slot, or memory",
    "feed": "inputs written",
    "compute": "kernels",
    "transfer": "copies between memories",
    "waiting": "async functions, or rows before their batch",
    "device_busy": "devices worked for other items",
    "scheduler": "wake-ups, hand-overs",
    "land": "results copied out",
    "order": "waited for items before it",
    "consumer": "the consumer had it, or did not ask",
}


def write_table(profile: Profile, spell: Spelling = str) -> str:
    """Format the figures of `profile` as tables; `spell` formats suggested arguments of `plan`."""
    parts = (
        _describe_totals(profile, spell),
        _tabulate_attribution(profile),
        _tabulate_critical_path(profile),
        _tabulate_steps(profile),
        _tabulate_nodes(profile),
    )
    return "\n\n".join(join_lines(lines) for lines in map(list, parts) if lines)


def summarize(profile: Profile) -> str:
    """Describe rate, latency and the largest costs of `profile` in one line."""
    said = [f"{format_count(len(profile.records), 'item')}, {rate_text(profile.items_per_s)}"]
    said.append(f"latency {format_seconds(profile.latency_s(0.5))} median")
    spent = profile.attribution()
    if spent.wall_ns:
        kind, ns = max(spent.spent_ns.items(), key=lambda pair: pair[1])
        name = kind.replace("_", " ")
        said.append(
            f"most of an item's time, {ns / spent.wall_ns:.0%}, is {name}: {MEANINGS[kind]}"
        )
    everything = sum(node.total_ns for node in profile.nodes)
    if everything:
        longest = max(profile.nodes, key=lambda node: node.total_ns)
        share = longest.total_ns / everything
        whose = "those that were timed" if any(_find_untimed_steps(profile)) else "all nodes"
        said.append(
            f"node {longest.name!r} ({longest.op} on {longest.device}) takes {share:.0%} of the "
            f"time of {whose}"
        )
    return join_lines(["; ".join(said)])


def _describe_totals(profile: Profile, spell: Spelling) -> Iterator[str]:
    figures = profile.totals()
    yield (
        f"{'the last ' if profile.forgotten else ''}{format_count(figures['items'], 'item')} in "
        "{active_s:.3f} s: {items_per_s:.1f} items/s, {failed} failed".format(**figures)
    )
    if limit := describe_limit(profile):
        yield limit
    if profile.dropped:
        yield f"dropped: {profile.dropped} more that live sources gave, for lack of room"
    if profile.wall_s - profile.active_s > IDLE * profile.wall_s:
        idle_s = profile.wall_s - profile.active_s
        yield f"in {idle_s:.3f} s between the first and the last, no item was under way"
    yield "latency p50 {p50:.2f} ms, p99 {p99:.2f} ms".format(**figures["latency_ms"])
    if profile.misses or profile.bound:
        yield (
            "plans: {hits} items found theirs, {bound} waited for programs to be bound, "
            "{misses} for a plan to be made".format(**figures["plans"])
        )
    if profile.mostly_misses:
        fix = FEWER_SHAPES.spelled(spell)
        yield f"most items waited for a plan to be made for their shapes; fix: {fix}"
    elif profile.mostly_bound:
        ms = profile.attribution().binding_ns / len(profile.records) / 1e6
        yield f"most items had new lengths, and were bound in {ms:.2f} ms; fix: feed few, padded"
    if profile.at_open:
        yield f"computed once, before the first item: {profile.at_open_s * 1e3:.2f} ms"
    for device, busy_s in figures["busy_s"].items():
        share = busy_s / profile.active_s if profile.active_s else 0.0
        yield f"{device}: busy {busy_s:.3f} s, {share:.0%} of the time"
    for name, one in figures["waits"].items():
        if name in profile.row_batches:
            continue
        at_once = one["seconds"] / profile.active_s if profile.active_s else 0.0
        yield (
            f"{name}: waited {one['seconds']:.3f} s in {one['calls']} calls, "
            f"{at_once:.1f} at a time"
        )
    for name, batches in profile.row_batches.items():
        yield (
            f"{name}: {batches.rows} rows in {batches.batches} batches, "
            f"{batches.rows / max(batches.batches, 1):.1f} in the mean; a row waited "
            f"{batches.waited_s / max(batches.rows, 1) * 1e3:.3f} ms for its batch"
            + (f"; {batches.dropped} more were dropped" if batches.dropped else "")
        )
    yield f"two devices or more at work: {figures['overlap']:.0%} of the busy time"
    if hand_over := describe_hand_over():
        yield hand_over


def _tabulate_attribution(profile: Profile) -> Iterator[str]:
    spent = profile.attribution()
    if not spent.wall_ns:
        return
    items = spent.items
    yield f"{'time of an item':16} {'mean ms':>9} {'share':>6}"
    small = []
    for kind, ns in spent.spent_ns.items():
        name = kind.replace("_", " ")
        if ns < SMALL * spent.wall_ns:
            small.append(name)
            continue
        yield f"{name:16} {ns / items / 1e6:9.3f} {ns / spent.wall_ns:6.1%}  {MEANINGS[kind]}"
    if small:
        yield f"less than {SMALL:.1%} each: {', '.join(small)}"
    yield f"{'total':16} {spent.wall_ns / items / 1e6:9.3f}"
    if spent.residual_ns:
        share = spent.residual_ns / spent.wall_ns
        yield f"{'unknown':16} {spent.residual_ns / items / 1e6:9.3f} {share:6.1%}"


def _tabulate_critical_path(profile: Profile) -> Iterator[str]:
    spent: dict[tuple[str, str], list[int]] = {}
    for one in profile.critical_path:
        spent.setdefault((one.step.name, one.step.device), []).append(one.ended_ns - one.started_ns)
    whole = profile.active_s * 1e9
    if not spent or not whole:
        return
    rows = sorted(spent.items(), key=lambda row: -sum(row[1]))
    yield f"{'critical path':32} {'device':12} {'times':>6} {'share':>9}"
    for (name, device), times in rows[:LISTED_ON_PATH]:
        yield f"{name[:32]:32} {device:12} {len(times):6} {sum(times) / whole:9.0%}"
    if len(rows) > LISTED_ON_PATH:
        yield f"and {len(rows) - LISTED_ON_PATH} more steps"


def _tabulate_steps(profile: Profile) -> Iterator[str]:
    yield f"{'step':32} {'device':12} {'runs':>6} {'median ms':>9} {'queued ms':>9}  nodes"
    for row in profile.steps():
        yield (
            f"{row['step'][:32]:32} {row['device']:12} {row['runs']:6} "
            f"{row['run_ms']:9.3f} {row['queued_ms']:9.3f}  {_list_names(row['nodes'])}"
        ).rstrip()


def _list_names(nodes: Sequence[str]) -> str:
    few = nodes if len(nodes) <= LISTED_OF_STEP else [nodes[0], "...", nodes[-1]]
    return ", ".join(name[:40] for name in few)


def _tabulate_nodes(profile: Profile) -> Iterator[str]:
    if not profile.nodes:
        return
    everything = sum(node.total_ns for node in profile.nodes) or 1
    yield f"{'node':40} {'op':20} {'device':12} {'mean ms':>9} {'min ms':>9} {'share':>6}"
    for node in profile.nodes[:LISTED_NODES]:
        yield (
            f"{node.name[:40]:40} {node.op[:20]:20} {node.device:12} "
            f"{node.total_ns / node.runs / 1e6:9.3f} {node.min_ns / 1e6:9.3f} "
            f"{node.total_ns / everything:6.1%}"
        )
    more = len(profile.nodes) - LISTED_NODES
    if more > 0:
        yield f"and {more} more nodes"
    for row in _find_untimed_steps(profile):
        yield f"{row['step']}: not timed by node, {row['device']} runs it in one piece"


def _find_untimed_steps(profile: Profile) -> Iterator[dict[str, Any]]:
    timed = {(node.name, node.device) for node in profile.nodes}
    for row in profile.steps():
        if not timed.issuperset((name, row["device"]) for name in row["nodes"]):
            yield row
