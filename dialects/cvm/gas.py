"""The cost of an exact graph: its operations, the storage it may take, and the gas they are worth.

The rules are those of CVM and of the CortexTheseus ledger, so that a model costs here what it costs
there. Sizes are elements; an element is moved for 5 operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ...graph.errors import LogicError
from ...graph.infer import infer_node
from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from .operators.rules import PREFIX

MAX_BASE = 1 << 30
MAX_OPERATIONS = 1 << 40
MAX_MEMORY = 1 << 40
MAX_STORAGE = 1 << 32

MOVE = 5
"""Operations for each element of an input, a constant or an output."""

OPERATIONS_PER_GAS = 20_000
LEAST_ARRAY_GAS = 1_000_000
"""The gas for an inference on an array of the ledger is at least this."""

BaseRule: TypeAlias = Callable[[Call, Specs], int]
"""Returns the operations for each element of the first output."""

_FREE = ("Identity",)
"""What plait puts between a tensor and a second public name; a model's file has no such node."""


def operations(graph: Graph) -> int:
    """Return the operations that one inference counts for.

    Parameters
    ----------
    graph : Graph
        Static; of exact operators alone.

    Raises
    ------
    LogicError
        If there is another operator, or a limit is passed.
    ShapeError
        If a shape is not fixed.
    """
    nodes = [node for node in graph.nodes if node.op not in _FREE]
    moved = sum(graph.tensors[name].size for name in (*graph.inputs, *graph.constants))
    computed = 0
    for node in nodes:
        outputs = _all_outputs(graph, node)
        moved += sum(spec.size for spec in outputs)
        computed += _base(graph, node, outputs) * outputs[0].size
        _limit("operations", computed, MAX_OPERATIONS, str(node))
    _limit("memory", MOVE * moved, MAX_MEMORY, graph.name)
    return _limit("operations", MOVE * moved + computed, MAX_OPERATIONS, graph.name)


def storage_bytes(pools: Iterable[int]) -> int:
    """Return the bytes of pools of the given sizes, each rounded up to a multiple of 4.

    Raises
    ------
    LogicError
        If they are more than 4 GiB.
    """
    return _limit("storage", sum(-(-nbytes // 4) * 4 for nbytes in pools), MAX_STORAGE, None)


def gas(count: int, *, array: bool = False) -> int:
    """Return the gas for so many operations; `array` where the input is an array of the ledger."""
    found = count // OPERATIONS_PER_GAS
    return max(found, LEAST_ARRAY_GAS) if array else found


def _all_outputs(graph: Graph, node: Node) -> Specs:
    """Return the specs of all outputs that an operator has, also of those that have no name."""
    if all(node.outputs):
        return graph.output_specs(node)
    return infer_node(node, graph.call(node))


def _base(graph: Graph, node: Node, outputs: Specs) -> int:
    if not node.op.startswith(PREFIX):
        raise LogicError(
            f"{node.op} has no cost in operations",
            at=str(node),
            fix="count a graph of cvm operators alone",
        )
    rule = BASES.get(node.op)
    base = rule(graph.call(node), outputs) if rule else 1
    return _limit("operations for an element", base, MAX_BASE, str(node))


def _limit(what: str, amount: int, most: int, at: str | None) -> int:
    if amount > most:
        raise LogicError(f"{amount} {what} are over the limit of {most}", at=at, fix="use less")
    return amount


def _weighted_sum(call: Call, outputs: Specs) -> int:
    return math.prod(call.spec(1).static_shape[1:]) * 3 + call.has(2)


def _pool(call: Call, outputs: Specs) -> int:
    return math.prod(call.attributes["pool_size"])


def _total(call: Call, outputs: Specs) -> int:
    return call.spec(0).size // outputs[0].size


def _suppression(call: Call, outputs: Specs) -> int:
    return call.spec(0).static_shape[0] * 20


BASES: Mapping[str, BaseRule] = {
    f"{PREFIX}conv2d": _weighted_sum,
    f"{PREFIX}dense": _weighted_sum,
    f"{PREFIX}max_pool2d": _pool,
    f"{PREFIX}sum": _total,
    f"{PREFIX}non_max_suppression": _suppression,
}
"""The operators for which an element counts for more than one operation."""
