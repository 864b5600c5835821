"""Devices of a plan that may get replicas automatically, or why none may."""

from __future__ import annotations

from ....devices.device import Scaling
from ....devices.kinds import get_kind
from ....devices.memory import HOST
from ....graph.core.ir import Graph
from ....graph.core.nested import acts_outside, walk_nodes
from ....graph.operators.item_order import find_order
from ...costs.host import is_on_host
from ...plans.replicas import Groups, list_ranges
from ...plans.request import ON_HOST, PlanRequest


def explain_never(graph: Graph, request: PlanRequest, replicas: Groups = ()) -> str:
    """Return why no partition of `graph` for `request` gets replicas; empty if some may.

    It has the given `replicas` already.
    """
    if replicas:
        return "the devices name ranges"
    if next(list_ranges("", request.max_in_flight), None) is None:
        return "there is one core, or one item under way at a time"
    if request.ends != ON_HOST or request.memory_limits:
        return "memory is limited, or inputs or outputs are on a device"
    acting = [node for node in graph.nodes if acts_outside(node)]
    if (unordered := next((node for node in acting if not find_order(node)), None)) is not None:
        return f"{unordered} has effects, whose order would be lost"
    if len({node.op for node in acting}) > 1 and not all(node.operator.ordered for node in acting):
        return f"{acting[0]} and {acting[1]} have effects, and could run at the same time"
    owning = (node for _, _, node in walk_nodes(graph) if node.operator.owns)
    if (owner := next(owning, None)) is not None:
        return f"{owner} is an instance of a class, and each replica would have its own"
    return "" if list_scaling(request) else "no device may have replicas whose programs scale"


def list_scaling(request: PlanRequest) -> list[str]:
    """Return devices of `request` that may have replicas, and gain by more cores."""
    return [
        name
        for name, device in request.offered.devices.items()
        if isinstance(device, Scaling) and is_replicable(name, request)
    ]


def is_replicable(name: str, request: PlanRequest) -> bool:
    device, told = request.devices[name], name in request.given or name in request.pins.values()
    offers = device.capabilities
    is_here = isinstance(device, Scaling) or (offers.runs_python and offers.memory == HOST)
    is_numbered = name != get_kind(name)
    return is_here and is_on_host(device) and not told and not is_numbered
