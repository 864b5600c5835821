"""The page: one HTML file that holds its data, its script and its style, and asks for nothing else.

Names in a plan come from files that are not trusted. The page holds them as JSON in which no
character can end the element or the line, and the script sets them as text, never as markup. A
Content-Security-Policy allows this script and this style, by their digests, and no connection. A
notebook shows the page in a frame, unless it is too large.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from ....graph.core.printing import format_bytes
from ....graph.formats.files import replace_file
from ....version import VERSION
from ...errors import PlanError
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

SCRIPTS = (
    "base.js",
    "canvas.js",
    "arrange.js",
    "graph_model.js",
    "prefixes.js",
    "search.js",
    "graph.js",
    "timeline.js",
    "arenas.js",
    "table.js",
    "tables.js",
    "details.js",
    "summary.js",
    "main.js",
)
"""Joined in this order."""

STREAM_ITEMS = 8
"""Items of the predicted stream."""
MOST_STEPS = 4_000
"""Limit for the steps of all its items."""

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""Characters that could end the element around the data. JSON escapes all beyond ASCII."""


def write_html(
    path: str | os.PathLike[str],
    plan: Plan | None = None,
    profile: Profile | None = None,
    simulation: Simulation | None = None,
) -> None:
    """Write a report to `path` as one HTML file, which any browser opens without a network.

    Parameters
    ----------
    plan : Plan, optional
        Shown with its graph, memory, costs and reasons, and simulated unless `simulation` is given.
    profile : Profile, optional
        Shown with its measured times.
    simulation : Simulation, optional
        A prediction to show instead of the one for the plan's own devices.

    Raises
    ------
    PlanError
        If there is nothing to show, or the file cannot be written.
    """
    if plan is None and profile is None and simulation is None:
        raise PlanError("there is nothing to report", fix="give a plan, a profile or both")
    for one, kind in ((plan, Plan), (profile, Profile), (simulation, Simulation)):
        if not isinstance(one, kind | None):
            raise PlanError(
                f"expected a {kind.__name__}, got {type(one).__name__}",
                fix="give what plan(), Session.profile() and simulate() returned",
            )
    text = render_page(collect_document(plan, profile, simulation))
    replace_file(path, [text.encode()], PlanError)


def render_page(values: Mapping[str, Any]) -> str:
    script = _join_scripts()
    style = _read_asset("report.css")
    return Template(_read_asset("report.html")).substitute(
        title=_escape_text(f"{values['title']} - plait"),
        script_digest=_hash_text(script),
        style_digest=_hash_text(style),
        style=style,
        data=embed_json(values),
        script=script,
    )


def embed_json(values: Mapping[str, Any]) -> str:
    """Convert plain `values` to JSON that is safe inside an element of a page."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _join_scripts() -> str:
    parts = "\n".join(_read_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _hash_text(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escape_text(text: str) -> str:
    """Escape `text` as ASCII markup; browsers replace lone surrogates."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


MOST_NODES = 20_000
MOST_BYTES = 5_000_000
"""Limit for a frame: a notebook stores the page with each output that shows it."""

HEIGHT = 640
"""Pixels of the frame; the page scrolls inside of it."""


def render_frame(shown: Plan | Profile | Simulation) -> str:
    """Return a frame with the page of `shown`, or a hint how to save a page that is too large.

    The frame is sandboxed: names in a plan come from files, and the notebook has the user's rights.
    """
    plan = shown if isinstance(shown, Plan) else getattr(shown, "plan", None)
    if plan is not None and len(plan.graph.nodes) > MOST_NODES:
        return _render_hint(shown, f"{len(plan.graph.nodes):,} nodes")
    profile = shown if isinstance(shown, Profile) else None
    simulation = shown if isinstance(shown, Simulation) else None
    text = render_page(collect_document(plan, profile, simulation))
    if len(text) > MOST_BYTES:
        return _render_hint(shown, format_bytes(len(text)))
    return (
        f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts" title="plait" '
        f'style="width: 100%; height: {HEIGHT}px; border: 1px solid #8888"></iframe>'
    )


def _render_hint(shown: Plan | Profile | Simulation, size: str) -> str:
    how = "save_html('page.html')" if not isinstance(shown, Simulation) else "plan.save_html(...)"
    text = f"{shown!r}: {size} are too many for a notebook; .{how} writes the page to a file"
    return f"<p>{html.escape(text)}</p>"


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
