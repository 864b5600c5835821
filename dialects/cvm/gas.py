"""The cost of an exact graph: operations, gas for these, and the limit of storage.

The rules are those of CVM and of the CortexTheseus ledger, so that a model has the same cost as
there. Sizes are elements; moving an element costs 5 operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.errors import LogicError
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
"""Operators that plait adds for a second public name of a tensor; model files do not have them."""


def count_operations(graph: Graph) -> int:
    """Return the number of operations of one inference of `graph`, which must be static.

    Raises LogicError if the graph has an operator that is not exact, or exceeds a limit; ShapeError
    if a shape is not fixed.
    """
    nodes = [node for node in graph.nodes if node.op not in _FREE]
    moved = sum(graph.tensors[name].size for name in (*graph.inputs, *graph.constants))
    computed = 0
    for node in nodes:
        outputs = _infer_outputs(graph, node)
        moved += sum(spec.size for spec in outputs)
        computed += _find_base(graph, node, outputs) * outputs[0].size
        _limit("operations", computed, MAX_OPERATIONS, str(node))
    _limit("memory", MOVE * moved, MAX_MEMORY, graph.name)
    return _limit("operations", MOVE * moved + computed, MAX_OPERATIONS, graph.name)


def sum_storage(pools: Iterable[int]) -> int:
    """Return the bytes of `pools`, each rounded up to a multiple of 4; LogicError above 4 GiB."""
    return _limit("storage", sum(-(-nbytes // 4) * 4 for nbytes in pools), MAX_STORAGE, None)


def count_gas(count: int, *, array: bool = False) -> int:
    """Return the gas for `count` operations, with a minimum for an `array` of the ledger."""
    found = count // OPERATIONS_PER_GAS
    return max(found, LEAST_ARRAY_GAS) if array else found


def _infer_outputs(graph: Graph, node: Node) -> Specs:
    if all(node.outputs):
        return graph.output_specs(node)
    return infer_node(node, graph.call(node))


def _find_base(graph: Graph, node: Node, outputs: Specs) -> int:
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


def _count_weighted_sum(call: Call, outputs: Specs) -> int:
    return math.prod(call.spec(1).static_shape[1:]) * 3 + call.has(2)


BASES: Mapping[str, BaseRule] = {
    f"{PREFIX}conv2d": _count_weighted_sum,
    f"{PREFIX}dense": _count_weighted_sum,
    f"{PREFIX}max_pool2d": lambda call, outputs: math.prod(call.attributes["pool_size"]),
    f"{PREFIX}sum": lambda call, outputs: call.spec(0).size // outputs[0].size,
    f"{PREFIX}non_max_suppression": lambda call, outputs: call.spec(0).static_shape[0] * 20,
}
"""Operators with more than one operation per element."""
