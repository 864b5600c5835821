"""Records of a plan in a file, beside its graph."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeAlias, get_type_hints

from ...graph.formats.records import describe_layout
from ...graph.passes import OPTIONAL_PASSES, PASSES
from ...graph.passes.pipeline import Pass
from ...graph.values.errors import ParseError
from ..costs.costs import Costs
from ..costs.costs_file import decode, encode
from ..errors import PlanError
from ..plans.partition import Candidate, Decision, Option
from ..plans.plan import Plan
from ..plans.request import PlanRequest
from .requirements import AGAIN, Requirements
from .restore import SavedSubgraph

_NO_RECORDS = frozenset(
    {
        "graph",
        "request",
        "partition",
        "placement",
        "passes",
        "decision",
        "template",
        "prologue",
        "source",
        "stages",
    }
)
"""Fields of `Plan` that `Decided` or the requirements replace."""

_FOLLOWING = frozenset({"devices", "given", "costs", "options", "apart", "names"})
"""Fields of `PlanRequest` that follow from the requirements and from other fields."""

Options: TypeAlias = Mapping[str, tuple[Option, ...]]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A `Decision` with its options as values; a `Decision` computes them on demand."""

    strategy: str
    objective: str
    chosen: str
    why: str
    candidates: tuple[Candidate, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class Decided:
    """Stored form of the fields of a `Plan` that are not records themselves."""

    assignment: Mapping[str, str]
    reasons: Mapping[str, str]
    """See `Partition`."""
    groups: tuple[SavedSubgraph, ...]
    """The subgraphs."""
    prologue: Mapping[str, str]
    """Devices of the nodes of the prologue."""
    passes: tuple[str, ...]
    """By name."""
    costs: str
    """Content of a file of costs."""
    factors: Mapping[str, float]
    """Factors of the costs, which that text lacks."""
    decision: Weighed | None


@cache
def list_plan_fields() -> dict[str, Any]:
    return _list_fields(Plan, _NO_RECORDS)


@cache
def list_request_fields() -> dict[str, Any]:
    """Return the types of the stored fields of `PlanRequest`, by name."""
    return _list_fields(PlanRequest, _FOLLOWING)


def _list_fields(record: type[Plan] | type[PlanRequest], but: frozenset[str]) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {one.name: hints[one.name] for one in fields(record) if one.name not in but}


@cache
def hash_layout() -> str:
    """Return a digest of the definitions of all records in a file."""
    stored = {**list_plan_fields(), **list_request_fields()}
    described = map(describe_layout, (*stored.values(), Requirements, Decided))
    return hashlib.sha256(" ".join((*stored, *described)).encode()).hexdigest()[:16]


def record_decisions(plan: Plan) -> Decided:
    """Record the decisions in `plan`; PlanError if a pass is not one of plait's."""
    strange = [
        getattr(one, "__name__", repr(one))
        for one in plan.passes
        if one not in (*PASSES, *OPTIONAL_PASSES)
    ]
    if strange:
        raise PlanError(
            f"the plan was made with passes that are not plait's: {', '.join(strange)}",
            fix="plan(plait.passes.simplify(graph, passes), passes=()), and save that",
        )
    place_of = {node.name: index for index, node in enumerate(plan.graph.nodes)}
    groups = (
        SavedSubgraph(one.name, one.device, tuple(place_of[node.name] for node in one.graph.nodes))
        for one in plan.subgraphs
    )
    names = {one: name for name, one in _list_passes().items()}
    return Decided(
        plan.assignment,
        plan.reasons,
        tuple(groups),
        {} if plan.prologue is None else plan.prologue.assignment,
        tuple(names[one] for one in plan.passes),
        _write_costs(plan.costs),
        plan.costs.factors,
        None if plan.decision is None else _record_decision(plan.decision),
    )


def read_passes(stored: Decided, at: str) -> tuple[Pass, ...]:
    """Look up the passes in `stored`, which must be plait's; errors name the place `at`."""
    known = _list_passes()
    unknown = [name for name in stored.passes if name not in known]
    if unknown:
        raise ParseError(f"there are no passes {', '.join(unknown)}", at=at, fix=AGAIN)
    return tuple(known[name] for name in stored.passes)


def read_costs(stored: Decided, at: str) -> Costs:
    """Parse the costs in `stored`; errors name the place `at`."""
    known = Costs(**vars(decode(stored.costs.encode(), at)))
    for name, factor in stored.factors.items():
        if not 0 < factor < math.inf:
            raise ParseError(f"the factor of {name!r} is {factor}", at=at, fix=AGAIN)
    return replace(known, factors=stored.factors)


def read_decision(stored: Decided) -> Decision | None:
    if (weighed := stored.decision) is None:
        return None
    return Decision(
        weighed.strategy,
        weighed.objective,
        weighed.chosen,
        weighed.why,
        weighed.candidates,
        lambda: weighed.options,
    )


def _record_decision(decision: Decision) -> Weighed:
    parts = decision.strategy, decision.objective, decision.chosen, decision.why
    return Weighed(*parts, decision.candidates, decision.options)


def _write_costs(costs: Costs) -> str:
    """Return `costs` as JSON, without `supports`: devices answer that, not their models."""
    models = {
        name: replace(model, supports=None) if callable(model.supports) else model
        for name, model in costs.models.items()
    }
    return json.dumps(encode(replace(costs, models=models)))


def _list_passes() -> dict[str, Pass]:
    return {one.__name__: one for one in (*PASSES, *OPTIONAL_PASSES)}
