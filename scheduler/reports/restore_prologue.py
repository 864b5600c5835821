"""A plan's run-once section from what a file says of it: where its nodes run.

Which nodes it consists of follows from the graph, and its memory is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.ir import Graph
from ..planner.prologue import split, with_section
from ..plans.plan import Plan
from .restore import check_assignment, damaged


def restored_sections(
    graph: Graph, assignment: Mapping[str, str], at: str
) -> tuple[Graph | None, Graph]:
    """Return what runs once, if anything does, and what runs for each item.

    Raises
    ------
    ParseError
        If other nodes than those of a file can run once.
    """
    if not assignment:
        return None, graph
    parts = split(graph)
    if parts is None or {node.name for node in parts.prologue.nodes} != assignment.keys():
        raise damaged("what runs once does not follow from constants", at)
    return parts.prologue, parts.rest


def with_restored(plan: Plan, once: Graph | None, assignment: Mapping[str, str], at: str) -> Plan:
    """Return a plan with what runs once.

    Raises
    ------
    ParseError
        If a node is not on a device that supports it.
    DoesNotFitError
        If a memory is too small for it here.
    """
    if once is None:
        return plan
    check_assignment(once, assignment, plan.prototypes, at)
    return with_section(plan, once, assignment)
