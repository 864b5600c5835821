"""Texts about the device of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from ...graph.printing import seconds_text
from ..plans.decision import Decision, Option
from ..plans.plan import Plan

LISTED_CANDIDATES = 8
LISTED_REASONS = 40
WIDEST = 60
"""Longer names push the rest of their line aside, not that of all."""


def chooses_again(plan: Plan) -> bool:
    """True where nodes may get other devices once their shapes are known."""
    if plan.is_static or plan.request.strategy != "auto" or plan.decision is None:
        return False
    return any(
        sum(option.supported for option in options) > 1
        and not plan.reasons.get(name, "").startswith("pinned")
        for name, options in plan.decision.options.items()
    )


def decision_lines(decision: Decision) -> Iterator[str]:
    """Yield what was weighed, and why it came out so."""
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
            f"  {one.name:{width}}  {seconds_text(one.seconds):>9}  {one.subgraphs:9}  "
            f"{place:{across}}  {one.note}"
        )
        yield line.rstrip()
    if len(decision.candidates) > LISTED_CANDIDATES:
        yield f"  and {len(decision.candidates) - LISTED_CANDIDATES} more candidates"


def reason_lines(plan: Plan) -> Iterator[str]:
    """Yield the reasons, each with how many nodes it holds for and what they take in all."""
    yield "why" if len(plan.assignment) == len(plan.graph.nodes) else "why, nested graphs included"
    grouped: dict[tuple[str, str, frozenset[str]], list[str]] = {}
    for name, device in plan.assignment.items():
        able = frozenset(_weighed(plan, name))  # what cannot run elsewhere is not compared with it
        grouped.setdefault((device, _kind(plan, name), able), []).append(name)
    for (device, kind, _), names in list(grouped.items())[:LISTED_REASONS]:
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
    """Yield every node: its device, what it costs there and elsewhere, and why it is there."""
    options = plan.decision.options if plan.decision is not None else {}
    offers = {name: {one.device: one for one in options.get(name, ())} for name in plan.assignment}
    known = [one for row in offers.values() for one in row.values() if one.seconds is not None]
    usual = max(Counter(one.basis for one in known).items(), key=itemgetter(1), default=(None,))[0]
    told = f"; predicted times are {_BASES[usual]} where nothing else is said" if usual else ""
    yield f"nodes{told}"
    devices = [name for name in plan.devices if any(one.device == name for one in known)]
    rows = [["node", "device", *(f"on {name}" for name in devices)]]
    for name, device in plan.assignment.items():
        rows.append([name, device, *(_cost(offers[name].get(one), usual) for one in devices)])
    whys = ["why", *(_why(plan, name, offers[name]) for name in plan.assignment)]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*rows, strict=True)]
    for row, why in zip(rows, whys, strict=True):
        texts = [f"{text:<{width}}" for text, width in zip(row[:2], widths, strict=False)]
        texts += [f"{text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True)]
        yield "  " + "  ".join([*texts, why]).rstrip()


_BASES = {"measured": "measured", "scaled": "scaled from other shapes", "model": "by model"}


def _cost(option: Option | None, usual: str | None) -> str:
    if option is None or option.seconds is None:
        return "-"
    basis = "" if option.basis in (usual, None) else f" ({option.basis})"
    return seconds_text(option.seconds) + basis


def _why(plan: Plan, name: str, offers: Mapping[str, Option]) -> str:
    """Return a node's reason, unless the times say it, and what others lack that it leaves out."""
    reason = plan.reasons[name]
    shown = [] if _restates(reason, offers.get(plan.assignment[name])) else [reason]
    lacking = (one for one in offers.values() if not one.supported and one.reason not in reason)
    return "; ".join([*shown, *(f"{one.device}: {one.reason}" for one in lacking)])


def _restates(reason: str, option: Option | None) -> bool:
    """True when a reason consists of times that stand beside it."""
    if option is None or option.seconds is None or any(mark in reason for mark in ";("):
        return False
    return reason.startswith(f"{seconds_text(option.seconds)} here")
