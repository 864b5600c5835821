"""The partition: which device runs which node, and the subgraphs that follow.

The decision behind it is what was weighed, and what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

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


class Option(NamedTuple):
    """What one device has to offer for one node.

    Attributes
    ----------
    device : str
    supported : bool
    reason : str
        Why it can run there, or why not.
    seconds : float or None
        What its kernel is predicted to take there; None where it cannot run, or shapes are unknown.
    basis : str or None
        What that rests on: ``"measured"``, ``"scaled"`` or ``"model"``.
    """

    device: str
    supported: bool
    reason: str
    seconds: float | None = None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An assignment that was weighed, as the simulator saw it.

    Attributes
    ----------
    name : str
        Where it comes from: ``"all on cpu"``, ``"HEFT"``.
    seconds : float
        Predicted: of one item, or per item where throughput is the objective.
    subgraphs : int
    devices : tuple of str
        Those that do something.
    note : str
        Why it was not taken, or empty.
    """

    name: str
    seconds: float
    subgraphs: int
    devices: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Decision:
    """How nodes came to their devices.

    Attributes
    ----------
    strategy : str
    objective : str
    chosen : str
        The name of the candidate that was taken.
    why : str
        In a sentence.
    candidates : tuple of Candidate
        The best first; empty where nothing was weighed.
    """

    strategy: str
    objective: str
    chosen: str
    why: str
    candidates: tuple[Candidate, ...] = ()
    ask: Callable[[], Mapping[str, tuple[Option, ...]]] = field(
        default=dict, repr=False, compare=False
    )
    """Returns the options; asked once, when somebody wants to know."""

    @cached_property
    def options(self) -> Mapping[str, tuple[Option, ...]]:
        """For every node what each device has to offer."""
        return self.ask()
