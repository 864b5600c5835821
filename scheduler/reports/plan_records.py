"""Records of a plan in a file, beside its graph."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeAlias, get_type_hints

from ...graph.errors import ParseError
from ...graph.formats.records import layout_of
from ...graph.passes import OPTIONAL_PASSES, PASSES, Pass
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
"""The fields of a Plan that are not stored as they are."""

_FOLLOWING = frozenset(
    {"devices", "given", "costs", "fuses_chains", "writes_out", "apart", "names"}
)
"""The fields of a request that are not: devices are required, the rest follows from others."""

Options: TypeAlias = Mapping[str, tuple[Option, ...]]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A `Decision`, with its options in place of what returns them."""

    strategy: str
    objective: str
    chosen: str
    why: str
    candidates: tuple[Candidate, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class Decided:
    """What stands in a file for the fields of a Plan that are no records.

    Attributes
    ----------
    assignment, reasons : Mapping of str to str
        As in the partition.
    groups : tuple of SavedSubgraph
        The subgraphs.
    prologue : Mapping of str to str
        The devices of what runs once.
    passes : tuple of str
        By name.
    costs : str
        As the text of a file of costs.
    factors : Mapping of str to float
        Of the costs; no part of that text.
    decision : Weighed or None
    """

    assignment: Mapping[str, str]
    reasons: Mapping[str, str]
    groups: tuple[SavedSubgraph, ...]
    prologue: Mapping[str, str]
    passes: tuple[str, ...]
    costs: str
    factors: Mapping[str, float]
    decision: Weighed | None


@cache
def kinds() -> dict[str, Any]:
    """Return the types of the fields of a Plan that are stored as they are."""
    return _kinds(Plan, _NO_RECORDS)


@cache
def asked_kinds() -> dict[str, Any]:
    """Return the types of the fields of a PlanRequest that are."""
    return _kinds(PlanRequest, _FOLLOWING)


def _kinds(record: type[Plan] | type[PlanRequest], but: frozenset[str]) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {one.name: hints[one.name] for one in fields(record) if one.name not in but}


@cache
def layout() -> str:
    """Return a digest that changes whenever the records in a file do."""
    stored = {**kinds(), **asked_kinds()}
    described = map(layout_of, (*stored.values(), Requirements, Decided))
    return hashlib.sha256(" ".join((*stored, *described)).encode()).hexdigest()[:16]


def decided(plan: Plan) -> Decided:
    """Return what a file says of a plan beside the fields in `kinds`.

    Raises
    ------
    PlanError
        If a pass is not one of plait's.
    """
    strange = [
        getattr(one, "__name__", repr(one))
        for one in plan.passes
        if one not in (*PASSES, *OPTIONAL_PASSES)
    ]
    if strange:
        raise PlanError(
            f"the plan was made with passes that are not plait's: {', '.join(strange)}",
            fix="plan(plait.graph.passes.simplify(graph, passes), passes=()), and save that",
        )
    place_of = {node.name: index for index, node in enumerate(plan.graph.nodes)}
    groups = (
        SavedSubgraph(one.name, one.device, tuple(place_of[node.name] for node in one.graph.nodes))
        for one in plan.subgraphs
    )
    names = {one: name for name, one in _passes().items()}
    return Decided(
        plan.assignment,
        plan.reasons,
        tuple(groups),
        {} if plan.prologue is None else plan.prologue.assignment,
        tuple(names[one] for one in plan.passes),
        _text(plan.costs),
        plan.costs.factors,
        None if plan.decision is None else _weighed(plan.decision),
    )


def passes_of(stored: Decided, at: str) -> tuple[Pass, ...]:
    """Return the passes that a file names; raise ParseError for others than plait's."""
    known = _passes()
    unknown = [name for name in stored.passes if name not in known]
    if unknown:
        raise ParseError(f"there are no passes {', '.join(unknown)}", at=at, fix=AGAIN)
    return tuple(known[name] for name in stored.passes)


def costs_of(stored: Decided, at: str) -> Costs:
    """Return the costs in a file; raise ParseError if they are damaged."""
    known = Costs(**vars(decode(stored.costs.encode(), at)))
    for name, factor in stored.factors.items():
        if not 0 < factor < math.inf:
            raise ParseError(f"the factor of {name!r} is {factor}", at=at, fix=AGAIN)
    return replace(known, factors=stored.factors)


def decision_of(stored: Decided) -> Decision | None:
    """Return what was weighed."""
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


def _weighed(decision: Decision) -> Weighed:
    parts = decision.strategy, decision.objective, decision.chosen, decision.why
    return Weighed(*parts, decision.candidates, decision.options)


def _text(costs: Costs) -> str:
    """Return the costs; what a device supports is asked of the device, not of its model."""
    models = {
        name: replace(model, supports=None) if callable(model.supports) else model
        for name, model in costs.models.items()
    }
    return json.dumps(encode(replace(costs, models=models)))


def _passes() -> dict[str, Pass]:
    return {one.__name__: one for one in (*PASSES, *OPTIONAL_PASSES)}
