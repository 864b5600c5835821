"""A plan for people, and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...graph.infer import cost_of
from ...graph.ir import Graph
from ...graph.printing import bytes_text, counted
from ..boundaries import cut, frontier
from ..memory.memory_plan import Pool
from ..partition.partition import Subgraph
from ..planning import Plan
from ..steps import Transfer

LISTED_OPS = 4
LISTED_STEPS = 40


def report(plan: Plan, *, nodes: bool) -> str:
    """Return a plan as text."""
    lines = [*_heading(plan), "", *_subgraphs(plan)]
    if plan.is_static:
        lines += ["", *_transfers(plan), "", *_memory(plan)]
    else:
        lines += ["", *_undecided(plan)]
    lines += ["", *_reasons(plan)]
    if nodes:
        width = max((len(name) for name in plan.assignment), default=0)
        lines += ["", "nodes"]
        lines += [
            f"  {name:{width}}  {device:10}  {plan.reasons[name]}"
            for name, device in plan.assignment.items()
        ]
    return "\n".join(lines)


def to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values."""
    waits = {step.work.name: step.input_wait_count for step in plan.steps}
    return {
        "graph": plan.graph.name,
        "inputs": {name: str(plan.graph.tensors[name]) for name in plan.graph.inputs},
        "outputs": {name: str(plan.graph.tensors[name]) for name in plan.graph.outputs},
        "devices": list(plan.devices),
        "max_in_flight": plan.max_in_flight,
        "nodes": {
            name: {"device": device, "reason": plan.reasons[name]}
            for name, device in plan.assignment.items()
        },
        "subgraphs": [
            {
                "name": subgraph.name,
                "device": subgraph.device,
                "nodes": [node.name for node in subgraph.graph.nodes],
                "inputs": list(subgraph.graph.inputs),
                "outputs": list(subgraph.graph.outputs),
                "input_wait_count": waits.get(subgraph.name),
                "flops": _flops(subgraph.graph),
            }
            for subgraph in plan.subgraphs
        ],
        "transfers": [
            {
                "tensor": transfer.tensor,
                "source": transfer.source,
                "target": transfer.target,
                "nbytes": transfer.nbytes,
            }
            for transfer in _all_transfers(plan)
        ],
        "memory": {name: _pool_dict(pool) for name, pool in _pools(plan).items()},
    }


def _heading(plan: Plan) -> Iterator[str]:
    graph = plan.graph
    yield (
        f"plan for {graph.name!r}: {counted(len(graph.nodes), 'node')} in "
        f"{counted(len(plan.subgraphs), 'subgraph')} "
        f"on {', '.join(plan.devices)}; {plan.max_in_flight} in flight"
    )
    for kind, names in (("in ", graph.inputs), ("out", graph.outputs)):
        yield f"  {kind}  " + ", ".join(f"{name} {graph.tensors[name]}" for name in names)


def _subgraphs(plan: Plan) -> Iterator[str]:
    listed = plan.subgraphs[:LISTED_STEPS]
    needs = {subgraph.name: _needs(plan, subgraph) for subgraph in listed}
    width = max((len(names) for names in needs.values()), default=0)
    yield f"{'subgraph':16} {'device':12} {'nodes':>5} {'Mflop':>9}  {'needs':{width}}  operators"
    for subgraph in listed:
        flops = _flops(subgraph.graph)
        yield (
            f"{subgraph.name:16} {subgraph.device:12} {len(subgraph.graph.nodes):5} "
            f"{'?' if flops is None else f'{flops / 1e6:.3f}':>9}  "
            f"{needs[subgraph.name]:{width}}  {_operators(subgraph)}"
        )
    if len(plan.subgraphs) > LISTED_STEPS:
        yield f"and {len(plan.subgraphs) - LISTED_STEPS} more subgraphs"


def _needs(plan: Plan, subgraph: Subgraph) -> str:
    """Return the subgraphs that produce a subgraph's inputs."""
    producers = {name: other.name for other in plan.subgraphs for name in other.graph.outputs}
    found = dict.fromkeys(producers[n] for n in subgraph.graph.inputs if n in producers)
    names = list(found)[:LISTED_OPS]
    return (", ".join(names) + (", ..." if len(found) > LISTED_OPS else "")) or "-"


def _operators(subgraph: Subgraph) -> str:
    counts = Counter(node.op for node in subgraph.graph.nodes).most_common()
    listed = ", ".join(f"{n} {op}" if n > 1 else op for op, n in counts[:LISTED_OPS])
    return listed + (", ..." if len(counts) > LISTED_OPS else "")


def _transfers(plan: Plan) -> Iterator[str]:
    transfers = list(_all_transfers(plan))
    if not transfers:
        yield "transfers: none, every tensor lies where all its readers reach it"
        return
    total = sum(transfer.nbytes for transfer in transfers)
    yield f"transfers: {len(transfers)}, {bytes_text(total)} per item"
    for transfer in transfers[:LISTED_STEPS]:
        yield f"  {transfer.name}, {bytes_text(transfer.nbytes)}"


def _memory(plan: Plan) -> Iterator[str]:
    columns = ("total", "per item", "once", "bound", "unshared")
    yield f"{'memory':12} " + " ".join(f"{column:>11}" for column in columns)
    for name, pool in _pools(plan).items():
        sizes = (
            pool.nbytes,
            pool.slot_nbytes,
            sum(pool.lane_nbytes.values()),
            pool.lower_bound,
            pool.tensors_nbytes,
        )
        yield f"{name:12} " + " ".join(f"{bytes_text(nbytes):>11}" for nbytes in sizes)


def _undecided(plan: Plan) -> Iterator[str]:
    """Yield why there is no memory plan yet."""
    graph = plan.graph
    if not all(graph.tensors[name].is_static for name in graph.inputs):
        yield "memory: planned when the input shapes are known (shapes=..., or when fed)"
        return
    parts = cut(graph)
    yield f"memory: planned while it runs; first {counted(len(parts.head.nodes), 'node')}, up to"
    held = frontier(parts.rest) if parts.rest is not None else ()
    for node in held[:LISTED_STEPS]:
        yield f"  {node.name!r} ({node.op}): needs values, not shapes alone"


def _reasons(plan: Plan) -> Iterator[str]:
    """Yield the reasons, each with how many nodes it holds for."""
    yield "why"
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, device in plan.assignment.items():
        grouped.setdefault((device, plan.reasons[name]), []).append(name)
    for (device, reason), names in list(grouped.items())[:LISTED_STEPS]:
        what = names[0] if len(names) == 1 else f"{len(names)} nodes"
        yield f"  {device}: {what}: {reason}"
    if len(grouped) > LISTED_STEPS:
        yield f"  and {len(grouped) - LISTED_STEPS} more reasons: report(nodes=True) lists all"


def _flops(graph: Graph) -> int | None:
    if not graph.is_static:
        return None
    return sum(cost_of(graph, node).flops for node in graph.nodes)


def _all_transfers(plan: Plan) -> Iterator[Transfer]:
    return (step.work for step in plan.steps if isinstance(step.work, Transfer))


def _pools(plan: Plan) -> Mapping[str, Pool]:
    return plan.memory.pools if plan.memory is not None else {}


def _pool_dict(pool: Pool) -> dict[str, Any]:
    return {
        "nbytes": pool.nbytes,
        "slot_nbytes": pool.slot_nbytes,
        "lane_nbytes": dict(pool.lane_nbytes),
        "lower_bound": pool.lower_bound,
        "tensors_nbytes": pool.tensors_nbytes,
    }
