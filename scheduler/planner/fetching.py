"""Plans for some tensors of a graph only: what they do not need is not in them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...graph.ir import Graph
from ...graph.names import did_you_mean
from ...graph.nested import has_effects
from ...graph.passes.merging import with_nodes
from ..errors import FetchError
from ..plans.plan import Plan
from ..plans.request import IoDevices
from ..shapes.bounds import computed_symbols
from ..shapes.specialise import specialised
from . import planner
from .prepare import reduce_rows
from .replanning import request_of


def fetching(plan: Plan, names: Collection[str]) -> Plan:
    """Return the plan whose outputs are these tensors; the plan itself if it needs all it has.

    Parameters
    ----------
    plan : Plan
    names : collection of str
        Tensors of the graph as it was before passes, if that is known.

    Raises
    ------
    FetchError
        If the graph has no such tensor.
    PlanError, DeviceError
        As `plait.plan`.
    """
    whole = plan.fetchable
    source = needed(whole, names)
    if _is_all_that_runs(source, whole):
        return plan
    fed = {name: plan.fed.tensors[name] for name in source.inputs}
    bound = replace(source, tensors={**source.tensors, **fed})
    graph, folded = specialised(bound, None, plan.passes)
    ends = IoDevices(
        {name: device for name, device in plan.ends.inputs.items() if name in graph.inputs},
        {name: device for name, device in plan.ends.outputs.items() if name in graph.outputs},
    )
    symbols = {dim for spec in fed.values() for dim in spec.shape or ()}
    symbols.update(computed_symbols(graph))
    known = {**plan.bounds, **plan.computed}
    request = request_of(plan)
    graph, reduced, bounds = reduce_rows(
        graph,
        request,
        plan.passes,
        {symbol: bound for symbol, bound in known.items() if symbol in symbols},
    )
    halved = request.halved if plan.source is None else {}
    request = replace(request, ends=ends, halved=halved)
    made = planner.plan_within(graph, bounds, request, plan.passes)
    return replace(
        made,
        passes=plan.passes,
        replicas=plan.replicas,
        applied=(*folded, *reduced, *made.applied),
        source=source,
        dead=plan.dead,
        unneeded=plan.unneeded.union(whole.inputs).difference(source.inputs),
    )


def needed(graph: Graph, names: Collection[str], *, effects: bool = False) -> Graph:
    """Return what of a graph some tensors need, with them as outputs.

    Raises
    ------
    FetchError
        If there is no such tensor.
    """
    _check_names(graph, names)
    outputs = tuple(dict.fromkeys(names))
    wanted = set(outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or (effects and has_effects(node)):
            wanted.update(node.inputs)
            kept.append(node)
    inputs = tuple(name for name in graph.inputs if name in wanted)
    return with_nodes(replace(graph, inputs=inputs, outputs=outputs), kept[::-1])


def _check_names(graph: Graph, names: Collection[str]) -> None:
    """Raise FetchError unless all are tensors of a graph."""
    if not names:
        raise FetchError("nothing is fetched", fix="name a tensor")
    for name in names:
        if name not in graph.tensors:
            listed = f"fetch one that it has, such as {', '.join(map(repr, graph.outputs))}"
            fix = did_you_mean(name, graph.tensors, listed)
            raise FetchError(f"graph {graph.name!r} has no tensor {name!r}", fix=fix)


def _is_all_that_runs(part: Graph, whole: Graph) -> bool:
    """True when a part is the whole, but for the order of what is fetched."""
    if set(part.outputs) != set(whole.outputs) or part.inputs != whole.inputs:
        return False
    return len(part.nodes) == len(needed(whole, whole.outputs, effects=True).nodes)
