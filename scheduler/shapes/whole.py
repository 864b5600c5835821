"""Control flow that runs inside of a plan, as one node: its shapes are the same whatever happens.

A small If then costs a node, not a boundary that all that follows has to wait at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ...devices.device import Device, support
from ...graph.captured_constants import with_constants_inside
from ...graph.errors import ShapeError
from ...graph.infer import infer_node
from ...graph.ir import Graph, Node
from ...graph.nested import called, draws, has_effects
from ...graph.operators.control import CONTROL_FLOW, deciding_inputs, handed
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.tensor import TensorSpec
from ...graph.whole import with_lengths_held
from ..plans.request import Pins, list_pins
from .specialise import specialise
from .sync_points import has_static_shapes

SWITCH_SIZE = 4
"""Integers and booleans up to this many, fed, are tried as switches: as constants of the plan."""


def switches_of(graph: Graph) -> list[str]:
    """Return the inputs whose values are tried as constants of the plan, where they are small."""
    return [
        name
        for name in graph.inputs
        if graph.tensors[name].dtype.kind in "biu" and name != RANDOM_KEY
    ]


def with_whole_nodes(
    graph: Graph,
    devices: Mapping[str, Device],
    pins: Pins,
    switches: Collection[str] | None = None,
    *,
    folds: bool = True,
) -> Graph:
    """If, Loop or Scan of known shapes, on a device that can run it -> the same, as one node.

    So are nodes of ONNX Runtime's between which values decide lengths.

    Those that follow from switches stay: once these are known, they are no control flow any more,
    and their nodes are weighed one by one. And those that were one node before, where there is no
    such device now, are one no longer.
    """
    if not graph.is_static:
        graph = with_lengths_held(graph)
    if not any(node.op in CONTROL_FLOW for node in graph.nodes):
        return graph
    if all(device.capabilities.atomic_programs for device in devices.values()):
        switches = ()  # nothing is gained by nodes of their own
    elif switches is None:
        switches = switches_of(graph)
    small = {name for name in switches if _is_small(graph.tensors[name])}
    follows = _following(graph, {*small, *graph.constants})
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if node.op not in CONTROL_FLOW:
            continue
        deciding = {name for name in deciding_inputs(node) if name and name not in graph.constants}
        waits = bool(deciding) and follows.issuperset(deciding)
        one = None if waits else _as_one(graph, node, devices, pins, folds)
        nodes[index] = one or replace(node, attributes={**node.attributes, "whole": False})
    read = {name for node in nodes for name in node.inputs}.union(graph.inputs, graph.outputs)
    written = {name for node in nodes for name in node.outputs}
    return replace(
        graph,
        nodes=tuple(nodes),
        tensors={n: s for n, s in graph.tensors.items() if n in read or n in written},
        constants={n: value for n, value in graph.constants.items() if n in read},
    )


def _is_small(spec: TensorSpec) -> bool:
    return not spec.is_static or spec.size <= SWITCH_SIZE


def _following(graph: Graph, known: set[str]) -> set[str]:
    """Return what follows from some tensors alone."""
    for node in graph.nodes:
        if known.issuperset(filter(None, node.inputs)):
            known.update(node.outputs)
    return known


def _as_one(
    graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins, folds: bool
) -> Node | None:
    """Return a node that a device can run as it is; None if there is none."""
    node = with_constants_inside(node, graph.constants)
    call = graph.call(node)
    specs = [spec for spec in call.inputs if spec is not None]
    if has_effects(node) or draws(node) or not all(spec.is_static for spec in specs):
        return None
    try:
        results = infer_node(node, call)
        if not all(spec.is_static for spec in results):
            return None
        given = handed(node.op, call, results)
        nested = {
            key: with_whole_nodes(
                specialise(called(value, given), folds=folds), devices, {}, (), folds=folds
            )
            for key, value in node.attributes.items()
            if isinstance(value, Graph)
        }
    except ShapeError:  # said of what is never entered, it is no mistake
        return None
    one = replace(node, attributes={**node.attributes, **nested, "whole": True})
    if not all(has_static_shapes(inner) for inner in nested.values()):
        return None
    able = (name for name in _places(one, devices, pins) if support(graph, one, devices[name]).ok)
    return one if any(able) else None


def _places(node: Node, devices: Mapping[str, Device], pins: Pins) -> Collection[str]:
    """Return the devices that a node may go to: those of all pins on it, and on what it holds."""
    wanted = {pins[pattern] for pattern in list_pins(node, pins)}
    return devices if not wanted else wanted if len(wanted) == 1 else ()
