"""The content of the page as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....version import VERSION
from ...planner.joined_stages import join_if_possible
from ...planner.simulate import simulate
from ...plans.plan import Plan
from ...plans.variants import make_variant
from ...profile import Profile
from ...simulation.simulation import Simulation
from .arenas import list_arenas
from .columns import Texts
from .drawing import draw_graph
from .nodes import list_nodes
from .summary import (
    compare_prediction,
    iterate_plan_facts,
    list_prediction_facts,
    summarize_decision,
    summarize_profile,
)
from .timelines import make_measured_timeline, make_predicted_timeline

STREAM_ITEMS = 8
"""Items of the predicted stream."""
MOST_STEPS = 4_000
"""Limit for the steps of all its items."""


def collect_document(
    plan: Plan | None, profile: Profile | None, simulation: Simulation | None
) -> dict[str, Any]:
    """Return sections on `plan`, `profile` and `simulation` by name; None where inapplicable."""
    texts = Texts()
    if simulation is not None:
        plan = plan or simulation.plan
    plan = join_if_possible(plan) if plan is not None else None
    simulations = [simulation] if simulation is not None else list(_simulate_plan(plan))
    timelines = list(_make_timelines(plan, profile, simulations, texts))
    facts = [*iterate_plan_facts(plan)] if plan is not None else []
    facts += [fact for one in simulations for fact in list_prediction_facts(one)]
    replicas = plan.replicas if plan is not None else ()
    return {
        "version": VERSION,
        "title": plan.graph.name if plan is not None else "profile",
        "devices": _list_devices(plan, profile),
        # The device that each further replica stands for.
        "replicas": {name: first for first, *others in replicas for name in others},
        "facts": facts,
        "verdict": compare_prediction(plan, profile, simulations)
        if plan is not None and profile
        else None,
        "decision": summarize_decision(plan) if plan is not None else None,
        "graph": draw_graph(plan, texts) if plan is not None else None,
        "nodes": list_nodes(plan, profile, simulation.costs if simulation else None, texts),
        "step_tables": _share_step_tables(timelines),
        "timelines": timelines,
        "arenas": list_arenas(plan, texts) if plan is not None else None,
        "profile": summarize_profile(profile) if profile is not None else None,
        "texts": texts.listed,
    }


def _simulate_plan(plan: Plan | None) -> Iterator[Simulation]:
    if plan is None or not plan.is_static:
        return
    yield simulate(plan)
    items = min(STREAM_ITEMS, MOST_STEPS // max(len(plan.steps), 1))
    if items > 1:
        yield simulate(plan, items=items)


def _make_timelines(
    plan: Plan | None, profile: Profile | None, simulations: Sequence[Simulation], texts: Texts
) -> Iterator[dict[str, Any]]:
    subgraphs = dict(_enumerate_subgraphs(plan)) if plan is not None else {}
    for simulation in simulations:
        yield make_predicted_timeline(simulation, subgraphs, texts)
    timeline = make_measured_timeline(profile, subgraphs, texts) if profile is not None else None
    if timeline is not None:
        yield timeline


def _enumerate_subgraphs(plan: Plan) -> Iterator[tuple[str, int]]:
    for index in range(plan.variants):
        yield from ((one.name, one.index) for one in make_variant(plan, index).subgraphs)


def _share_step_tables(timelines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    for timeline in timelines:
        if timeline["steps"] not in tables:
            tables.append(timeline["steps"])
        timeline["steps"] = tables.index(timeline["steps"])
    return tables


def _list_devices(plan: Plan | None, profile: Profile | None) -> list[str]:
    names = dict.fromkeys(plan.devices if plan is not None else ())
    names.update(dict.fromkeys(plan.assignment.values() if plan is not None else ()))
    batches = [batch.record for batch in profile.batches] if profile is not None else []
    for record in [*profile.records, *batches] if profile is not None else ():
        names.update(dict.fromkeys(span.step.device for span in record.spans()))
    return list(names)
