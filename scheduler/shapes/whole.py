"""Control flow that runs inside a plan as one node, since its shapes do not depend on its course.

A small If then costs a node, instead of a boundary at which all later nodes wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ...devices.device import Device, check_support
from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import call_graph, draws, has_effects
from ...graph.core.whole import with_lengths_held
from ...graph.operators.control import CONTROL_FLOW, infer_nested_inputs, list_deciding_inputs
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.passes.captured_constants import with_constants_inside
from ...graph.values.errors import ShapeError
from ...graph.values.tensor import TensorSpec
from ..plans.request import Pins, list_pins
from .specialise import specialise
from .sync_points import has_static_shapes

SWITCH_SIZE = 4
"""The largest size of an input of integers or booleans that is tried as a switch, a constant."""


def list_switches(graph: Graph) -> list[str]:
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
    """Return `graph` with each If, Loop or Scan of known shapes as one node on one of `devices`.

    So are nodes of ONNX Runtime between which values decide lengths. `pins` choose the device; a
    node without one is not whole. Control flow that follows from the inputs `switches`, by default
    integers and flags, stays: with known switches it becomes plain nodes. With `folds`, constants
    inside are folded.
    """
    if not graph.is_static:
        graph = with_lengths_held(graph)
    if not any(node.op in CONTROL_FLOW for node in graph.nodes):
        return graph
    if all(device.capabilities.atomic_programs for device in devices.values()):
        switches = ()  # such devices gain nothing from plain nodes
    elif switches is None:
        switches = list_switches(graph)
    small = {name for name in switches if _is_small(graph.tensors[name])}
    follows = _find_following(graph, {*small, *graph.constants})
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if node.op not in CONTROL_FLOW:
            continue
        deciding = {
            name for name in list_deciding_inputs(node) if name and name not in graph.constants
        }
        waits = bool(deciding) and follows.issuperset(deciding)
        one = None if waits else _make_whole(graph, node, devices, pins, folds)
        nodes[index] = one or replace(node, attributes={**node.attributes, "whole": False})
    return graph.with_nodes(nodes)


def _is_small(spec: TensorSpec) -> bool:
    return not spec.is_static or spec.size <= SWITCH_SIZE


def _find_following(graph: Graph, known: set[str]) -> set[str]:
    for node in graph.nodes:
        if known.issuperset(filter(None, node.inputs)):
            known.update(node.outputs)
    return known


def _make_whole(
    graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins, folds: bool
) -> Node | None:
    node = with_constants_inside(node, graph.constants)
    call = graph.call(node)
    specs = [spec for spec in call.inputs if spec is not None]
    if has_effects(node) or draws(node) or not all(spec.is_static for spec in specs):
        return None
    try:
        results = infer_node(node, call)
        if not all(spec.is_static for spec in results):
            return None
        given = infer_nested_inputs(node.op, call, results)
        nested = {
            key: with_whole_nodes(
                specialise(call_graph(value, given), folds=folds), devices, {}, (), folds=folds
            )
            for key, value in node.attributes.items()
            if isinstance(value, Graph)
        }
    except ShapeError:  # may come from a branch that is never entered
        return None
    one = replace(node, attributes={**node.attributes, **nested, "whole": True})
    if not all(has_static_shapes(inner) for inner in nested.values()):
        return None
    able = (
        name
        for name in _list_devices(one, devices, pins)
        if check_support(graph, one, devices[name]).ok
    )
    return one if any(able) else None


def _list_devices(node: Node, devices: Mapping[str, Device], pins: Pins) -> Collection[str]:
    wanted = {pins[pattern] for pattern in list_pins(node, pins)}
    return devices if not wanted else wanted if len(wanted) == 1 else ()
