"""The partition: which device runs which node, and the subgraphs that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...graph.ir import Graph

SESSION = "session"
"""Stands in place of a device where a node is control flow that waits for values."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A set of nodes given to one device; runs as one program.

    Attributes
    ----------
    index : int
        Its place in the partition, a topological order.
    device : str
    graph : Graph
        The nodes, with the tensors that cross into and out of it as inputs and outputs.
    """

    index: int
    device: str
    graph: Graph

    @property
    def name(self) -> str:
        """How reports and traces call it."""
        return self.graph.name


@dataclass(frozen=True, slots=True)
class Partition:
    """The assignment of all nodes to devices, and the subgraphs that follow.

    Attributes
    ----------
    assignment : Mapping of str to str
        Node name to device name, also for nodes of nested graphs: ``"loop/add"``.
    reasons : Mapping of str to str
        Why each node is where it is.
    subgraphs : tuple of Subgraph
        In a topological order.
    """

    assignment: Mapping[str, str]
    reasons: Mapping[str, str]
    subgraphs: tuple[Subgraph, ...]
