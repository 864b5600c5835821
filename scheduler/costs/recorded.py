"""From a profile to figures: what nodes, whole subgraphs and copies took.

Means suffer from the one run in a hundred that the system interrupts, medians do not. A profile
has means of nodes and all times of their subgraphs, so the nodes' means are scaled to their
subgraph's median.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...graph.infer import cost_of
from ...graph.operator import Cost
from .figures import Figures, Link, Measured
from .signature import Signature, digest, signature

if TYPE_CHECKING:
    from ..partition.partition import Subgraph
    from ..planning import Plan
    from ..profile import Profile
    from ..steps import Transfer


def recorded(profile: Profile, plan: Plan) -> Figures:
    """Return what a profile says; the plan is the one that ran, its shapes known."""
    medians, links = _medians(profile)
    means = {
        (node.name, node.device): node.total_ns / node.runs / 1e9
        for node in profile.nodes
        if node.runs
    }
    nodes: dict[str, dict[Signature, list[Measured]]] = {}
    programs: dict[str, dict[str, list[float]]] = {}
    for subgraph in plan.subgraphs:
        median = medians.get((subgraph.name, subgraph.device))
        if median is not None:
            of_device = programs.setdefault(subgraph.device, {})
            of_device.setdefault(digest(subgraph.graph), []).append(median)
            _add_nodes(nodes.setdefault(subgraph.device, {}), subgraph, means, median)
    return Figures(
        memories={name: device.capabilities.memory for name, device in plan.prototypes.items()},
        links={pair: link_through(points) for pair, points in links.items()},
        nodes={
            device: {key: _middle(found) for key, found in entries.items()}
            for device, entries in nodes.items()
            if entries
        },
        programs={
            device: {key: statistics.median(found) for key, found in entries.items()}
            for device, entries in programs.items()
        },
    )


def _add_nodes(
    nodes: dict[Signature, list[Measured]],
    subgraph: Subgraph,
    means: Mapping[tuple[str, str], float],
    median: float,
) -> None:
    graph, device = subgraph.graph, subgraph.device
    known = [node for node in graph.nodes if (node.name, device) in means]
    total = sum(means[node.name, device] for node in known)
    factor = min(1.0, median / total) if total > 0 else 1.0
    for node in known:
        measured = Measured(means[node.name, device] * factor, cost_of(graph, node))
        nodes.setdefault(signature(graph, node), []).append(measured)


def _medians(
    profile: Profile,
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], list[tuple[int, float]]]]:
    """Return the median seconds of subgraphs, and per way between memories those of copies."""
    spent: dict[tuple[str, str], list[int]] = {}
    copies: dict[tuple[str, str], Transfer] = {}
    for record in profile.records:
        for span in record.spans():
            key = span.step.name, span.step.device
            spent.setdefault(key, []).append(span.ended_ns - span.started_ns)
            if span.step.transfer is not None:
                copies[key] = span.step.transfer
    medians = {key: statistics.median(found) / 1e9 for key, found in spent.items()}
    links: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for key, copy in copies.items():
        links.setdefault((copy.source, copy.target), []).append((copy.nbytes, medians.pop(key)))
    return medians, links


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
