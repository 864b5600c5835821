"""Values that follow from constants alone, in graphs with open lengths.

A plan of known lengths computes them in its prologue when it is opened. Plans for lengths as they
come would each compute them again, or per item. So they are computed once, when a session opens,
and are constants in all of these plans.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TypeAlias

from ...devices.evaluating import can_evaluate, evaluate
from ...devices.host import read_physical_memory
from ...graph.core.infer import asking
from ...graph.core.ir import Graph, Node, make_call
from ...graph.values.tensor import Array
from ..plans.plan import Plan
from ..plans.request import find_pin
from .prologue import split_prologue

SHARE = 0.25
"""The share of the host's memory that values may take; larger ones are computed per item."""

Key: TypeAlias = tuple[int, tuple[tuple[str, str], ...]]
"""The identity of a graph, and the pins."""

_known: dict[Key, tuple[weakref.ref[Graph], Graph]] = {}
"""Graphs with their values as constants, by the graph without."""


def list_known_nodes(plan: Plan) -> tuple[Node, ...]:
    """Return the nodes of `plan`, which has open shapes, that run once, before its first item.

    The list is empty with limits of memory: only plans of known lengths check memory.
    """
    if plan.is_static or plan.request.memory_limits:
        return ()
    parts = split_prologue(plan.graph)
    if parts is None:
        return ()
    once = parts.prologue
    pins, unknown = plan.request.pins, set[str]()
    for node in once.nodes:
        # Numpy may lack a kernel, or a pin may ask for another device.
        here = can_evaluate(node.op) and find_pin(node, pins) in (None, "cpu")
        if not here or not unknown.isdisjoint(node.inputs):
            unknown.update(filter(None, node.outputs))
    nbytes = sum(spec.nbytes for spec in once.tensors.values())
    if nbytes > SHARE * (read_physical_memory() or nbytes / SHARE):
        return ()
    return tuple(node for node in once.nodes if unknown.isdisjoint(node.outputs))


def evaluate_known(plan: Plan) -> Plan:
    """Return `plan` with a graph in which constants replace the nodes that run once.

    The graph and the request are there to plan by: the partition is not for that graph. Blocks, so
    call it on a thread.
    """
    graph = plan.graph
    key = id(graph), tuple(sorted(plan.request.pins.items()))
    found = _known.get(key)
    if found is not None and found[0]() is graph:
        return replace(plan, graph=found[1])
    nodes = list_known_nodes(plan)
    if not nodes:
        return plan
    made = _evaluate(graph, nodes)
    _known[key] = weakref.ref(graph, lambda _: _known.pop(key, None)), made
    return replace(plan, graph=made)


def _evaluate(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    values: dict[str, Array] = dict(graph.constants)
    for node in nodes:
        if all(name in values for name in node.inputs if name):
            call = make_call(node, graph.tensors, values)
            with asking(node, call):
                values.update(evaluate(node, call, graph.output_specs(node)) or {})
    left = [node for node in graph.nodes if values.keys().isdisjoint(filter(None, node.outputs))]
    return graph.with_nodes(left, values)
