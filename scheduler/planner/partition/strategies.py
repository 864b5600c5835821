"""The strategies: by cost, by order of preference, by Tengine's rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ....graph.ir import Graph
from ....graph.passes import Placing
from ...errors import PlanError
from ...plans.decision import Decision
from ...plans.partition import Partition, Subgraph
from ...plans.request import PlanRequest
from .choose import Choice, choose
from .cutting import cut
from .judge import PATIENCE, Judge
from .offers import ask, by_order, options
from .partition import by_preference, may_merge
from .tengine import by_runs


def merging(request: PlanRequest) -> Placing:
    """Return the rule by which passes make one node of several."""
    return may_merge(request.devices, request.kept, writes_out=request.writes_out)


def choices(
    graph: Graph, request: PlanRequest, *, is_static: bool, template: Graph | None = None
) -> Iterator[Choice]:
    """Yield partitions, the best first; others follow lest the first need too much memory.

    `template` is the graph with its symbols, where the same nodes are for other shapes too.

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    PlanError
        If there is no partition of so few subgraphs.
    """
    if request.strategy == "auto" and is_static:
        yield from choose(graph, request, template)
    else:
        yield from _by_rule(graph, request, is_static, template)


def _by_rule(
    graph: Graph, request: PlanRequest, is_static: bool, template: Graph | None
) -> Iterator[Choice]:
    """Yield the only assignment that a rule knows, cut well, and then in leaner ways."""
    devices, writes_out = request.devices, request.writes_out
    why = "each node goes to the first device that supports it"
    if request.strategy == "auto":
        why += ", until shapes are known"
    elif request.strategy == "tengine" and is_static:
        why = f"runs of nodes that {next(iter(devices))} supports, if they are long enough"
    decision = Decision(
        request.strategy,
        request.objective,
        "preference" if request.strategy == "auto" else request.strategy,
        why,
        ask=partial(options, graph, devices, request.costs),
    )
    if not is_static:
        assignment, reasons = by_preference(graph, devices, request.pins, writes_out=writes_out)
        subgraphs = cut(graph, assignment)
        if request.strategy != "auto":
            _check_count(subgraphs, request)
        yield Choice(Partition(assignment, reasons, subgraphs), None, decision, graph)
        return
    offers = ask(graph, devices, request.pins, writes_out=writes_out, template=template)
    told = partial(options, graph, devices, request.costs, offers.forms)
    decision = replace(decision, ask=told)
    rule = by_runs if request.strategy == "tengine" else by_order
    assignment, reasons = rule(offers)
    best = Judge.of(offers, request)("", [assignment[node.name] for node in graph.nodes])
    _check_count(best.partition.subgraphs, request)
    for one in best.ways(PATIENCE):
        yield Choice.of(one, reasons, decision)


def _check_count(subgraphs: Sequence[Subgraph], request: PlanRequest) -> None:
    count, most = len(subgraphs), request.max_subgraphs
    if most is not None and count > most:
        raise PlanError(
            f"by {request.strategy} there are {count} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or use strategy='auto'",
        )
