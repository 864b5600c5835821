"""Cuts an assignment into subgraphs such that none waits for itself.

Give every node a level, such that

    level(n) >= level(p)    for producers p of n on n's device
    level(n) >  level(p)    for producers p of n elsewhere

Then edges never lead to a lower level, and within a level never to another device. So the groups of
one (device, level) are convex and their quotient has no cycle; each weakly connected component of a
group is one subgraph, and unconnected branches stay free to start on their own. There are several
such levels, and so several cuts:

    early     the lowest: a node goes with its producers
    late      the highest: a node goes with its readers
    freest    the sum of the two: nodes that differ in either are apart, with fewer waits
    in order  up by one wherever, in the graph's own order, the device changes

Components with equal producers and equal readers may also be one subgraph, if a device runs that as
one program: a fifth cut. In every cut, components that only assign to variables are one if they
wait for the same subgraphs.

Nodes that follow from constants alone, such as the decoding of weights, have no waits. They go with
their readers in every cut: a device that runs a subgraph as one program may decode in the product,
or once.

Async functions do not occupy their device: each is a subgraph of its own. So is a function that
follows the order of items, if several are in flight: other nodes of its subgraph would wait for the
item before. For that reason, nodes from the value of a variable to its assigned value are separate,
too.

A group of hundreds of components is one subgraph nevertheless: a device runs one after the other
anyway, and a row of nodes has fewer waits, and more bytes to share, than unordered steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import chain
from operator import add
from typing import TypeAlias

from ....graph.core.ir import ASSIGN, Graph
from ....graph.core.nested import find_async_operator
from ....graph.operators.item_order import find_order
from ...plans.partition import Subgraph, name_subgraphs

Parts: TypeAlias = list[list[int]]
"""The nodes of each subgraph, in a topological order."""

MOST_APART = 256
"""Groups with more components stay in one part."""


STATE = "state"
"""The label of nodes between variables and their assigned values."""

Labels: TypeAlias = Mapping[int, Hashable]
"""Labels of nodes: subgraphs do not mix them."""


def cut(
    graph: Graph, assignment: Mapping[str, str], *, overlaps: bool = False
) -> tuple[Subgraph, ...]:
    """Return the subgraphs of `graph` by `assignment`, in topological order, cut at early levels.

    With `overlaps`, several items are in flight.
    """
    devices = [assignment[node.name] for node in graph.nodes]
    labels = set_labels(devices, find_labels(graph, overlaps=overlaps))
    parts = find_components(graph.producer_indices, labels, graph.constant_indices)
    return extract_subgraphs(graph, devices, join_assignments(graph, labels, parts))


def find_awaiting(graph: Graph) -> frozenset[int]:
    return frozenset(
        i for i, node in enumerate(graph.nodes) if find_async_operator(node) is not None
    )


def find_labels(graph: Graph, *, overlaps: bool) -> Labels:
    """Return labels of the nodes of `graph` that are separate from others of their device.

    With `overlaps`, several items are in flight.
    """
    alone = find_awaiting(graph)
    if overlaps:
        alone |= {index for index, node in enumerate(graph.nodes) if find_order(node)}
    found: dict[int, Hashable] = dict.fromkeys(_find_cycle(graph), STATE)
    return {**found, **{node: node for node in sorted(alone)}}


def _find_cycle(graph: Graph) -> list[int]:
    late = {*graph.late}
    if not late:
        return []
    after: set[str] = {*late}
    assigning = set[int]()
    for index, node in enumerate(graph.nodes):
        if node.op == ASSIGN and node.inputs[0] in late:
            assigning.add(index)
        elif not after.isdisjoint(node.inputs):
            after.update(node.outputs)
    before = {graph.nodes[index].inputs[1] for index in assigning}
    found = []
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if index in assigning:
            found.append(index)
        elif not before.isdisjoint(filter(None, node.outputs)):
            before.update(node.inputs)
            if not after.isdisjoint(node.inputs):
                found.append(index)
    return found[::-1]


def set_labels(devices: Sequence[object], labels: Labels) -> Sequence[object]:
    if not labels:
        return devices
    found = [*devices]
    for node, label in labels.items():
        found[node] = devices[node], label
    return found


def list_cuts(
    producers: Sequence[Sequence[int]], devices: Sequence[object], following: Collection[int] = ()
) -> list[Parts]:
    """Return distinct cuts, the freest first, of nodes with these `producers` and `devices`.

    Nodes in `following` follow from constants alone.
    """
    early = _compute_early(producers, devices, following)
    late = _compute_late(producers, devices, early)
    every = ([*map(add, early, late)], early, late, _compute_in_order(devices))
    for mutable in every:
        _raise_to_readers(mutable, producers, devices, following)
    distinct = dict.fromkeys(map(tuple, every))
    found: dict[frozenset[tuple[int, ...]], Parts] = {}
    for levels in distinct:
        # Different levels may yield equal parts: keep one.
        parts = _group(producers, devices, levels)
        found.setdefault(frozenset(map(tuple, parts)), parts)
    return list(found.values())


def join_assignments(graph: Graph, devices: Sequence[object], parts: Parts) -> Parts:
    """Join `parts` that only assign to variables and wait for the same, if nothing waits for them.

    They come last. Nodes of `graph` are on `devices`, with labels. Such parts are brief: as steps
    of their own, they would take longer to start than to run.
    """
    last = _find_last_assignments(graph)
    part_of = {node: index for index, part in enumerate(parts) for node in part}
    others: Parts = []
    found: dict[object, list[int]] = {}
    for index, part in enumerate(parts):
        if last.issuperset(part):
            waits = {part_of[source] for node in part for source in graph.producer_indices[node]}
            found.setdefault((devices[part[0]], frozenset(waits - {index})), []).extend(part)
        else:
            others.append(part)
    return [*others, *found.values()]


def join_siblings(graph: Graph, parts: Parts, kinds: Sequence[object | None]) -> Parts:
    """Join `parts` of one kind in `graph` that read, and are read by, the same nodes.

    They have the same waits, so one run does for all. A part that only computes values for the next
    item joins any that reads the same; their assignments may then precede it. `kinds` are those of
    the nodes, None for nodes that stay apart.
    """
    part_of = {node: index for index, part in enumerate(parts) for node in part}
    reads: list[set[int]] = [set() for _ in parts]
    read_by: list[set[int]] = [set() for _ in parts]
    last = _find_last_assignments(graph)
    for node, sources in enumerate(graph.producer_indices):
        for source in sources:
            if part_of[source] != part_of[node]:
                reads[part_of[node]].add(source)
                if node not in last:
                    read_by[part_of[source]].add(node)
    found: dict[object, list[int]] = {}
    hosts: dict[object, list[int]] = {}
    guests: list[tuple[object, int]] = []
    for index, part in enumerate(parts):
        kind, before, after = kinds[part[0]], frozenset(reads[index]), frozenset(read_by[index])
        if kind is not None and not after and not _is_fetched(graph, part):
            guests.append(((kind, before), index))
            found[index] = []
            continue
        is_between = kind is not None and before and after
        key: object = (kind, before, after) if is_between else index
        found.setdefault(key, []).extend(part)
        hosts.setdefault((kind, before), found[key])
    for reading, index in guests:
        hosts.setdefault(reading, found[index]).extend(parts[index])
    return [sorted(part) for part in found.values() if part]


def _find_last_assignments(graph: Graph) -> set[int]:
    """Return the nodes that assign a value which no other node of `graph` reads."""
    found = {index for index, node in enumerate(graph.nodes) if node.op == ASSIGN}
    return found.difference(chain.from_iterable(graph.producer_indices))


def _is_fetched(graph: Graph, part: Sequence[int]) -> bool:
    return any(not graph.fetched.isdisjoint(graph.nodes[node].outputs) for node in part)


def extract_subgraphs(graph: Graph, devices: Sequence[str], parts: Parts) -> tuple[Subgraph, ...]:
    listed = [[graph.nodes[node] for node in part] for part in parts]
    used = [devices[part[0]] for part in parts]
    nodes = ([node.name for node in part] for part in listed)
    names = name_subgraphs(nodes, used, graph.name, len(graph.nodes))
    return tuple(
        Subgraph(index, device, graph.extract(part, name))
        for index, (part, device, name) in enumerate(zip(listed, used, names, strict=True))
    )


def find_components(
    producers: Sequence[Sequence[int]], devices: Sequence[object], following: Collection[int] = ()
) -> Parts:
    """Return the nodes of each subgraph, formed by early levels, from their `producers`.

    Nodes, each on one of `devices`, are in topological order; those in `following` follow from
    constants alone.
    """
    return _group(producers, devices, _compute_early(producers, devices, following))


def cut_freest(
    producers: Sequence[Sequence[int]], devices: Sequence[object], following: Collection[int] = ()
) -> Parts:
    """Variant of `find_components`, for the same arguments, with the fewest waits."""
    early = _compute_early(producers, devices, following)
    levels = [*map(add, early, _compute_late(producers, devices, early))]
    _raise_to_readers(levels, producers, devices, following)
    return _group(producers, devices, levels)


def _compute_early(
    producers: Sequence[Sequence[int]], devices: Sequence[object], following: Collection[int]
) -> list[int]:
    levels: list[int] = []
    for node, device in enumerate(devices):
        level = 0
        for producer in producers[node]:
            there = levels[producer] + (devices[producer] != device)
            level = there if there > level else level
        levels.append(level)
    _raise_to_readers(levels, producers, devices, following)
    return levels


def _raise_to_readers(
    levels: list[int],
    producers: Sequence[Sequence[int]],
    devices: Sequence[object],
    following: Collection[int],
) -> None:
    """Raise `levels` of nodes in `following` to those of their first readers.

    Such nodes follow from constants; `producers` and `devices` are those of all nodes. Each rule
    for levels needs it: the sum of two has its minimum at another reader than either.
    """
    if not following:
        return
    highest: dict[int, int] = {}
    for node in reversed(range(len(levels))):
        # From the end, so that the levels of its readers are final.
        levels[node] = highest.get(node, levels[node])
        for producer in producers[node]:
            if producer in following:
                there = levels[node] - (devices[producer] != devices[node])
                highest[producer] = min(highest.get(producer, there), there)


def _compute_late(
    producers: Sequence[Sequence[int]], devices: Sequence[object], early: Sequence[int]
) -> list[int]:
    levels = [max(early, default=0)] * len(devices)
    for node in reversed(range(len(devices))):
        for producer in producers[node]:
            there = levels[node] - (devices[producer] != devices[node])
            if there < levels[producer]:
                levels[producer] = there
    return levels


def _compute_in_order(devices: Sequence[object]) -> list[int]:
    levels, level = [], 0
    for node, device in enumerate(devices):
        level += node > 0 and device != devices[node - 1]
        levels.append(level)
    return levels


def _group(
    producers: Sequence[Sequence[int]], devices: Sequence[object], levels: Sequence[int]
) -> Parts:
    root = list(range(len(levels)))
    for node, level in enumerate(levels):
        for producer in producers[node]:
            if levels[producer] == level and devices[producer] == devices[node]:
                first, last = _find(root, producer), _find(root, node)
                if first != last:
                    # The first node is the root, so that parts keep the order of the graph.
                    root[max(first, last)] = min(first, last)
    roots = [_find(root, node) for node in range(len(levels))]
    groups = [(devices[node], levels[node]) for node in range(len(levels))]
    counts = Counter(groups[node] for node in set(roots))
    members: dict[object, list[int]] = {}
    for node, group in enumerate(groups):
        part = roots[node] if counts[group] <= MOST_APART else group
        members.setdefault(part, []).append(node)
    # Levels never fall along an edge, and components of a level are not connected.
    return sorted(members.values(), key=lambda nodes: levels[nodes[0]])


def _find(root: list[int], node: int) -> int:
    while root[node] != node:
        # Path halving.
        root[node] = root[root[node]]
        node = root[node]
    return node
