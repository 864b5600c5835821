"""Plans of which parts compute in float16, on the devices for which the user allows it.

First nodes are given to devices as if all were float32, then what is to be float16 is rewritten and
stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ...devices.device import Device, support
from ...graph.ir import Graph, Node
from ...graph.passes import Applied, run_passes
from ...graph.passes.half import compute_in_half
from ..errors import PlanError
from ..plans.partition import Decision
from ..plans.plan import Plan
from ..plans.replicas import Groups, replace_ranges
from ..plans.request import PlanRequest
from ..shapes.sync_points import has_static_shapes
from .partition.choose import Choice, choices
from .prepare import Lengths

Precision: TypeAlias = "str | Mapping[str, str] | None"
"""``"float16"`` for all devices, or for some of them by name."""

DTYPES = ("float16", "float32")

MOST_TRIED = 3
"""Assignments, as long as there is too little memory."""

REASON = "converts to float16, or from it"


def checked_precision(
    given: object, devices: Mapping[str, Device], replicas: Groups
) -> dict[str, str]:
    """Return the devices that may compute in float16, with that dtype.

    Raises
    ------
    PlanError
        If a dtype or device is none.
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
    """A graph to plan, with what is to be float16 rewritten.

    Attributes
    ----------
    graph : Graph
    request : PlanRequest
        By which it is planned: all its nodes stay where they were given.
    asked : PlanRequest
        What the user asked for.
    halved : Mapping of str to str
        Where nodes run that compute in float16, and those that convert.
    first : Choice or None
        By what choice nodes have devices; None where nothing was converted.
    applied : tuple of Applied
    """

    graph: Graph
    request: PlanRequest
    asked: PlanRequest
    halved: Mapping[str, str]
    first: Choice | None = None
    applied: tuple[Applied, ...] = ()

    def finish(self, plan: Plan) -> Plan:
        """Return the plan of the graph, for what the user asked for."""
        plan = self._as_asked(plan)
        if self.first is None:
            return plan
        told = self.first.partition.reasons
        reasons = {
            name: told.get(name, REASON if name in self.halved else reason)
            for name, reason in plan.reasons.items()
        }
        return replace(
            plan,
            partition=replace(plan.partition, reasons=reasons),
            decision=_decided(self.first.decision, plan.decision),
            applied=(*self.applied, *plan.applied),
        )

    def _as_asked(self, plan: Plan) -> Plan:
        """Return a plan with the pins of the user alone."""
        asked, once = self.asked, plan.prologue
        if once is not None:
            once = replace(once, request=replace(once.request, pins=asked.pins))
        request = replace(
            plan.request, pins=asked.pins, precision=asked.precision, halved=dict(self.halved)
        )
        return replace(plan, request=request, prologue=once)


def convert_to_half(graph: Graph, request: PlanRequest, lengths: Lengths) -> Iterator[Conversion]:
    """Yield the graph in float16 where that is allowed and makes sense, the best way first.

    Others follow lest the first need too much memory.
    """
    kept = replace(request, pins=request.kept)
    unchanged = Conversion(graph, kept, request, request.halved)
    shown = lengths.pick(graph, request) if request.precision else graph
    if not request.precision or not has_static_shapes(shown):
        yield unchanged
        return
    tried: list[Mapping[str, str]] = []
    for first in choices(shown, kept, is_static=True, template=lengths.template(graph)):
        assignment = first.partition.assignment
        if assignment in tried:
            continue
        tried.append(assignment)
        made, places, applied = _converted(graph, request, assignment)
        if places:
            pinned = replace(request, pins={**assignment, **places})
            yield Conversion(made, pinned, request, {**request.halved, **places}, first, applied)
        else:
            yield unchanged._replace(graph=made)
        if len(tried) == MOST_TRIED:
            return


def _converted(
    graph: Graph, request: PlanRequest, assignment: Mapping[str, str]
) -> tuple[Graph, dict[str, str], tuple[Applied, ...]]:
    """Return the graph in float16 where that may be, and what is where it must stay."""
    places: dict[str, str] = {}

    def takes(around: Graph, node: Node, place: str) -> bool:
        return support(around, node, request.devices[place]).ok

    def convert_to_half(given: Graph, _: object) -> Graph:
        made = compute_in_half(given, assignment, request.precision, takes)
        places.update(made.places)
        return made.graph

    made, applied = run_passes(graph, (convert_to_half,))
    return made, places, applied


def _decided(first: Decision, then: Decision | None) -> Decision:
    """Return what was weighed first; what nodes take is that of the nodes that there are now."""
    return first if then is None else replace(first, ask=then.ask)


def _precision_error(given: object) -> PlanError:
    return PlanError(
        f"precision is {given!r}",
        fix="give 'float16', or map devices to it: precision={'cuda:0': 'float16'}",
    )
