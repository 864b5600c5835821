"""Reasons for the device of each node, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....graph.ir import Graph, Node
from ....graph.printing import bytes_text, seconds_text
from ...costs import Costs
from ...costs.costs import PYTHON_S
from .offers import Offers
from .problem import PartitionProblem
from .written_out import WrittenOut


def settled_reasons(offers: Offers) -> dict[str, str]:
    """Return the reasons where no node has a choice."""
    names = tuple(offers.devices)
    return {node.name: _only(offers, index, names) for index, node in enumerate(offers.graph.nodes)}


def weighed_reasons(
    offers: Offers, problem: PartitionProblem, costs: Costs, assignment: Sequence[int]
) -> dict[str, str]:
    """Return the reasons after devices were weighed against each other."""
    names = tuple(offers.devices)
    return {
        node.name: _only(offers, index, names)
        if len(offers.allowed[index]) == 1
        else _weighed(offers, problem, costs, assignment, index)
        for index, node in enumerate(offers.graph.nodes)
    }


def written_reasons(
    graph: Graph, written: WrittenOut, assignment: Mapping[str, str]
) -> dict[str, str]:
    """Return the reasons of what was written in place of nodes, but for those of their names."""
    return {
        one.name: f"written out: {assignment[name]} lacks {graph.node(name).op}"
        for name, nodes in written.nodes.items()
        for one in nodes
        if one.name != name
    }


def _only(offers: Offers, index: int, names: Sequence[str]) -> str:
    (device,) = offers.allowed[index]
    pattern = offers.pinned[index]
    if pattern is not None:
        return f"pinned by {pattern!r}"
    answers = offers.supports[index]
    refused = [f"{names[d]}: {one.reason}" for d, one in enumerate(answers) if not one.ok]
    text = answers[device].reason
    return f"{text} (not on {'; '.join(refused)})" if refused else text


def _weighed(
    offers: Offers, problem: PartitionProblem, costs: Costs, assignment: Sequence[int], index: int
) -> str:
    names, here = problem.names, assignment[index]
    seconds = problem.seconds[index]
    node = offers.graph.nodes[index]
    times = [f"{seconds_text(seconds[here])} here"]
    times += [
        f"{seconds_text(seconds[device])} on {names[device]}"
        for device in offers.allowed[index]
        if device != here
    ]
    faster = [d for d in offers.allowed[index] if seconds[d] < seconds[here]]
    text = ", ".join(times)
    if faster:
        best = min(faster, key=lambda device: (seconds[device], device))
        text = f"with its neighbours: {text}; {_moving(problem, assignment, index, best)}"
    text += _basis(offers, costs, node, names[here])
    refused = [
        f"{names[d]}: {one.reason}" for d, one in enumerate(offers.supports[index]) if not one.ok
    ]
    return f"{text} (not on {'; '.join(refused)})" if refused else text


def _moving(problem: PartitionProblem, assignment: Sequence[int], index: int, device: int) -> str:
    """Say what it would take to move a node to a device where it is faster."""
    sizes = [
        nbytes
        for other, nbytes in (*problem.tasks.producers[index], *problem.tasks.consumers[index])
        if assignment[other] != device and problem.ways[assignment[other]][device].latency_s > 0
    ]
    where = problem.names[device]
    if sizes:
        copies = "a copy" if len(sizes) == 1 else f"{len(sizes)} copies"
        return f"moving it to {where} would add {copies} of {bytes_text(sum(sizes))}"
    return f"moving it to {where} would make the whole no shorter"


def _basis(offers: Offers, costs: Costs, node: Node, device: str) -> str:
    basis = costs.basis(device, offers.graph, node)
    if basis != "model":
        return f", {basis}"
    if node.operator.function is not None:
        return f"; what a Python function takes is unknown, {seconds_text(PYTHON_S)} assumed"
    return ""
