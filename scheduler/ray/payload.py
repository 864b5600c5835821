"""The payload with which hosts open sessions: a plan, or a graph that they plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...devices.registry import find
from ...devices.worker.modules import Source, import_sources, list_node_sources
from ...graph.core.ir import Graph
from ...graph.core.nested import walk_nodes
from ...graph.formats.native import dump_bytes, load_bytes
from ...graph.values.tensor import Array
from ..errors import PlanError
from ..planner.api import plan as make_plan
from ..plans.plan import Plan
from ..reports.plan_file import dump_plan, read_plan
from ..reports.requirements import get_options

ORIGIN = "the plan that the pool sent"

_OF_THE_GRAPH = ("shapes", "bounds", "max_in_flight", "passes")
"""Arguments of `plan` that do not depend on devices."""


@dataclass(frozen=True, slots=True)
class SessionPayload:
    """A plan, or a graph with the arguments for planning it on hosts."""

    plan: Plan
    """The driver's plan, for inputs, outputs and the number of items in flight."""
    graph: Graph | None = None
    """The graph that hosts plan."""
    planning: Mapping[str, Any] | None = None
    """Their arguments of `plait.plan`."""

    def pack(self, put: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return the arguments of `unpack_plan`; `put` stores the largest one in the cluster."""
        data = dump_plan(self.plan) if self.graph is None else dump_bytes(self.graph)
        nodes = (node for _, _, node in walk_nodes(self.plan.fed))
        sources = dict.fromkeys(source for node in nodes for source in list_node_sources(node))
        # Plan files lack some options for safety; hosts trust their driver.
        options = {} if self.graph is not None else get_options(self.plan.prototypes)
        sent = put(np.frombuffer(data, np.uint8))
        return sent, [tuple(one) for one in sources], self.planning, options


def make_payload(
    model: Plan | Graph, devices: str | Sequence[str] | None, planning: Mapping[str, Any] | None
) -> SessionPayload:
    if isinstance(model, Plan):
        if devices is not None or planning is not None:
            raise PlanError(
                "a plan is for the devices that it was made for",
                fix="leave devices= and planning= out, or give a graph, which hosts plan",
            )
        if model.ends.devices:
            raise _on_devices_error()
        return SessionPayload(
            replace(model, source=None)
        )  # hosts know no tensors that passes removed
    if not isinstance(model, Graph):
        raise PlanError(
            f"replicas run a Plan or Graph, not a {type(model).__name__}",
            fix="cluster.replicas(plan(graph, devices=...))",
        )
    if devices is None:
        raise PlanError(
            "hosts are to plan this graph, and do not know for which devices",
            fix='give devices=["cuda:0", "cpu"], or a plan',
        )
    arguments = dict(planning or {})
    if arguments.get("inputs_on") or arguments.get("outputs_on"):
        raise _on_devices_error()
    known = {name: arguments[name] for name in _OF_THE_GRAPH if name in arguments}
    return SessionPayload(
        make_plan(model, "cpu", **known), model, {**arguments, "devices": devices}
    )


def unpack_plan(
    data: Array,
    sources: Sequence[Source],
    planning: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Plan:
    """Read the plan in `data`, for devices with `options`, or plan the graph by `planning`.

    Imports the modules of `sources` before.
    """
    import_sources([Source(*one) for one in sources])
    if planning is None:
        given = {name: find(name, found) for name, found in options.items()}
        return read_plan(memoryview(data), ORIGIN, given)
    return make_plan(load_bytes(memoryview(data), ORIGIN), **planning)


def _on_devices_error() -> PlanError:
    return PlanError(
        "arrays that are handed over or taken on devices do not travel to replicas",
        fix="plan without inputs_on and outputs_on",
    )
