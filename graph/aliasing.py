"""Which tensors of a static graph can lie on each other's bytes, so that no kernel needs to run."""

from __future__ import annotations

from typing import NamedTuple

from .infer import asking
from .ir import Graph, Node
from .operator import Alias, AliasRule


class Run(NamedTuple):
    """Bytes that a node takes over from an input as they are.

    Attributes
    ----------
    source, target : str
        An input and an output.
    start, begin : int
        Where they begin in the source, and in the target.
    nbytes : int
    """

    source: str
    start: int
    target: str
    begin: int
    nbytes: int


def views_of(graph: Graph, node: Node) -> tuple[Alias, ...]:
    """Return which of a node's outputs are a run of an input's bytes, and where it begins."""
    found = [Alias(*pair) for pair in node.operator.views]
    found += _told(graph, node, node.operator.parts)
    return tuple(alias for alias in found if node.outputs[alias.output])


def joins_of(graph: Graph, node: Node) -> tuple[Alias, ...]:
    """Return which of a node's inputs are a run of an output's bytes, and where it begins."""
    return _told(graph, node, node.operator.joins)


def runs_of(graph: Graph, node: Node) -> tuple[Run, ...]:
    """Return the runs of bytes that a node takes over."""
    runs: list[Run] = []
    for output, index, offset in views_of(graph, node):
        source, target = node.inputs[index], node.outputs[output]
        runs.append(Run(source, offset, target, 0, graph.tensors[target].nbytes))
    for output, index, offset in joins_of(graph, node):
        source, target = node.inputs[index], node.outputs[output]
        runs.append(Run(source, 0, target, offset, graph.tensors[source].nbytes))
    return tuple(runs)


def _told(graph: Graph, node: Node, rule: AliasRule | None) -> tuple[Alias, ...]:
    if rule is None:
        return ()
    call = graph.call(node)
    with asking(node, call):
        return tuple(rule(call))


def only_copies(node: Node, runs: tuple[Run, ...]) -> bool:
    """True when the node's outputs are made of these runs and nothing else."""
    return bool(runs) and {run.target for run in runs}.issuperset(filter(None, node.outputs))
