"""Graphs in the form in which devices run them, once nodes have devices.

Nodes that a device lacks are written out in others, and chains are one node where it asks for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ...devices.device import Chaining
from ...graph.ir import Graph, Node
from ...graph.operators.control import placed_nodes
from ...graph.passes import Applied, run_passes
from ..plans.partition import Partition
from ..plans.placement import Placement
from ..plans.request import PlanRequest
from .chains import find_chains, fuse_alike, with_chains
from .partition.choose import Choice
from .placement import place

AFTER_CHOICE = frozenset({"write_out", "fuse_chains"})
"""What is done to a graph once its nodes have devices, as plans list it."""


class Lowered(NamedTuple):
    """A graph as it will run, by a choice.

    Attributes
    ----------
    graph : Graph
    choice : Choice
    applied : tuple of Applied
        What was done to the graph.
    template : Graph or None
        The graph with its symbols, and the same done to it.
    """

    graph: Graph
    choice: Choice
    applied: tuple[Applied, ...] = ()
    template: Graph | None = None

    @property
    def placement(self) -> Placement:
        """Where everything lies; there is none while dimensions are symbolic."""
        assert self.choice.placement is not None
        return self.choice.placement


def lower(graph: Graph, choice: Choice, request: PlanRequest, template: Graph | None) -> Lowered:
    """Return a static graph in the form that the devices of a choice get.

    Nodes that they lack are written out, and chains are fused where that is asked for. `template`
    is the graph with its symbols, where the same nodes are for other shapes too.
    """

    def write_out(given: Graph, _: object) -> Graph:
        return choice.graph if given is graph else given

    plain, applied = run_passes(graph, (write_out,))
    template = template and choice.written.into(template)
    chains = [
        chain
        for subgraph in choice.partition.subgraphs
        if request.fuses_chains and isinstance(device := request.devices[subgraph.device], Chaining)
        for chain in find_chains(subgraph.graph, device, template or plain)
    ]
    if not chains:
        return Lowered(plain, choice, applied, template)

    def fuse_chains(given: Graph, _: object) -> Graph:
        return with_chains(given, chains) if given is plain else given

    fused, joined = run_passes(plain, (fuse_chains,))
    partition = _partition(fused, choice.partition)
    placement = place(fused, partition, request.devices, request.ends)
    judged = choice.judged
    if judged is not None:
        judged = replace(
            judged, graph=fused, partition=partition, placement=placement, rivals=[], others=[]
        )
    chosen = replace(choice, graph=fused, partition=partition, placement=placement, judged=judged)
    template = template and fuse_alike(template, fused)
    return Lowered(fused, chosen, (*applied, *joined), template)


def _partition(fused: Graph, partition: Partition) -> Partition:
    """Return a partition of the graph with its chains fused."""
    nodes = {node.name: node for node in fused.nodes}
    assignment, reasons = dict[str, str](), dict[str, str]()
    for path, _, node in placed_nodes(fused):
        old = path if path in partition.assignment else node.name  # what is in a chain has a path
        assignment[path] = partition.assignment[old]
        reasons[path] = partition.reasons.get(old, "")
    subgraphs = tuple(
        replace(one, graph=fused.extract(_kept(one.graph, nodes), one.name))
        for one in partition.subgraphs
    )
    return Partition(assignment, reasons, subgraphs)


def _kept(graph: Graph, nodes: Mapping[str, Node]) -> Iterator[Node]:
    return (nodes[node.name] for node in graph.nodes if node.name in nodes)
