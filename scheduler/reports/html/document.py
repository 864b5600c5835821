"""All that the page shows, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....version import VERSION
from ...planner.joined_stages import planned_ahead
from ...planner.simulate import simulate
from ...plans.plan import Plan
from ...plans.variants import variant
from ...profile import Profile
from ...simulation.simulation import Simulation
from .arenas import arenas
from .columns import Texts
from .drawing import drawing
from .nodes import node_table
from .summary import decision, plan_facts, prediction_facts, profile_figures, verdict
from .timelines import measured, predicted

STREAM_ITEMS = 8
"""Items of the stream that is predicted."""
MOST_STEPS = 4_000
"""Of all its items together, about."""


def document(
    plan: Plan | None, profile: Profile | None, simulation: Simulation | None
) -> dict[str, Any]:
    """Return what the page shows; what there is nothing to say about is None."""
    texts = Texts()
    if simulation is not None:
        plan = plan or simulation.plan
    plan = planned_ahead(plan) if plan is not None else None
    simulations = [simulation] if simulation is not None else list(_simulations(plan))
    timelines = list(_timelines(plan, profile, simulations, texts))
    facts = plan_facts(plan) if plan is not None else []
    facts += [fact for one in simulations for fact in prediction_facts(one)]
    return {
        "version": VERSION,
        "title": plan.graph.name if plan is not None else "profile",
        "devices": _devices(plan, profile),
        "replicas": _replicas(plan) if plan is not None else {},
        "facts": facts,
        "verdict": verdict(plan, profile, simulations) if plan is not None and profile else None,
        "decision": decision(plan) if plan is not None else None,
        "graph": drawing(plan, texts) if plan is not None else None,
        "nodes": node_table(plan, profile, simulation.costs if simulation else None, texts),
        "step_tables": _shared(timelines),
        "timelines": timelines,
        "arenas": arenas(plan, texts) if plan is not None else None,
        "profile": profile_figures(profile) if profile is not None else None,
        "texts": texts.listed,
    }


def _simulations(plan: Plan | None) -> Iterator[Simulation]:
    """Yield what one item is predicted to take, and a stream."""
    if plan is None or not plan.is_static:
        return
    yield simulate(plan)
    items = min(STREAM_ITEMS, MOST_STEPS // max(len(plan.steps), 1))
    if items > 1:
        yield simulate(plan, items=items)


def _timelines(
    plan: Plan | None, profile: Profile | None, simulations: Sequence[Simulation], texts: Texts
) -> Iterator[dict[str, Any]]:
    """Yield what is predicted and what was measured."""
    subgraphs = dict(_subgraphs(plan)) if plan is not None else {}
    for simulation in simulations:
        yield predicted(simulation, subgraphs, texts)
    timeline = measured(profile, subgraphs, texts) if profile is not None else None
    if timeline is not None:
        yield timeline


def _subgraphs(plan: Plan) -> Iterator[tuple[str, int]]:
    """Yield the names of subgraphs, on replicas too, and their places."""
    for index in range(plan.variants):
        yield from ((one.name, one.index) for one in variant(plan, index).subgraphs)


def _shared(timelines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the steps of each timeline by the number of a table; return the tables."""
    tables: list[dict[str, Any]] = []
    for timeline in timelines:
        if timeline["steps"] not in tables:
            tables.append(timeline["steps"])
        timeline["steps"] = tables.index(timeline["steps"])
    return tables


def _replicas(plan: Plan) -> dict[str, str]:
    """Return the devices that do what another one is planned to do, with the name of that."""
    return {name: first for first, *others in plan.replicas for name in others}


def _devices(plan: Plan | None, profile: Profile | None) -> list[str]:
    """Return the devices, in the order of their colours."""
    names = dict.fromkeys(plan.devices if plan is not None else ())
    names.update(dict.fromkeys(plan.assignment.values() if plan is not None else ()))
    batches = [batch.record for batch in profile.batches] if profile is not None else []
    for record in [*profile.records, *batches] if profile is not None else ():
        names.update(dict.fromkeys(span.step.device for span in record.spans()))
    return list(names)
