"""A subgraph as pieces that a device queues one after another: copies of bytes, and kernels.

Shared by the devices that run generated kernels; how buffers are bound is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ...graph.aliasing import find_runs, is_copy
from ...graph.ir import Graph, Node
from ..device import scratch_name
from ..memory import View
from ..program import is_in_place, is_placed
from .kernel import Code, Kernel, Parameter
from .registry import generate, why_not


class Transfer(NamedTuple):
    """Bytes of one tensor that become bytes of another.

    Attributes
    ----------
    source, target : str
        Tensors; the source may be a constant.
    start, begin : int
        Where the bytes are in the source, and in the target.
    """

    source: str
    target: str
    start: int
    begin: int
    nbytes: int


class Trap(NamedTuple):
    """The word where a node's kernels leave a value that they cannot use.

    Attributes
    ----------
    name : str
        Among the buffers of launches.
    text : str
        What is said of the value, with ``{}`` in its place.
    """

    name: str
    node: Node
    text: str


class Launch(NamedTuple):
    """A kernel, and the tensors, the scratch buffers and the trap it is given, by name."""

    kernel: Kernel
    buffers: tuple[str, ...]
    trap: Trap | None = None


Queued: TypeAlias = Transfer | Launch


class Piece(NamedTuple):
    """Nodes that are computed together, and what is queued for them.

    Attributes
    ----------
    nodes : tuple of Node
        The last one is the one that errors and times name.
    """

    nodes: tuple[Node, ...]
    queued: tuple[Queued, ...]


def transfers_of(
    graph: Graph, node: Node, views: Mapping[str, View]
) -> tuple[Transfer, ...] | None:
    """Return the copies that a node comes down to; None if it has to be computed.

    There are none where all its outputs lie where they belong before it runs, or are empty.
    """
    runs = find_runs(graph, node)
    if not is_copy(node, runs):
        return None
    left = [run for run in runs if run.nbytes and not is_placed(run, views)]
    return tuple(Transfer(run.source, run.target, run.start, run.begin, run.nbytes) for run in left)


def piece_of(graph: Graph, node: Node, views: Mapping[str, View]) -> Piece | None:
    """Return the piece of one node, None if no kernel can be generated for it."""
    transfers = transfers_of(graph, node, views)
    if transfers is not None:
        return Piece((node,), transfers)
    call = graph.call(node)
    if why_not(node, call) is not None:
        return None
    return Piece((node,), launches(node, generate(node, call, graph.output_specs(node))))


def launches(
    node: Node, code: Code, named: Mapping[str, str] = MappingProxyType({})
) -> tuple[Launch, ...]:
    """Return the launches of a node's code.

    Those without groups are left out, and those that write nothing but outputs that are absent.

    Parameters
    ----------
    named : mapping of str to str
        The tensors of parameters that are not the node's.
    """

    def buffer(parameter: Parameter) -> str:
        return named.get(parameter.name) or _buffer(node, parameter.role, parameter.number)

    trap = Trap(_trap_name(node), node, code.trap)
    return tuple(
        Launch(kernel, tuple(map(buffer, kernel.parameters)), trap if kernel.may_fail else None)
        for kernel in code.kernels
        if kernel.groups and any(map(buffer, kernel.written))
    )


def working_nodes(graph: Graph, views: Mapping[str, View]) -> tuple[Node, ...]:
    return tuple(node for node in graph.nodes if not is_in_place(graph, node, views))


def traps_in(queued: Iterable[object]) -> tuple[Trap, ...]:
    """Return the traps of all launches among what is queued, each once."""
    found = (item.trap for item in queued if isinstance(item, Launch))
    return tuple({trap.name: trap for trap in found if trap is not None}.values())


def _trap_name(node: Node) -> str:
    """Return the name of a node's trap; no tensor has it."""
    return f"{node.name}\0trap"


def _buffer(node: Node, role: str, index: int) -> str:
    if role == "scratch":
        return scratch_name(node, index)
    if role == "trap":
        return _trap_name(node)
    return (node.inputs if role == "input" else node.outputs)[index]
