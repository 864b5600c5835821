"""A subgraph as pieces that a device queues in order: copies of bytes, and kernels.

All devices with generated kernels share this; each binds buffers in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ...graph.core.aliasing import find_runs, is_copy
from ...graph.core.ir import Graph, Node
from ..device import scratch_name
from ..memory import View
from ..program import is_in_place, is_placed
from .registry import Code, Kernel, Parameter, find_refusal, generate


class Transfer(NamedTuple):
    """A copy of bytes from one tensor to another."""

    source: str
    target: str
    """Tensors; the source may be a constant."""
    start: int
    begin: int
    """Offsets of the bytes in the source, and in the target."""
    nbytes: int


class Trap(NamedTuple):
    """The word where a node's kernels store a value that they cannot use."""

    name: str
    """Its name among the buffers of launches."""
    node: Node
    text: str
    """Message for the value, with ``{}`` in its place."""


class Launch(NamedTuple):
    """A kernel, and its buffers by name: tensors, scratch and trap."""

    kernel: Kernel
    buffers: tuple[str, ...]
    trap: Trap | None = None


Queued: TypeAlias = Transfer | Launch


class Piece(NamedTuple):
    """Nodes that are computed together, and their queued work."""

    nodes: tuple[Node, ...]
    """Errors and times name the last one."""
    queued: tuple[Queued, ...]


def list_transfers(
    graph: Graph, node: Node, views: Mapping[str, View]
) -> tuple[Transfer, ...] | None:
    """Return the copies that `node` of `graph` amounts to; None if it has to be computed.

    There are none if all its outputs are in place in `views` before it runs, or are empty.
    """
    runs = find_runs(graph, node)
    if not is_copy(node, runs):
        return None
    left = [run for run in runs if run.nbytes and not is_placed(run, views)]
    return tuple(Transfer(run.source, run.target, run.start, run.begin, run.nbytes) for run in left)


def make_piece(graph: Graph, node: Node, views: Mapping[str, View]) -> Piece | None:
    transfers = list_transfers(graph, node, views)
    if transfers is not None:
        return Piece((node,), transfers)
    call = graph.call(node)
    if find_refusal(node, call) is not None:
        return None
    return Piece((node,), make_launches(node, generate(node, call, graph.output_specs(node))))


def make_launches(
    node: Node, code: Code, named: Mapping[str, str] = MappingProxyType({})
) -> tuple[Launch, ...]:
    """Return the launches of `code`, which computes `node`; `named` has tensors not of the node.

    It maps names of parameters to tensors. Kernels without groups are left out, and those that
    write only absent outputs.
    """

    def buffer(parameter: Parameter) -> str:
        return named.get(parameter.name) or _name_buffer(node, parameter.role, parameter.number)

    trap = Trap(_name_trap(node), node, code.trap)
    return tuple(
        Launch(kernel, tuple(map(buffer, kernel.parameters)), trap if kernel.may_fail else None)
        for kernel in code.kernels
        if kernel.groups and any(map(buffer, kernel.written))
    )


def list_working_nodes(graph: Graph, views: Mapping[str, View]) -> tuple[Node, ...]:
    return tuple(node for node in graph.nodes if not is_in_place(graph, node, views))


def list_traps(queued: Iterable[object]) -> tuple[Trap, ...]:
    found = (item.trap for item in queued if isinstance(item, Launch))
    return tuple({trap.name: trap for trap in found if trap is not None}.values())


def _name_trap(node: Node) -> str:
    return f"{node.name}\0trap"


def _name_buffer(node: Node, role: str, index: int) -> str:
    if role == "scratch":
        return scratch_name(node, index)
    if role == "trap":
        return _name_trap(node)
    return (node.inputs if role == "input" else node.outputs)[index]
