"""The prologue of a plan: nodes that follow from constants alone, run when a plan is opened.

Small results were folded and are constants of the plan. The other nodes are split off here: the
prologue becomes a plan of its own, for one item, and the rest reads its results as prepared
tensors, which exist while the plan is open. None of them is computed, or copied, per item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...graph.core.evaluation import is_known_ahead
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs
from ..errors import DoesNotFitError
from ..plans.partition import Decision, Partition
from ..plans.request import ON_HOST
from .memory.memory_plan import find_limits, plan_memory
from .partition.judge import Judge
from .partition.offers import Offers, ask

if TYPE_CHECKING:
    from ..plans.plan import Plan

REASON = "computed once, when the plan is opened"


class PrologueSplit(NamedTuple):
    prologue: Graph
    """Runs when the plan is opened, without feeds; `rest` reads its outputs."""
    rest: Graph
    """Runs for each item."""


def split_prologue(graph: Graph) -> PrologueSplit | None:
    """Split the graph in two, or return None if nothing can be computed ahead.

    Fetched tensors are written for each item, so that items share no results.
    """
    known, inside = dict(graph.constants), set[str]()
    fetched = set(graph.outputs)
    for node in graph.nodes:
        if _is_run_once(graph, node, known, fetched):
            inside.add(node.name)
            known.update(dict.fromkeys(filter(None, node.outputs)))
    nodes = [node for node in graph.nodes if node.name in inside]
    once = graph.extract(nodes, f"{graph.name}: at open")
    if not once.outputs:
        return None
    return PrologueSplit(once, _remove_nodes(graph, inside, once))


def with_prologue(made: Plan, once: Graph, assignment: Mapping[str, str] | None = None) -> Plan:
    """Return the plan `made` with one of its prologue `once`, the nodes that run once.

    Nodes run where they are pinned, else on the device that reads them, if possible, unless an
    earlier decision is given as `assignment`. Raises UnsupportedOpError if nodes find no device,
    and DoesNotFitError if a memory is too small while the prologue runs.
    """
    devices = made.prototypes
    offers = ask(once, devices, made.pins)
    names = (
        _choose_devices(offers, made)
        if assignment is None
        else [assignment[n.name] for n in once.nodes]
    )
    judged = Judge(once, devices, made.costs)("", names)
    limits = made.request.memory_limits
    memory = plan_memory(once, judged.placement, devices, 1, limits=limits, costs=made.costs)
    found = judged.partition
    reasons = dict.fromkeys(found.assignment, REASON)
    asked = made.request
    request = replace(asked, max_in_flight=1, overlaps=False, ends=ON_HOST, precision={}, halved={})
    prologue = replace(
        made,
        graph=once,
        template=None,
        bounds={},
        request=request,
        partition=Partition(found.assignment, reasons, found.subgraphs),
        placement=judged.placement.with_waits(memory.added_edges),
        memory=memory,
        decision=Decision("preference", "latency", "where it is read", REASON, ask=dict),
        passes=(),
        applied=(),
    )
    whole = replace(made, prologue=prologue)
    _check_fits(whole, prologue)
    return whole


def _is_run_once(graph: Graph, node: Node, known: Mapping[str, object], fetched: set[str]) -> bool:
    if any(name and name not in known for name in node.inputs) or list_graphs(node):
        return False
    if not fetched.isdisjoint(node.outputs) or not is_known_ahead(node, graph.tensors, known):
        return False
    return all(spec.is_static for spec in graph.output_specs(node))


def _remove_nodes(graph: Graph, inside: set[str], once: Graph) -> Graph:
    left = [node for node in graph.nodes if node.name not in inside]
    return replace(graph.with_nodes(left), prepared=graph.prepared.union(once.outputs))


def _choose_devices(offers: Offers, made: Plan) -> list[str]:
    names, graph = tuple(offers.devices), offers.graph
    where: dict[str, str] = {}
    for node, allowed in zip(reversed(graph.nodes), reversed(offers.allowed), strict=True):
        readers = [
            where.get(reader.name) or made.assignment[reader.name]
            for name in filter(None, node.outputs)
            for reader in (*made.graph.consumers.get(name, ()), *graph.consumers[name])
        ]
        able = [names[device] for device in allowed]
        where[node.name] = next((reader for reader in readers if reader in able), able[0])
    return [where[node.name] for node in graph.nodes]


def _check_fits(whole: Plan, prologue: Plan) -> None:
    """Raise DoesNotFitError unless `prologue` fits next to memory that the plan `whole` shares."""
    assert whole.memory is not None
    assert prologue.memory is not None
    for memory, limit in find_limits(whole.request.memory_limits, whole.prototypes).items():
        needed = 0
        for pool in (whole.memory.pools.get(memory), prologue.memory.pools.get(memory)):
            if pool is not None:
                shared = (one.nbytes for one in pool.regions.values() if one.copies == 1)
                needed += pool.constants_nbytes + sum(shared)
        if needed > limit.nbytes:
            raise DoesNotFitError(
                f"what is computed at open needs {needed:,} bytes of memory {memory!r}; "
                f"{limit.owner} has {limit.nbytes:,}",
                at=f"graph {prologue.graph.name!r}",
                fix="allow more memory, or fold less",
            )
