"""The strategies: by cost, by order of preference, by Tengine's rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

from ...devices.device import Device
from ...graph.ir import Graph
from ...graph.passes import Placing
from ..costs import Costs
from ..ends import ON_HOST, Ends
from ..errors import PlanError
from ..plans.partition import Partition, Subgraph
from .choose import Choice, choose
from .cutting import cut
from .decision import Decision
from .judge import PATIENCE, Judge
from .offers import Offers, ask, by_order, options
from .partition import by_preference, may_merge
from .pins import Pins
from .tengine import by_runs

Strategy: TypeAlias = Literal["auto", "preference", "tengine"]
Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan is to be like.

    Attributes
    ----------
    devices : Mapping of str to Device
        In order of preference.
    pins : Mapping of str to str
    max_in_flight : int
    strategy, objective : str
    costs : Costs
    max_subgraphs : int or None
    memory_limits : Mapping of str to int
    ends : Ends
    fuses_chains : bool
        Whether devices get elementwise chains as one node.
    precision : Mapping of str to str
        The devices that may compute in float16.
    halved : Mapping of str to str
        Where the nodes run that do already.
    writes_out : bool
        Whether devices get nodes that they lack in simpler ones.
    apart : frozenset of str
        Nodes that are in no subgraph with others, unless that is many more of these.
    """

    devices: Mapping[str, Device]
    pins: Pins
    max_in_flight: int
    strategy: Strategy
    objective: Objective
    costs: Costs
    max_subgraphs: int | None
    memory_limits: Mapping[str, int]
    ends: Ends = ON_HOST
    fuses_chains: bool = False
    precision: Mapping[str, str] = field(default_factory=dict)
    halved: Mapping[str, str] = field(default_factory=dict)
    writes_out: bool = False
    apart: frozenset[str] = frozenset()

    @property
    def kept(self) -> Pins:
        """What stays where it is: on devices by pins, and what is in float16 there already."""
        return {**self.halved, **self.pins}

    @property
    def may_merge(self) -> Placing:
        """The rule by which passes make one node of several."""
        return may_merge(self.devices, self.kept, writes_out=self.writes_out)

    def judge(self, offers: Offers) -> Judge:
        """Return who judges assignments of a graph."""
        in_flight = self.max_in_flight if self.objective == "throughput" else 0
        return Judge(
            offers.graph,
            self.devices,
            self.costs,
            in_flight,
            self.max_subgraphs,
            self.ends,
            self.apart,
            offers.forms,
        )


def choices(
    graph: Graph, request: Request, *, is_static: bool, template: Graph | None = None
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
        yield from choose(
            graph,
            request.devices,
            request.pins,
            request.costs,
            objective=request.objective,
            max_in_flight=request.max_in_flight,
            max_subgraphs=request.max_subgraphs,
            memory_limits=request.memory_limits,
            ends=request.ends,
            apart=request.apart,
            writes_out=request.writes_out,
            template=template,
        )
        return
    yield from _by_rule(graph, request, is_static, template)


def _by_rule(
    graph: Graph, request: Request, is_static: bool, template: Graph | None
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
    best = request.judge(offers)("", [assignment[node.name] for node in graph.nodes])
    _check_count(best.partition.subgraphs, request)
    for one in best.ways(PATIENCE):
        yield Choice.of(one, reasons, decision)


def _check_count(subgraphs: Sequence[Subgraph], request: Request) -> None:
    count, most = len(subgraphs), request.max_subgraphs
    if most is not None and count > most:
        raise PlanError(
            f"by {request.strategy} there are {count} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or use strategy='auto'",
        )
