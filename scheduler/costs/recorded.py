"""From a profile to figures: what nodes, whole subgraphs and copies took.

Means suffer from the one run in a hundred that the system interrupts, medians do not. A profile
has means of nodes and all times of their subgraphs, so the nodes' means are scaled by what is the
median of their subgraph's times to the mean. Where nodes are timed one by one, so is the subgraph
that they make up: what keeping the books took is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING

from ...devices.model import DeviceModel, model_of
from ...graph.infer import cost_of
from ...graph.ir import Graph
from ...graph.operator import Cost
from ...graph.operators.fused import FUSED
from .figures import Figures, Link, Measured
from .members import parts_of
from .overheads import computes_here, hops, loop
from .signature import Signature, digest, signature

if TYPE_CHECKING:
    from ..partition.partition import Subgraph
    from ..planning import Plan
    from ..profile import Profile
    from ..steps import Transfer


def recorded(profile: Profile, plan: Plan) -> Figures:
    """Return what a profile says; the plan is the one that ran, its shapes known."""
    spent, links = _spent(profile)
    stamp_s = _stamp_s()
    means = {
        (node.name, node.device): node.total_ns / node.runs / 1e9
        for node in profile.nodes
        if node.runs
    }
    nodes: dict[str, dict[Signature, list[Measured]]] = {}
    inside: dict[str, dict[Signature, list[Measured]]] = {}
    programs: dict[str, dict[str, list[float]]] = {}
    for subgraph in plan.subgraphs:
        times = spent.get((subgraph.name, subgraph.device))
        if times is not None:
            median, of_device = statistics.median(times), programs.setdefault(subgraph.device, {})
            factor = median / max(statistics.fmean(times), 1e-9)
            of_nodes = nodes.setdefault(subgraph.device, {})
            whole = _add_nodes(of_nodes, subgraph, means, factor, stamp_s)
            model = model_of(plan.prototypes[subgraph.device], subgraph.device)
            _add_inside(inside.setdefault(subgraph.device, {}), of_nodes, subgraph.graph, model)
            if not computes_here(plan.prototypes[subgraph.device]) or not whole:
                whole = median
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
            device: {key: statistics.median(found) for key, found in entries.items()}
            for device, entries in programs.items()
        },
        hops=hops(profile, plan),
        loop=loop(profile, plan),
    )


def _add_nodes(
    nodes: dict[Signature, list[Measured]],
    subgraph: Subgraph,
    means: Mapping[tuple[str, str], float],
    factor: float,
    stamp_s: float,
) -> float:
    """Add a subgraph's measured nodes, their means scaled; return what they take together."""
    graph, device = subgraph.graph, subgraph.device
    whole = 0.0
    for node in graph.nodes:
        if (node.name, device) in means:
            seconds = max(0.0, means[node.name, device] - stamp_s) * factor
            measured = Measured(seconds, cost_of(graph, node))
            nodes.setdefault(signature(graph, node), []).append(measured)
            whole += seconds
    return whole


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
                part = Measured(found[-1].seconds * share, cost_of(inner, one))
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
        links.setdefault((copy.source, copy.target), []).append((copy.nbytes, median))
    return spent, links


def link_through(points: Iterable[tuple[int, float]]) -> Link:
    """Return the latency and speed that fit copies of some sizes: least squares on the ratios."""
    listed = sorted(points)
    small, large = listed[0], listed[-1]
    if large[0] < 4 * max(small[0], 1):  # all of one size: no telling latency from speed
        nbytes, seconds = listed[len(listed) // 2]
        return Link(seconds / 2, max(nbytes, 1) / max(seconds / 2, 1e-9))
    weights = [1 / max(seconds, 1e-9) for _, seconds in listed]
    a11 = sum(w * w for w in weights)
    a12 = sum(w * w * n for w, (n, _) in zip(weights, listed, strict=True))
    a22 = sum(w * w * n * n for w, (n, _) in zip(weights, listed, strict=True))
    b1 = sum(weights)
    b2 = sum(w * n for w, (n, _) in zip(weights, listed, strict=True))
    determinant = a11 * a22 - a12 * a12
    latency = max((b1 * a22 - b2 * a12) / determinant, 0.0)
    per_byte = (a11 * b2 - a12 * b1) / determinant
    if per_byte <= 0:
        per_byte = max(large[1] - small[1], 1e-12) / (large[0] - small[0])
    return Link(latency, 1 / per_byte)


def _middle(found: list[Measured]) -> Measured:
    return Measured(statistics.median(one.seconds for one in found), Cost(*found[0].cost))
