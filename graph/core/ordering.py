"""The order of nodes: which come before others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..values.errors import GraphError
from .ir import Node


def sort_nodes(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return `nodes` in a topological order, and a cycle of nodes that wait for each other.

    The first ready node is next, so that ordered nodes keep their order. Nodes that wait for a
    cycle are omitted.
    """
    waits, readers = _link(nodes)
    counts = list(map(len, waits))
    ready = [index for index, count in enumerate(counts) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            counts[reader] -= 1
            if counts[reader] == 0:
                heapq.heappush(ready, reader)
    cycle = _find_cycle(waits, counts) if len(order) < len(nodes) else []
    return [nodes[index] for index in order], [nodes[index] for index in cycle]


def order_depth_first(nodes: Sequence[Node]) -> list[Node]:
    """Return `nodes` in depth-first order: each branch is followed to its end before the next.

    Every node comes after all nodes that write its inputs. Among several branches the one of the
    reader that stands first goes first. Raises GraphError if nodes wait for each other in a cycle.
    """
    waits, readers = _link(nodes)
    counts = list(map(len, waits))
    ready = [index for index in reversed(range(len(nodes))) if counts[index] == 0]
    order = []
    while ready:
        index = ready.pop()
        order.append(nodes[index])
        for reader in reversed(readers[index]):
            counts[reader] -= 1
            if counts[reader] == 0:
                ready.append(reader)
    if len(order) < len(nodes):
        names = ", ".join(repr(node.name) for node in sort_nodes(nodes)[1])
        raise GraphError(f"nodes wait for each other in a cycle: {names}", fix="rewire one of them")
    return order


def _link(nodes: Sequence[Node]) -> tuple[list[list[int]], list[list[int]]]:
    """Return for each of `nodes` the numbers of those that it waits for, and of its readers."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    waits = [list({producer[name] for name in n.inputs if name in producer}) for n in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(waits):
        for source in sources:
            readers[source].append(index)
    return waits, readers


def _find_cycle(waits: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
    """Return a cycle in the order of data flow, among the nodes with `counts` above 0."""
    index = next(i for i, count in enumerate(counts) if count)
    seen: dict[int, int] = {}
    while index not in seen:  # each stuck node waits for a stuck node, so walking back must loop
        seen[index] = len(seen)
        index = next(source for source in waits[index] if counts[source])
    walked = list(seen)[seen[index] :]
    return walked[::-1]
