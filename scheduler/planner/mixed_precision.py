"""Plans with parts in float16, on the devices for which the user allows it.

Nodes are first assigned to devices as if all were float32; then nodes are converted to float16 and
stay on their devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ...devices.device import Device, check_support
from ...graph.core.ir import Graph, Node
from ...graph.passes.half import compute_in_half
from ...graph.passes.pipeline import Applied, run_passes
from ..errors import PlanError
from ..plans.plan import Plan
from ..plans.replicas import Groups, replace_ranges
from ..plans.request import PlanRequest
from ..shapes.sync_points import has_static_shapes
from .partition.choose import Choice, list_choices
from .prepare import Lengths

Precision: TypeAlias = "str | Mapping[str, str] | None"
"""``"float16"`` for all devices, or for some of them by name."""

DTYPES = ("float16", "float32")

MOST_TRIED = 3
"""Assignments to try while memory is too small."""

REASON = "converts to float16, or from it"


def check_precision(
    given: object, devices: Mapping[str, Device], replicas: Groups
) -> dict[str, str]:
    """Return by device the dtype that `given` has for it, or for its `replicas`: float16.

    Raises PlanError for an unknown dtype, or one not in `devices`.
    """
    if isinstance(given, str):
        given = dict.fromkeys(devices, given)
    if not isinstance(given, Mapping | None):
        raise _precision_error(given)
    found = {}
    for name, dtype in (given or {}).items():
        if dtype not in DTYPES:
            raise _precision_error(dtype)
        first = replace_ranges({"": name}, replicas)[""]
        if first not in devices:
            raise PlanError(
                f"precision names {name!r}, which is not one of the plan's devices",
                fix=f"name some of {', '.join(devices)}",
            )
        if dtype == "float16":
            found[first] = dtype
    return found


class Conversion(NamedTuple):
    """A graph to plan, with nodes converted to float16."""

    graph: Graph
    request: PlanRequest
    """For planning: all nodes stay on their assigned devices."""
    asked: PlanRequest
    """The user's request."""
    halved: Mapping[str, str]
    """Devices of the nodes that compute in float16 or convert."""
    first: Choice | None = None
    """The choice that assigned devices; None without conversion."""
    applied: tuple[Applied, ...] = ()

    def finish(self, plan: Plan) -> Plan:
        """Return the plan of the converted graph, adapted to the user's request."""
        plan = self._as_asked(plan)
        if self.first is None:
            return plan
        told = self.first.partition.reasons
        reasons = {
            name: told.get(name, REASON if name in self.halved else reason)
            for name, reason in plan.reasons.items()
        }
        decision = self.first.decision
        return replace(
            plan,
            partition=replace(plan.partition, reasons=reasons),
            # The first comparison, with the options of the present nodes.
            decision=replace(decision, ask=plan.decision.ask) if plan.decision else decision,
            applied=(*self.applied, *plan.applied),
        )

    def _as_asked(self, plan: Plan) -> Plan:
        asked, once = self.asked, plan.prologue
        if once is not None:
            once = replace(once, request=replace(once.request, pins=asked.pins))
        request = replace(
            plan.request, pins=asked.pins, precision=asked.precision, halved=dict(self.halved)
        )
        return replace(plan, request=request, prologue=once)


def convert_to_half(graph: Graph, request: PlanRequest, lengths: Lengths) -> Iterator[Conversion]:
    """Yield conversions of `graph` to float16, best first, if `request` allows any.

    The others serve if the first needs too much memory. `lengths` pick the shapes to judge by.
    """
    kept = replace(request, pins=request.kept)
    unchanged = Conversion(graph, kept, request, request.halved)
    shown = lengths.pick(graph, request) if request.precision else graph
    if not request.precision or not has_static_shapes(shown):
        yield unchanged
        return
    tried: list[Mapping[str, str]] = []
    for first in list_choices(shown, kept, is_static=True, template=lengths.template(graph)):
        assignment = first.partition.assignment
        if assignment in tried:
            continue
        tried.append(assignment)
        made, places, applied = _convert(graph, request, assignment)
        if places:
            pinned = replace(request, pins={**assignment, **places})
            yield Conversion(made, pinned, request, {**request.halved, **places}, first, applied)
        else:
            yield unchanged._replace(graph=made)
        if len(tried) == MOST_TRIED:
            return


def _convert(
    graph: Graph, request: PlanRequest, assignment: Mapping[str, str]
) -> tuple[Graph, dict[str, str], tuple[Applied, ...]]:
    places: dict[str, str] = {}

    def takes(around: Graph, node: Node, place: str) -> bool:
        return check_support(around, node, request.devices[place]).ok

    def convert_to_half(given: Graph, _: object) -> Graph:
        made = compute_in_half(given, assignment, request.precision, takes)
        places.update(made.places)
        return made.graph

    made, applied = run_passes(graph, (convert_to_half,))
    return made, places, applied


def _precision_error(given: object) -> PlanError:
    return PlanError(
        f"precision is {given!r}",
        fix="give 'float16', or map devices to it: precision={'cuda:0': 'float16'}",
    )
