"""The partition: the device of each node, and the subgraphs that follow.

The decision records the candidates that were compared, and the one that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ...graph.core.ir import ASSIGN, Graph

SESSION = "session"
"""Stands in place of a device where a node is control flow that waits for values."""

FEW = 2
"""A subgraph of up to that many nodes is called by all of them."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A set of nodes given to one device; runs as one program."""

    index: int
    """Position in the partition, a topological order."""
    device: str
    graph: Graph
    """The nodes, with the tensors that cross into and out of it as inputs and outputs."""

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def only_assigns(self) -> bool:
        """True if it only copies values to variables."""
        return all(node.op == ASSIGN for node in self.graph.nodes)

    def on(self, device: str) -> Subgraph:
        is_named = self.name != name_by_place(self.index, self.device)
        name = self.name if is_named else name_by_place(self.index, device)
        return replace(self, device=device, graph=replace(self.graph, name=name))


@dataclass(frozen=True, slots=True)
class Partition:
    """The assignment of all nodes to devices, and the subgraphs that follow."""

    assignment: Mapping[str, str]
    """Node name to device name, also for nodes of nested graphs: ``"loop/add"``."""
    reasons: Mapping[str, str]
    """The reason for the device of each node."""
    subgraphs: tuple[Subgraph, ...]
    """In a topological order."""


class Option(NamedTuple):
    """One device's support for one node."""

    device: str
    supported: bool
    reason: str
    """Why the device supports the node, or why not."""
    seconds: float | None = None
    """Predicted time of the kernel; None if it is not supported, or shapes are unknown."""
    basis: str | None = None
    """Source of the prediction: ``"measured"``, ``"scaled"`` or ``"model"``."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An assignment that was compared with others, with its simulated time."""

    name: str
    """Its origin: ``"all on cpu"``, ``"HEFT"``."""
    seconds: float
    """Predicted time of one item, or time per item if throughput is the objective."""
    subgraphs: int
    devices: tuple[str, ...]
    """The devices that run nodes."""
    note: str = ""
    """Why it was not chosen, or empty."""


@dataclass(frozen=True)
class Decision:
    """The choice of devices for nodes."""

    strategy: str
    objective: str
    chosen: str
    """The name of the chosen candidate."""
    why: str
    """The reason, as a sentence."""
    candidates: tuple[Candidate, ...] = ()
    """Best first; empty if none were compared."""
    ask: Callable[[], Mapping[str, tuple[Option, ...]]] = field(
        default=dict, repr=False, compare=False
    )
    """Computes `options` on first use."""

    @cached_property
    def options(self) -> Mapping[str, tuple[Option, ...]]:
        """The options of each node, by name: one for each device."""
        return self.ask()


def name_subgraphs(
    parts: Iterable[Sequence[str]], devices: Sequence[str], graph: str, count: int
) -> list[str]:
    """Return a unique name for each subgraph.

    A subgraph of few nodes has their names, one of all nodes that of the graph, and one with a
    common prefix of nodes that prefix. Others are called by their place and device, ``"1:ort:0"``.
    `parts` has the nodes of each subgraph; `graph` is the name of the graph of `count` nodes.
    """
    names: list[str] = []
    taken: dict[str, int] = {}
    for index, (nodes, device) in enumerate(zip(parts, devices, strict=True)):
        found = graph if FEW < len(nodes) == count else _find_common_name(nodes)
        name = found or name_by_place(index, device)
        taken[name] = times = taken.get(name, 0) + 1
        names.append(name if times == 1 else f"{name} ({times})")
    return names


def name_by_place(index: int, device: str) -> str:
    return f"{index}:{device}"


def _find_common_name(nodes: Sequence[str]) -> str:
    if len(nodes) <= FEW:
        return " + ".join(nodes)
    first, last = min(nodes), max(nodes)
    pairs = enumerate(zip(first, last, strict=False))
    prefix = first[: next((at for at, (a, b) in pairs if a != b), len(first))]
    return prefix.rpartition("/")[0].rstrip("/") or prefix.rpartition(".")[0]
