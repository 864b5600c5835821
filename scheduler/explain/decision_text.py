"""Why nodes are where they are, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph.printing import seconds_text
from ..partition.decision import Decision, Option
from ..planning import Plan

LISTED_CANDIDATES = 8
LISTED_REASONS = 40


def decision_lines(decision: Decision) -> Iterator[str]:
    """Yield what was weighed, and why it came out so."""
    chosen = "" if decision.chosen == decision.strategy else f": {decision.chosen}"
    yield f"strategy {decision.strategy}, for {decision.objective}{chosen}"
    yield f"  {decision.why}"
    if not decision.candidates:
        return
    listed = decision.candidates[:LISTED_CANDIDATES]
    width = max(len(one.name) for one in listed)
    yield f"  {'candidate':{width}}  {'predicted':>9}  {'subgraphs':>9}  on"
    for one in listed:
        note = f": {one.note}" if one.note else ""
        yield (
            f"  {one.name:{width}}  {seconds_text(one.seconds):>9}  {one.subgraphs:9}  "
            f"{', '.join(one.devices)}{note}"
        )
    if len(decision.candidates) > LISTED_CANDIDATES:
        yield f"  and {len(decision.candidates) - LISTED_CANDIDATES} more candidates"


def reason_lines(plan: Plan) -> Iterator[str]:
    """Yield the reasons, each with how many nodes it holds for and what they take in all."""
    yield "why"
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, device in plan.assignment.items():
        grouped.setdefault((device, _kind(plan, name)), []).append(name)
    for (device, kind), names in list(grouped.items())[:LISTED_REASONS]:
        what = names[0] if len(names) == 1 else f"{len(names)} nodes"
        reason = plan.reasons[names[0]] if len(names) == 1 else kind + _in_all(plan, names)
        yield f"  {device}: {what}: {reason}"
    if len(grouped) > LISTED_REASONS:
        yield f"  and {len(grouped) - LISTED_REASONS} more reasons: report(nodes=True) lists all"


def _kind(plan: Plan, name: str) -> str:
    """Return a node's reason without its own figures."""
    offers = _weighed(plan, name)
    if not offers:
        return plan.reasons[name]
    here = offers[plan.assignment[name]]
    return (
        "with their neighbours: " if min(offers.values()) < here else "no slower than elsewhere: "
    )


def _in_all(plan: Plan, names: Sequence[str]) -> str:
    """Return what nodes take in all, on each of the devices that they could be on."""
    totals: dict[str, float] = {}
    device = plan.assignment[names[0]]
    for name in names:
        for other, seconds in _weighed(plan, name).items():
            totals[other] = totals.get(other, 0.0) + seconds
    if not totals:
        return ""
    here = [f"{seconds_text(totals.pop(device))} here"]
    return ", ".join(here + [f"{seconds_text(s)} on {other}" for other, s in totals.items()])


def _weighed(plan: Plan, name: str) -> dict[str, float]:
    """Return a node's seconds by device; nothing where it had no choice."""
    options = plan.decision.options.get(name, ()) if plan.decision is not None else ()
    seconds = {one.device: one.seconds for one in options if one.seconds is not None}
    had_choice = plan.assignment[name] in seconds and len(seconds) > 1
    return seconds if had_choice and not plan.reasons[name].startswith("pinned") else {}


def node_lines(plan: Plan) -> Iterator[str]:
    """Yield every node: its device, what it costs there, why, and what the others offer."""
    yield "nodes"
    options = plan.decision.options if plan.decision is not None else {}
    width = max((len(name) for name in plan.assignment), default=0)
    for name, device in plan.assignment.items():
        by_device = {option.device: option for option in options.get(name, ())}
        own = by_device.pop(device, None)
        reason = plan.reasons[name]
        others = "; ".join(_offer(one) for one in by_device.values() if not _told(one, reason))
        yield (
            f"  {name:{width}}  {device:10}  {_cost(own):>18}  {reason}"
            + (f" [{others}]" if others else "")
        )


def _offer(option: Option) -> str:
    return f"{option.device}: {_cost(option) if option.supported else option.reason}"


def _cost(option: Option | None) -> str:
    if option is None or option.seconds is None:
        return "-"
    return seconds_text(option.seconds) + (f" ({option.basis})" if option.basis else "")


def _told(option: Option, reason: str) -> bool:
    """True when a node's reason says already why a device cannot run it."""
    return not option.supported and option.reason in reason
