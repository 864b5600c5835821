"""Plans of which parts compute in float16, on the devices for which the user allows it.

First nodes are given to devices as if all were float32, then what is to be float16 is rewritten and
stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ...devices.device import Device, support
from ...graph.ir import Graph, Node
from ...graph.passes import Applied, run_passes
from ...graph.passes.half import compute_in_half
from ..errors import DoesNotFitError, PlanError
from ..plans.decision import Decision
from ..plans.replicas import Groups, without_ranges
from ..plans.request import PlanRequest
from ..shapes.sync_points import has_static_shapes
from .partition.choose import Choice
from .partition.strategies import choices

if TYPE_CHECKING:
    from ..plans.plan import Plan

Make: TypeAlias = "Callable[[Graph, PlanRequest], Plan]"
"""Plans a graph."""

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
        raise _no_precision(given)
    found = {}
    for name, dtype in (given or {}).items():
        if dtype not in DTYPES:
            raise _no_precision(dtype)
        first = without_ranges({"": name}, replicas)[""]
        if first not in devices:
            raise PlanError(
                f"precision names {name!r}, which is not one of the plan's devices",
                fix=f"name some of {', '.join(devices)}",
            )
        if dtype == "float16":
            found[first] = dtype
    return found


def with_half(
    graph: Graph,
    request: PlanRequest,
    make: Make,
    shown: Graph | None = None,
) -> Plan:
    """Return the plan of a graph, in float16 where that is allowed and makes sense.

    Parameters
    ----------
    graph : Graph
    request : PlanRequest
    make : callable
        Plans a graph.
    shown : Graph, optional
        The graph for the shapes by which nodes are given to devices, where `graph` has symbols.
    """
    asked = replace(request, pins=request.kept)
    decided = graph if shown is None else shown
    if not request.precision or not has_static_shapes(decided):
        return _as_asked(make(graph, asked), request, request.halved)
    refusal: DoesNotFitError | None = None
    tried: list[Mapping[str, str]] = []
    template = None if shown is None else graph
    for first in choices(decided, asked, is_static=True, template=template):
        if first.partition.assignment in tried:
            continue
        tried.append(first.partition.assignment)
        try:
            return _by_choice(graph, request, make, first)
        except DoesNotFitError as error:
            refusal = refusal or error
        if len(tried) == MOST_TRIED:
            break
    assert refusal is not None, "there is a choice"
    raise refusal


def _by_choice(graph: Graph, request: PlanRequest, make: Make, first: Choice) -> Plan:
    """Return the plan of a graph whose nodes stay where a choice has them."""
    graph, places, applied = _converted(graph, request, first.partition.assignment)
    halved = {**request.halved, **places}
    if not places:
        asked = replace(request, pins=request.kept)
        return _as_asked(make(graph, asked), request, halved)
    pins = {**first.partition.assignment, **places}
    plan = _as_asked(make(graph, replace(request, pins=pins)), request, halved)
    reasons = {
        name: first.partition.reasons.get(name, REASON if name in places else reason)
        for name, reason in plan.reasons.items()
    }
    return replace(
        plan,
        partition=replace(plan.partition, reasons=reasons),
        decision=_decided(first.decision, plan.decision),
        applied=(*applied, *plan.applied),
    )


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


def _as_asked(plan: Plan, request: PlanRequest, halved: Mapping[str, str]) -> Plan:
    """Return a plan with the pins of the user alone."""
    once = plan.prologue
    if once is not None:
        once = replace(once, request=replace(once.request, pins=request.pins))
    asked = replace(
        plan.request, pins=request.pins, precision=request.precision, halved=dict(halved)
    )
    return replace(plan, request=asked, prologue=once)


def _no_precision(given: object) -> PlanError:
    return PlanError(
        f"precision is {given!r}",
        fix="give 'float16', or map devices to it: precision={'cuda:0': 'float16'}",
    )
