"""A plan as plain values for JSON. docs/plans.md describes the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...devices.evaluating import KIND
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph
from ...graph.passes.pipeline import Applied
from ...version import VERSION
from ..planner.known_values import list_known_nodes
from ..planner.simulate import predict
from ..plans.partition import Decision
from ..plans.placement import Step, Transfer
from ..plans.plan import Plan
from ..plans.regions import Pool, Region

FORMAT, FORMAT_VERSION = "plait plan", 1


def to_json(plan: Plan) -> str:
    return json.dumps(to_dict(plan), indent=2, allow_nan=False)


def to_dict(plan: Plan) -> dict[str, Any]:
    graph, memory, prediction = plan.graph, plan.memory, predict(plan)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "plait": VERSION,
        "graph": graph.name,
        "inputs": {name: str(graph.tensors[name]) for name in graph.inputs},
        "outputs": {name: str(graph.tensors[name]) for name in graph.outputs},
        "bounds": {symbol: list(bound) for symbol, bound in plan.bounds.items()},
        "inputs_on": dict(plan.ends.inputs),
        "outputs_on": dict(plan.ends.outputs),
        "devices": list(plan.devices),
        "pins": dict(plan.pins),
        "replicas": [list(names) for names in plan.replicas],
        "max_in_flight": plan.max_in_flight,
        "memory_limits": dict(plan.request.memory_limits or {}),
        "precision": dict(plan.request.precision),
        "passes": [_convert_pass(one) for one in plan.applied],
        "dead": dict(plan.dead),
        "predicted": None if prediction is None else asdict(prediction),
        "decision": None if plan.decision is None else _convert_decision(plan.decision),
        "bodies": {queue: to_dict(body) for queue, body in plan.bodies.items()},
        "at_open": _convert_nodes_at_open(plan),
        "nodes": dict(_convert_nodes(plan)),
        "subgraphs": list(_convert_subgraphs(plan)),
        "transfers": [asdict(work) for work in list_transfers(plan)],
        "steps": [_convert_step(step) for step in plan.steps],
        "memory": {}
        if memory is None
        else {n: _convert_pool(pool) for n, pool in memory.pools.items()},
        "added_edges": [] if memory is None else [list(edge) for edge in memory.added_edges],
        "slowdown": 1.0 if memory is None else memory.slowdown,
    }


def list_transfers(plan: Plan) -> Iterator[Transfer]:
    return (step.work for step in plan.steps if isinstance(step.work, Transfer))


def sum_flops(graph: Graph) -> int | None:
    """Return the number of operations of `graph`, or None while shapes are open."""
    if not graph.is_static:
        return None
    return sum(get_cost(graph, node).flops for node in graph.nodes)


def _convert_pass(one: Applied) -> dict[str, Any]:
    lists = {name: list(getattr(one, name)) for name in ("rewritten", "added", "removed")}
    return {**asdict(one), **lists}


def _convert_decision(decision: Decision) -> dict[str, Any]:
    return {
        "strategy": decision.strategy,
        "objective": decision.objective,
        "chosen": decision.chosen,
        "why": decision.why,
        "candidates": [
            {**asdict(one), "devices": list(one.devices)} for one in decision.candidates
        ],
    }


def _convert_nodes_at_open(plan: Plan) -> dict[str, Any] | None:
    once = plan.prologue
    if once is None:
        known = {node.name: KIND for node in list_known_nodes(plan)}
        return {"nodes": known, "outputs": {}, "seconds": None} if known else None
    graph, prediction = once.graph, predict(once)
    return {
        "nodes": dict(once.assignment),
        "outputs": {name: str(graph.tensors[name]) for name in graph.outputs},
        "seconds": None if prediction is None else prediction.seconds,
    }


def _convert_nodes(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    options = plan.decision.options if plan.decision is not None else {}
    subgraph_of = {node.name: one.name for one in plan.subgraphs for node in one.graph.nodes}
    for name, device in plan.assignment.items():
        yield (
            name,
            {
                "device": device,
                "subgraph": subgraph_of.get(name),
                "reason": plan.reasons[name],
                "options": [option._asdict() for option in options.get(name, ())],
            },
        )


def _convert_subgraphs(plan: Plan) -> Iterator[dict[str, Any]]:
    waits = {step.work.name: step.input_wait_count for step in plan.steps}
    for subgraph in plan.subgraphs:
        yield {
            "name": subgraph.name,
            "device": subgraph.device,
            "nodes": [node.name for node in subgraph.graph.nodes],
            "inputs": list(subgraph.graph.inputs),
            "outputs": list(subgraph.graph.outputs),
            "input_wait_count": waits.get(subgraph.name),
            "flops": sum_flops(subgraph.graph),
        }


def _convert_step(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "device": step.device,
        "kind": "transfer" if isinstance(step.work, Transfer) else "subgraph",
        "waits": list(step.waits),
    }


def _convert_pool(pool: Pool) -> dict[str, Any]:
    return {
        "nbytes": pool.nbytes,
        "layout": pool.layout,
        "slots": pool.slots,
        "slot_nbytes": pool.slot_nbytes,
        "lane_nbytes": dict(pool.lane_nbytes),
        "item_nbytes": pool.item_nbytes,
        "tensors_nbytes": pool.tensors_nbytes,
        "lower_bound": pool.lower_bound,
        "constants_nbytes": pool.constants_nbytes,
        "regions": [_convert_region(region) for region in pool.regions.values()],
    }


def _convert_region(region: Region) -> dict[str, Any]:
    return {
        "name": region.name,
        "nbytes": region.nbytes,
        "copies": region.copies,
        "claims": list(region.claims),
        "releases": list(region.releases),
    }
