"""Figures of a profile: times of nodes, subgraphs and copies.

Times are medians: one interrupted run in a hundred spoils a mean. If nodes are timed one by one,
their sum is the time of the subgraph, without the overhead of timing. Subgraphs may also be timed
by another profile of the same plan, without timed nodes; that time limits the sum of its nodes. If
a device runs a subgraph in one piece, its nodes share the time, as its profiler or the model says.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING

from ...devices.device import Device, Profiled
from ...devices.kinds import get_model
from ...devices.model import DeviceModel, name_family
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph
from ...graph.operators.fused import FUSED
from ..costs.costs import split_members
from ..costs.figures import Figures, Link, Measured, Timing
from ..costs.host import is_on_host
from ..costs.signature import Signature, make_digest, make_signature
from ..dispatch.core_shares import scale_to_one_core, share_cores
from ..errors import PlanError
from .overheads import measure_hops, measure_loop
from .profile import Profile

if TYPE_CHECKING:
    from ..plans.placement import Transfer
    from ..plans.plan import Plan
    from .records import NodeTime


def derive_figures(profile: Profile, plan: Plan, wholes: Profile | None = None) -> Figures:
    """Derive figures from the `profile` of a static `plan`; `wholes` has times of its subgraphs."""
    if not isinstance(profile, Profile):
        raise PlanError(
            f"the profile is a {type(profile).__name__}",
            fix="pass the profile first, then its plan: Costs.from_profile(profile, plan)",
        )
    if not plan.is_static:
        raise PlanError(
            "not all shapes of the plan are known, so what was measured cannot be told apart",
            at=f"graph {plan.graph.name!r}",
            fix="pass plan.for_shapes(...) of what was fed; where values decide shapes, "
            "Session.profile() tells what steps took",
        )
    spans = profile if wholes is None else wholes
    spent, links = _collect_times(spans)
    stamp_s = _measure_stamp_s()
    timed = {(node.name, node.device): _make_timing(node, stamp_s) for node in profile.nodes}
    nodes: dict[str, dict[Signature, list[Measured]]] = {}
    inside: dict[str, dict[Signature, list[Measured]]] = {}
    programs: dict[str, dict[str, list[Timing]]] = {}
    cores = share_cores(plan)
    for subgraph in plan.subgraphs:
        times = spent.get((subgraph.name, subgraph.device))
        if times is None:
            continue
        device = plan.prototypes[subgraph.device]
        model = get_model(device, subgraph.device)
        whole = _scale_to_one_core(Timing.of(times), device, cores.get(subgraph.device, 1))
        found = {
            node.name: Measured(timed[node.name, subgraph.device], get_cost(subgraph.graph, node))
            for node in subgraph.graph.nodes
            if (node.name, subgraph.device) in timed
        }
        # The device runs the subgraph in one piece.
        if not found:
            found = _divide_by_shares(subgraph.graph, device, whole, model)
        elif wholes is not None:
            found = _limit_to_whole(found, whole)
        # The sum of the nodes excludes the overhead of timing.
        elif is_on_host(device):
            whole = _sum_nodes(found.values(), whole)
        of_nodes = nodes.setdefault(subgraph.device, {})
        for node in subgraph.graph.nodes:
            if node.name in found:
                of_nodes.setdefault(make_signature(subgraph.graph, node), []).append(
                    found[node.name]
                )
        _add_inside(inside.setdefault(subgraph.device, {}), of_nodes, subgraph.graph, model)
        of_device = programs.setdefault(subgraph.device, {})
        of_device.setdefault(make_digest(subgraph.graph), []).append(whole)
    return Figures(
        memories={name: device.capabilities.memory for name, device in plan.prototypes.items()},
        links={pair: fit_link(points) for pair, points in links.items()},
        nodes={
            device: {
                key: _choose_middle(found) for key, found in (inside[device] | entries).items()
            }
            for device, entries in nodes.items()
            if entries
        },
        programs={
            device: {key: _choose_median(found) for key, found in entries.items()}
            for device, entries in programs.items()
        },
        hops=measure_hops(spans, plan),
        loop=measure_loop(spans, plan),
    )


def _make_timing(node: NodeTime, stamp_s: float) -> Timing:
    median_s, least_s = (max(0.0, ns / 1e9 - stamp_s) for ns in (node.median_ns, node.min_ns))
    return Timing(median_s, least_s, node.mad_ns / 1e9, node.runs)


def _scale_to_one_core(whole: Timing, device: Device, cores: int) -> Timing:
    if whole.trusted_s <= 0:
        return whole
    return whole.scaled(scale_to_one_core(device, whole.trusted_s, cores) / whole.trusted_s)


def _divide_by_shares(
    graph: Graph, device: Device, whole: Timing, model: DeviceModel
) -> dict[str, Measured]:
    told = device.shares(graph) if isinstance(device, Profiled) else {}
    shares = told or _predict_shares(graph, model)
    return {
        node.name: Measured(whole.scaled(shares[node.name]), get_cost(graph, node), not told)
        for node in graph.nodes
        if node.name in shares
    }


def _predict_shares(graph: Graph, model: DeviceModel) -> dict[str, float]:
    seconds = {
        node.name: model.kernel_s(name_family(graph, node), get_cost(graph, node))
        for node in graph.nodes
    }
    whole = sum(seconds.values())
    return {name: one / whole for name, one in seconds.items()} if whole > 0 else {}


def _limit_to_whole(found: Mapping[str, Measured], whole: Timing) -> dict[str, Measured]:
    together = sum(one.seconds for one in found.values())
    factor = whole.trusted_s / together if together > 0 else 1.0
    if factor >= 1.0:
        return dict(found)
    return {name: one._replace(timing=one.timing.scaled(factor)) for name, one in found.items()}


def _sum_nodes(found: Iterable[Measured], whole: Timing) -> Timing:
    together = sum(one.seconds for one in found)
    return whole.scaled(together / whole.seconds) if whole.seconds > 0 else Timing(together)


def _add_inside(
    nodes: dict[Signature, list[Measured]],
    measured: Mapping[Signature, Sequence[Measured]],
    graph: Graph,
    model: DeviceModel,
) -> None:
    """Add to `nodes` the times of nodes inside the Fused nodes of `graph`, which are `measured`.

    The planner weighs single nodes: the time of a Fused one is divided as `model` predicts.
    """
    for node in graph.nodes:
        if node.op == FUSED and (found := measured.get(make_signature(graph, node))):
            for inner, one, share in split_members(graph, node, model):
                # The last one belongs to the plan that ran last.
                part = found[-1]._replace(
                    timing=found[-1].timing.scaled(share), cost=get_cost(inner, one)
                )
                nodes.setdefault(make_signature(inner, one), []).append(part)


def _measure_stamp_s() -> float:
    stamps = [perf_counter_ns() for _ in range(101)]
    return statistics.median(after - before for before, after in pairwise(stamps)) / 1e9


def _collect_times(
    profile: Profile,
) -> tuple[dict[tuple[str, str], list[float]], dict[tuple[str, str], list[tuple[int, float]]]]:
    spent: dict[tuple[str, str], list[float]] = {}
    copies: dict[tuple[str, str], Transfer] = {}
    for record in profile.records:
        for span in record.spans():
            key = span.step.name, span.step.device
            spent.setdefault(key, []).append((span.ended_ns - span.started_ns) / 1e9)
            if span.step.transfer is not None:
                copies[key] = span.step.transfer
    links: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for key, copy in copies.items():
        median = statistics.median(spent.pop(key))
        # One point for each transfer of a plan, not for each run: all sizes count alike.
        links.setdefault((copy.source, copy.target), []).append((copy.nbytes, median))
    return spent, links


def fit_link(points: Iterable[tuple[int, float]]) -> Link:
    """Fit latency and bandwidth to `points` of (bytes, seconds), with least relative errors."""
    listed = sorted(points)
    small, large = listed[0], listed[-1]
    if large[0] < 4 * max(small[0], 1):  # sizes too close to separate latency from bandwidth
        nbytes, seconds = listed[len(listed) // 2]
        return Link(seconds / 2, max(nbytes, 1) / max(seconds / 2, 1e-9))
    # Relative errors: a tenth counts the same for small and large copies.
    weights = [1 / max(seconds, 1e-9) for _, seconds in listed]
    a11 = sum(w * w for w in weights)
    a12 = sum(w * w * n for w, (n, _) in zip(weights, listed, strict=True))
    a22 = sum(w * w * n * n for w, (n, _) in zip(weights, listed, strict=True))
    b1 = sum(weights)
    b2 = sum(w * n for w, (n, _) in zip(weights, listed, strict=True))
    determinant = a11 * a22 - a12 * a12
    latency = max((b1 * a22 - b2 * a12) / determinant, 0.0)
    per_byte = (a11 * b2 - a12 * b1) / determinant
    # Only noise makes larger copies faster: use the two extremes.
    if per_byte <= 0:
        per_byte = max(large[1] - small[1], 1e-12) / (large[0] - small[0])
    return Link(latency, 1 / per_byte)


def _choose_middle(found: Sequence[Measured]) -> Measured:
    least = min(one.distrust for one in found)
    trusted = [one for one in found if one.distrust == least]
    return trusted[0]._replace(timing=_choose_median([one.timing for one in trusted]))


def _choose_median(found: Sequence[Timing]) -> Timing:
    ordered = sorted(found, key=lambda one: one.trusted_s)
    return ordered[len(ordered) // 2]
