"""From a profile to figures: what nodes, whole subgraphs and copies took.

Means suffer from the one run in a hundred that the system interrupts, medians do not. Where nodes
are timed one by one, so is the subgraph that they make up: what keeping the books took is left out.
Another profile of the same plan may say what subgraphs take whose nodes are not timed: then their
nodes share that. So do the nodes of programs in one piece: as the device tells, or else as they
would by the model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING

from ...devices.device import Device, Profiled
from ...devices.kinds import model_of
from ...devices.model import DeviceModel, family
from ...graph.infer import cost_of
from ...graph.ir import Graph
from ...graph.operators.fused import FUSED
from ..costs.figures import Figures, Link, Measured, Timing
from ..costs.host import computes_here
from ..costs.members import parts_of
from ..costs.signature import Signature, digest, signature
from ..dispatch.core_shares import seconds_on_one, shares_of_cores
from ..errors import PlanError
from .overheads import hops, loop

if TYPE_CHECKING:
    from ..plans.placement import Transfer
    from ..plans.plan import Plan
    from . import NodeTime, Profile


def recorded(profile: Profile, plan: Plan, wholes: Profile | None = None) -> Figures:
    """Return what a profile says; the plan is the one that ran, its shapes known.

    `wholes` is another profile of it, by which subgraphs are timed in place of their nodes.

    Raises
    ------
    PlanError
        If they are not.
    """
    if not plan.is_static:
        raise PlanError(
            "not all shapes of the plan are known, so what was measured cannot be told apart",
            at=f"graph {plan.graph.name!r}",
            fix="pass plan.for_shapes(...) of what was fed; where values decide shapes, "
            "Session.profile() tells what steps took",
        )
    spans = profile if wholes is None else wholes
    spent, links = _spent(spans)
    stamp_s = _stamp_s()
    timed = {(node.name, node.device): _timing(node, stamp_s) for node in profile.nodes}
    nodes: dict[str, dict[Signature, list[Measured]]] = {}
    inside: dict[str, dict[Signature, list[Measured]]] = {}
    programs: dict[str, dict[str, list[Timing]]] = {}
    cores = shares_of_cores(plan)
    for subgraph in plan.subgraphs:
        times = spent.get((subgraph.name, subgraph.device))
        if times is None:
            continue
        device = plan.prototypes[subgraph.device]
        model = model_of(device, subgraph.device)
        whole = _on_one_core(Timing.of(times), device, cores.get(subgraph.device, 1))
        found = {
            node.name: Measured(timed[node.name, subgraph.device], cost_of(subgraph.graph, node))
            for node in subgraph.graph.nodes
            if (node.name, subgraph.device) in timed
        }
        # No node was timed by itself, as where programs are one piece.
        if not found:
            found = _shares(subgraph.graph, device, whole, model)
        elif wholes is not None:
            found = _within(found, whole)
        # Nodes were timed and there is nothing to hold them against: their sum is the whole,
        # without clocks.
        elif computes_here(device):
            whole = _sum(found.values(), whole)
        of_nodes = nodes.setdefault(subgraph.device, {})
        for node in subgraph.graph.nodes:
            if node.name in found:
                of_nodes.setdefault(signature(subgraph.graph, node), []).append(found[node.name])
        _add_inside(inside.setdefault(subgraph.device, {}), of_nodes, subgraph.graph, model)
        of_device = programs.setdefault(subgraph.device, {})
        of_device.setdefault(digest(subgraph.graph), []).append(whole)
    return Figures(
        memories={name: device.capabilities.memory for name, device in plan.prototypes.items()},
        links={pair: link_through(points) for pair, points in links.items()},
        nodes={
            device: {key: _middle(found) for key, found in (inside[device] | entries).items()}
            for device, entries in nodes.items()
            if entries
        },
        programs={
            device: {key: _usual(found) for key, found in entries.items()}
            for device, entries in programs.items()
        },
        hops=hops(spans, plan),
        loop=loop(spans, plan),
    )


def _timing(node: NodeTime, stamp_s: float) -> Timing:
    """Return what a node takes, without what reading the clock does."""
    median_s, least_s = (max(0.0, ns / 1e9 - stamp_s) for ns in (node.median_ns, node.min_ns))
    return Timing(median_s, least_s, node.mad_ns / 1e9, node.runs)


def _on_one_core(whole: Timing, device: Device, cores: int) -> Timing:
    """Return what a program takes on one core, which it may have had several of."""
    if whole.trusted_s <= 0:
        return whole
    return whole.scaled(seconds_on_one(device, whole.trusted_s, cores) / whole.trusted_s)


def _shares(graph: Graph, device: Device, whole: Timing, model: DeviceModel) -> dict[str, Measured]:
    """Return what the nodes of a program take that is one piece: they share its time."""
    told = device.shares(graph) if isinstance(device, Profiled) else {}
    shares = told or _modelled(graph, model)
    return {
        node.name: Measured(whole.scaled(shares[node.name]), cost_of(graph, node), not told)
        for node in graph.nodes
        if node.name in shares
    }


def _modelled(graph: Graph, model: DeviceModel) -> dict[str, float]:
    seconds = {
        node.name: model.kernel_s(family(graph, node), cost_of(graph, node)) for node in graph.nodes
    }
    whole = sum(seconds.values())
    return {name: one / whole for name, one in seconds.items()} if whole > 0 else {}


def _within(found: Mapping[str, Measured], whole: Timing) -> dict[str, Measured]:
    """Return nodes that together take no more than their subgraph does."""
    together = sum(one.seconds for one in found.values())
    factor = whole.trusted_s / together if together > 0 else 1.0
    if factor >= 1.0:
        return dict(found)
    return {name: one._replace(timing=one.timing.scaled(factor)) for name, one in found.items()}


def _sum(found: Iterable[Measured], whole: Timing) -> Timing:
    """Return what nodes take one after the other, as far apart as the runs of their subgraph."""
    together = sum(one.seconds for one in found)
    return whole.scaled(together / whole.seconds) if whole.seconds > 0 else Timing(together)


def _add_inside(
    nodes: dict[Signature, list[Measured]],
    measured: Mapping[Signature, Sequence[Measured]],
    graph: Graph,
    model: DeviceModel,
) -> None:
    """Add the nodes inside of measured Fused nodes: plans are made of single nodes."""
    for node in graph.nodes:
        if node.op == FUSED and (found := measured.get(signature(graph, node))):
            for inner, one, share in parts_of(graph, node, model):
                # The last one found: it is of the plan that ran last.
                part = found[-1]._replace(
                    timing=found[-1].timing.scaled(share), cost=cost_of(inner, one)
                )
                nodes.setdefault(signature(inner, one), []).append(part)


def _stamp_s() -> float:
    """Return what it takes to read the clock, which timing does once for every node."""
    stamps = [perf_counter_ns() for _ in range(101)]
    return statistics.median(after - before for before, after in pairwise(stamps)) / 1e9


def _spent(
    profile: Profile,
) -> tuple[dict[tuple[str, str], list[float]], dict[tuple[str, str], list[tuple[int, float]]]]:
    """Return the seconds of subgraphs, and per way between memories the medians of copies."""
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
        # One point for each transfer of a plan, whatever the number of its runs: sizes count alike.
        links.setdefault((copy.source, copy.target), []).append((copy.nbytes, median))
    return spent, links


def link_through(points: Iterable[tuple[int, float]]) -> Link:
    """Return the latency and speed that fit copies of some sizes: least squares on the ratios."""
    listed = sorted(points)
    small, large = listed[0], listed[-1]
    if large[0] < 4 * max(small[0], 1):  # all of one size: no telling latency from speed
        nbytes, seconds = listed[len(listed) // 2]
        return Link(seconds / 2, max(nbytes, 1) / max(seconds / 2, 1e-9))
    # By ratio: a large copy that is off by a tenth is as wrong as a small one.
    weights = [1 / max(seconds, 1e-9) for _, seconds in listed]
    a11 = sum(w * w for w in weights)
    a12 = sum(w * w * n for w, (n, _) in zip(weights, listed, strict=True))
    a22 = sum(w * w * n * n for w, (n, _) in zip(weights, listed, strict=True))
    b1 = sum(weights)
    b2 = sum(w * n for w, (n, _) in zip(weights, listed, strict=True))
    determinant = a11 * a22 - a12 * a12
    latency = max((b1 * a22 - b2 * a12) / determinant, 0.0)
    per_byte = (a11 * b2 - a12 * b1) / determinant
    # Noise alone makes larger copies faster; then the ends of the range tell.
    if per_byte <= 0:
        per_byte = max(large[1] - small[1], 1e-12) / (large[0] - small[0])
    return Link(latency, 1 / per_byte)


def _middle(found: Sequence[Measured]) -> Measured:
    """Return one that stands for several of the same signature."""
    least = min(one.distrust for one in found)
    trusted = [one for one in found if one.distrust == least]
    return trusted[0]._replace(timing=_usual([one.timing for one in trusted]))


def _usual(found: Sequence[Timing]) -> Timing:
    """Return the middle one of the times of equals."""
    ordered = sorted(found, key=lambda one: one.trusted_s)
    return ordered[len(ordered) // 2]
