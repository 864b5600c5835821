"""Plans of graphs, models and pipelines that are given in place of a plan."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ...graph.core.ir import Graph
from ..errors import SessionError
from ..plans.plan import Plan


@runtime_checkable
class PlansItself(Protocol):
    """An object that makes its own plan, such as a pipeline."""

    def plan(self) -> Plan: ...


Plannable: TypeAlias = Plan | Graph | str | os.PathLike[str] | PlansItself
"""A plan, or anything that can be planned."""


def to_plan(given: Plannable | Any) -> Plan:
    """Return `given` if it is a plan, or plan a graph, a model's path or a pipeline for ``"auto"``.

    Raises SessionError for other types, and errors of loading and planning.
    """
    if isinstance(given, Plan):
        return given
    if isinstance(given, str | os.PathLike):
        from ...graph.formats.graphs import load  # heavy, and sessions of plans do without

        given = load(given)
    if isinstance(given, Graph):
        from .api import plan

        return plan(given)
    if isinstance(given, PlansItself):
        return given.plan()
    raise SessionError(
        f"a session opens a plan, not a {type(given).__name__}",
        fix="give it plan(graph, devices=...), a graph, or the path of a model",
    )
