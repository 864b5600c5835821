"""The head of the page: facts of the plan, the prediction and the profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ....graph.core.printing import format_bytes, format_count, format_seconds, rate_text
from ...plans.placement import Transfer
from ...plans.plan import Plan
from ...profile import Profile
from ...profile.attribution import attribute_times, sum_attributions
from ...profile.limit import describe_limit
from ...profile.table import MEANINGS
from ...simulation.simulation import Simulation
from .columns import round_digits
from .timelines import select_records

LATENCIES = 5_000
"""The last items, of which latencies are shown."""

CLOSE = 1.15
"""Ratio up to which a prediction counts as right."""

Fact = tuple[str, str]


def list_prediction_facts(simulation: Simulation) -> list[Fact]:
    items = format_count(simulation.items, "item")
    if simulation.items == 1:
        return [("predicted", f"{format_seconds(simulation.makespan_s)} for one item")]
    rate = f"{simulation.items_per_s:.4g} items/s"
    return [("predicted stream", f"{rate}, {items}, {simulation.max_in_flight} in flight")]


def compare_prediction(
    plan: Plan, profile: Profile, simulations: Sequence[Simulation]
) -> str | None:
    """Compare `simulations` of `plan` with times of `profile` in a sentence; None without records.

    The rate of a stream is compared if items overlapped, otherwise the time of one item.
    """
    alone = next((one for one in simulations if one.items == 1), None)
    stream = next((one for one in simulations if one.items > 1), None)
    if not profile.records:
        return None
    if stream is not None and _has_overlap(profile):
        predicted = f"Predicted {rate_text(stream.items_per_s)}"
        measured = f"measured {rate_text(profile.items_per_s)}"
        ratio = _format_ratio(profile.items_per_s, stream.items_per_s)
    elif alone is not None:
        predicted = f"Predicted {format_seconds(alone.makespan_s)} for an item"
        measured = f"measured {format_seconds(profile.latency_s(0.5))}"
        ratio = _format_ratio(alone.makespan_s, profile.latency_s(0.5))
    else:
        return None
    return f"{predicted}, {measured}{ratio}: {_explain_basis(plan)}."


def _has_overlap(profile: Profile) -> bool:
    ends = sorted((record.admitted_ns, record.landed_ns) for record in profile.records)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ends))


def _format_ratio(faster: float, slower: float) -> str:
    if not faster or not slower or 1 / CLOSE < faster / slower < CLOSE:
        return ""
    factor = faster / slower
    return f", {factor:.2g} times as fast" if factor > 1 else f", {1 / factor:.2g} times as slow"


def _explain_basis(plan: Plan) -> str:
    guesses = [name for name in plan.device_names if plan.costs.is_guess(name)]
    if guesses:
        return (
            f"figures of {', '.join(guesses)} are built in; plait profile --costs FILE, or "
            "plait devices --measure FILE, takes those of this machine"
        )
    if not plan.costs.nodes:
        return "figures are the devices', nodes by a model; plait profile --costs FILE times nodes"
    return "figures were measured"


def summarize_decision(plan: Plan) -> dict[str, Any] | None:
    decided = plan.decision
    if decided is None:
        return None
    return {
        "text": f"Strategy {decided.strategy}, for {decided.objective}: {decided.chosen}.",
        "why": decided.why,
        "candidates": [
            {
                "name": one.name,
                "us": round_digits(one.seconds * 1e6),
                "subgraphs": one.subgraphs,
                "devices": list(one.devices),
                "note": one.note,
                "chosen": one.name == decided.chosen,
            }
            for one in decided.candidates
        ],
    }


def summarize_profile(profile: Profile) -> dict[str, Any]:
    active_s = profile.active_s
    latencies = [(record.landed_ns - record.admitted_ns) / 1e3 for record in profile.records]
    return {
        "limit": describe_limit(profile),
        "facts": list(_yield_profile_facts(profile)),
        "busy": [
            [name, round_digits(s / active_s if active_s else 0.0)]
            for name, s in profile.busy_s.items()
        ],
        "latency_us": [round_digits(latency) for latency in latencies[-LATENCIES:]],
        "spent": list(_list_spent_time(profile)),
        "steps": profile.steps(),
    }


def _list_spent_time(profile: Profile) -> Iterator[list[Any]]:
    whole = sum_attributions(attribute_times(select_records(profile), profile.batches))
    for kind, ns in whole.spent_ns.items():
        mean_us = ns / whole.items / 1e3 if whole.items else 0.0
        name = kind.replace("_", " ")
        yield [name, round_digits(mean_us), round_digits(whole.shares[kind]), MEANINGS[kind]]


def iterate_plan_facts(plan: Plan) -> Iterator[Fact]:
    graph, specs = plan.graph, plan.fed.tensors
    yield "nodes", f"{len(graph.nodes):,}, in {format_count(len(plan.subgraphs), 'subgraph')}"
    yield "devices", ", ".join(plan.device_names)
    for kind, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield kind, ", ".join(f"{name} {specs[name]}" for name in names) or "none"
    for symbol, (low, high) in plan.bounds.items():
        yield f"bounds of {symbol}", f"{low:,} to {high:,}; figures are of the largest shapes"
    yield "in flight", format_count(plan.in_flight, "item")
    if plan.is_static:
        transfers = [step.work for step in plan.steps if isinstance(step.work, Transfer)]
        moved = sum(transfer.nbytes for transfer in transfers)
        yield (
            "transfers",
            f"{len(transfers):,}, {format_bytes(moved)} per item" if transfers else "none",
        )
    if plan.memory is not None:
        for name, pool in plan.memory.pools.items():
            bound = format_bytes(pool.lower_bound)
            yield f"memory: {name}", f"{format_bytes(pool.nbytes)}; no item needs less than {bound}"
    else:
        yield "memory", "planned when all shapes are known"


def _yield_profile_facts(profile: Profile) -> Iterator[Fact]:
    items = len(profile.records)
    failed = sum(record.failed for record in profile.records)
    known = (
        f"the last {items} of {items + profile.forgotten}" if profile.forgotten else f"{items:,}"
    )
    yield "measured items", f"{known}, {failed} failed" if failed else known
    if profile.dropped:
        yield "dropped items", f"{profile.dropped:,} of live sources"
    if profile.active_s:
        rate = f"{profile.items_per_s:.4g} items/s over {profile.active_s:.4g} s"
        yield "throughput", f"{rate} with items under way"
        median, late = (profile.latency_s(quantile) * 1e3 for quantile in (0.5, 0.99))
        yield "latency", f"{median:.4g} ms median, {late:.4g} ms p99"
    for name, one in profile.row_batches.items():
        waited_ms = one.waited_s / max(one.rows, 1) * 1e3
        yield (
            f"rows of {name}",
            f"{one.rows:,} in {one.batches:,} batches; one waited {waited_ms:.4g} ms in the mean"
            + (f"; {one.dropped:,} more were dropped" if one.dropped else ""),
        )
    yield "overlap", f"two devices or more at work {profile.overlap:.0%} of the busy time"
