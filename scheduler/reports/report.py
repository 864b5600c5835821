"""A plan for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...devices.device import Device, Remote, Routed, Scaling
from ...graph.dtypes import TEXT
from ...graph.errors import Argument, Spelling
from ...graph.escaping import listing
from ...graph.gradients.recomputation import is_again
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.nested import all_nodes
from ...graph.operator_lifecycle import HOOKS
from ...graph.operators.bounded_call import called_op, calls_function
from ...graph.passes.half_operators import UPDATED, starts_half, updates
from ...graph.printing import bytes_text, counted, rate_text, seconds_text
from ...graph.tensor import TensorSpec
from ...graph.traits import RUNTIME
from ..costs.costs import PYTHON_S
from ..dispatch.core_shares import shares_of_cores
from ..planner.joined_stages import planned_ahead
from ..planner.replanning import split_ahead
from ..plans.partition import Subgraph
from ..plans.placement import Transfer
from ..plans.plan import Plan
from ..shapes.bounds import EXAMPLE, computed_symbols, example_shapes
from ..shapes.sync_points import frontier, reason_held_up
from .plain import flops_of
from .prediction import predicted
from .texts import (
    chooses_again,
    dead_lines,
    decision_lines,
    memory_lines,
    node_lines,
    pass_lines,
    reason_lines,
)

LISTED_OPS = 4
LISTED_STEPS = 40
LONGEST_DIM = 40
LISTED_NODES = 4
LISTED_REASONS = 6


def report(plan: Plan, *, nodes: bool, spell: Spelling = str) -> str:
    """Return a plan as text; arguments of `plan` that it lacks are named in a spelling."""
    plan = planned_ahead(plan)
    parts = [_heading(plan)]
    if plan.applied:
        parts.append(pass_lines(plan.applied))
    parts.append(dead_lines(plan.dead))
    if plan.prologue is not None:
        parts.append(_at_open(plan.prologue))
    parts.append(_subgraphs(plan))
    if plan.memory is not None:
        parts += [_transfers(plan), memory_lines(plan, plan.memory)]
    else:
        parts.append(_undecided(plan, spell))
    parts += [_body(queue, body) for queue, body in plan.bodies.items()]
    parts.append(life_lines(plan))
    if plan.decision is not None:
        parts.append(decision_lines(plan.decision))
    parts.append(reason_lines(plan))
    if nodes:
        parts.append(node_lines(plan))
    return "\n\n".join(text for part in parts if (text := listing(part)))


def _heading(plan: Plan) -> Iterator[str]:
    graph, specs = plan.graph, plan.fed.tensors
    when = ", to be decided anew for what is fed" if chooses_again(plan) else ""
    yield (
        f"plan for {graph.name!r}{when}: {counted(len(graph.nodes), 'node')} in "
        f"{counted(len(plan.subgraphs), 'subgraph')} "
        f"on {', '.join(plan.device_names)}; {plan.in_flight:,} in flight"
    )
    for names in plan.replicas:
        yield f"  {names[0]} stands for {names[0]} to {names[-1]}: items take turns there"
    if plan.replicas:
        yield f"  {plan.max_in_flight:,} in flight on each, with memory of its own as below"
    if functions := plan.overlapping_functions:
        yield f"  {plan.variants} items at once may call {', '.join(functions)}"
    for kind, names in (("in ", graph.inputs), ("out", graph.outputs)):
        on = plan.ends.inputs if kind == "in " else plan.ends.outputs
        yield f"  {kind}  " + ", ".join(
            f"{name} {_spec(specs[name])}" + (f" on {on[name]}" if name in on else "")
            for name in names
        )
    if plan.bounds:
        bounds = ", ".join(
            f"{name} {low:,} to {high:,}" for name, (low, high) in plan.bounds.items()
        )
        yield f"  planned for all shapes with {bounds}; figures are of the largest"
    yield from _bound_to_runtime(plan)
    yield from precision_lines(plan)
    yield from again_lines(plan)
    if (prediction := predicted(plan)) is not None:
        stream = f"; a stream {rate_text(prediction.items_per_s)}" if plan.in_flight > 1 else ""
        yield f"  predicted: one item {seconds_text(prediction.seconds)}{stream}"
        yield from _guessed(plan)
    shares = shares_of_cores(plan)
    for name in plan.devices:
        device = plan.prototypes[name]
        if isinstance(device, Remote):
            yield f"  {name}: {device.reached()}"
        elif isinstance(device, Scaling) and name in shares:
            yield f"  {name}: {device.computes_on(shares[name])}"


def _bound_to_runtime(plan: Plan) -> Iterator[str]:
    """Yield which operators bind a model to ONNX Runtime: its own, and those that have text."""
    graphs = [plan.graph, *([] if plan.prologue is None else [plan.prologue.graph])]
    found = Counter(
        node.op
        for graph in graphs
        for _, around, node in all_nodes(graph)
        if RUNTIME in node.operator.traits or (not calls_function(node) and _has_text(around, node))
    )
    if found:
        listed = ", ".join(f"{count:,} {op}" for op, count in found.most_common(LISTED_OPS))
        more = ", ..." if len(found) > LISTED_OPS else ""
        nodes = counted(found.total(), "node")
        yield f"  bound to 'ort' devices by {nodes} of ONNX Runtime's own: {listed}{more}"


def _has_text(graph: Graph, node: Node) -> bool:
    return any(graph.tensors[name].dtype == TEXT for name in (*node.inputs, *node.outputs) if name)


def _guessed(plan: Plan) -> Iterator[str]:
    """Yield which functions were never measured: no model knows what they do."""
    found = Counter(
        called_op(node)
        for node in plan.graph.nodes
        if calls_function(node)
        and plan.costs.basis(plan.assignment[node.name], plan.graph, node) == "model"
    )
    if found:
        listed = ", ".join(list(found)[:LISTED_OPS]) + (", ..." if len(found) > LISTED_OPS else "")
        yield (
            f"    a guess in it: {seconds_text(PYTHON_S)} or what the bytes take, for each Python "
            f"function ({listed}); plait profile --costs, or pl.tune, measures them"
        )


def _body(queue: str, body: Plan) -> Iterator[str]:
    """Yield by which plan the rows of a queue run, and what memory that takes beside."""
    rows = (body.fed.tensors[body.fed.inputs[0]].shape or ("",))[0]
    most = body.bounds[str(rows)][1]
    yield (
        f"rows of {queue}: in batches of up to {most:,}, across items; "
        f"{body.in_flight:,} batches in flight"
    )
    yield from (f"  {line}" for line in _subgraphs(body))
    if body.memory is not None:
        yield from (f"  {line}" for line in memory_lines(body, body.memory))


def _at_open(once: Plan) -> Iterator[str]:
    """Yield what is computed when the plan is opened, not for each item."""
    kept = sum(once.graph.tensors[name].nbytes for name in once.graph.outputs)
    prediction = predicted(once)
    spent = "" if prediction is None else f", predicted {seconds_text(prediction.seconds)}"
    yield (
        f"at open: {counted(len(once.graph.nodes), 'node')} run once{spent}; "
        f"{bytes_text(kept)} of results are kept"
    )
    for subgraph in once.subgraphs[:LISTED_STEPS]:
        yield f"  {subgraph.device}: {_operators(subgraph)}"


def _spec(spec: TensorSpec) -> str:
    """Return a spec, formulas of dimensions cut short: those of real models fill screens."""
    if spec.shape is None or all(len(str(dim)) <= LONGEST_DIM for dim in spec.shape):
        return str(spec)
    dims = (text if len(text := str(dim)) <= LONGEST_DIM else "..." for dim in spec.shape)
    return f"{spec.dtype}[{', '.join(dims)}]"


def _subgraphs(plan: Plan) -> Iterator[str]:
    listed = plan.subgraphs[:LISTED_STEPS]
    needs = {subgraph.name: _needs(plan, subgraph) for subgraph in listed}
    width = max((len(names) for names in needs.values()), default=0)
    wide = max((12, *(len(subgraph.device) for subgraph in listed)))
    columns = f"{'device':{wide}} {'nodes':>5} {'Mflop':>9}  {'needs':{width}}  operators"
    yield f"{'subgraph':16} {columns}"
    for subgraph in listed:
        flops = flops_of(subgraph.graph)
        yield (
            f"{subgraph.name:16} {subgraph.device:{wide}} {len(subgraph.graph.nodes):5} "
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
    counts = Counter(map(called_op, subgraph.graph.nodes)).most_common()
    listed = ", ".join(f"{n} {op}" if n > 1 else op for op, n in counts[:LISTED_OPS])
    return listed + (", ..." if len(counts) > LISTED_OPS else "")


def _transfers(plan: Plan) -> Iterator[str]:
    transfers = [
        (step.device, one) for step in plan.steps if isinstance(one := step.work, Transfer)
    ]
    if not transfers:
        yield "transfers: none, every tensor lies where all its readers reach it"
        return
    total = sum(transfer.nbytes for _, transfer in transfers)
    yield f"transfers: {len(transfers)}, {bytes_text(total)} per item"
    for mover, transfer in transfers[:LISTED_STEPS]:
        way = _way(plan.prototypes[mover], transfer.source)
        yield f"  {transfer.name}, {bytes_text(transfer.nbytes)}{way}"


def _way(device: Device, source: str) -> str:
    """Return how a copy from another device's memory goes, where there is something to say."""
    if source not in device.capabilities.copies_from or not isinstance(device, Routed):
        return ""
    return f", {device.way_from(source)}"


def _undecided(plan: Plan, spell: Spelling) -> Iterator[str]:
    """Yield why there is no memory plan yet."""
    graph = plan.graph
    parts = split_ahead(plan)
    if parts is None:
        unfixed = [name for name in graph.inputs if not graph.tensors[name].is_static]
        shapes = spell(example_shapes(graph, *unfixed))
        yield f"memory: planned when the input shapes are known ({shapes}, or when fed)"
        return
    yield f"memory: planned while it runs; first {counted(len(parts.head.nodes), 'node')}, up to"
    held = frontier(parts.rest) if parts.rest is not None else ()
    for node in held[:LISTED_STEPS]:
        yield f"  {node.name!r} ({node.op}): {reason_held_up(parts, node)}"
    for symbol, tensor in computed_symbols(graph).items():
        yield f"  {_computed(symbol, tensor, plan.computed.get(symbol), spell)}"


def _computed(symbol: str, tensor: str, bound: tuple[int, int] | None, spell: Spelling) -> str:
    """Return what is known of a length that is computed."""
    if bound is None:
        asked = spell(Argument("bounds", {symbol: EXAMPLE}))
        return f"length {symbol!r} of {tensor!r}: open, bound it by {asked}"
    low, high = bound
    return f"length {symbol!r} of {tensor!r}: {low} to {high}, planned once for all of them"


def life_lines(plan: Plan) -> Iterator[str]:
    """Yield what is opened and closed with the plan: nothing where no node is of a class."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for path, _, node in all_nodes(plan.graph):
        if node.operator.owns:
            place = plan.assignment.get(path, "the device that runs it")
            found.setdefault((node.op, place, _hooks(node)), []).append(repr(path))
    if not found:
        return
    count = sum(map(len, found.values()))
    each = f", on each of {plan.variants} variants" if plan.variants > 1 else ""
    yield f"owned from opening to closing: {counted(count, 'instance')}, one for a node{each}"
    for (op, place, hooks), names in found.items():
        more = ", ..." if len(names) > LISTED_NODES else ""
        listed = ", ".join(names[:LISTED_NODES]) + more
        yield f"  {len(names)} {op} on {place}, with {hooks}: {listed}"


def _hooks(node: Node) -> str:
    """Return the hooks that a node's class has, in the order in which they are called."""
    hooks = [hook for hook in HOOKS if hasattr(node.operator.function, hook)]
    return ", ".join([*hooks[:-1], "run", *hooks[-1:]] if "close" in hooks else [*hooks, "run"])


def again_lines(plan: Plan) -> Iterator[str]:
    """Yield what recomputation costs, and what need not be kept for it: nothing without any."""
    graph = plan.graph
    nodes = [node for node in graph.nodes if is_again(node)]
    if not nodes:
        return
    line = f"  computed again for gradients: {counted(len(nodes), 'node')}"
    total = flops_of(graph)
    if total is None:
        yield line
        return
    flops = sum(cost_of(graph, node).flops for node in nodes)
    seconds = sum(plan.costs.node_s(plan.assignment[n.name], graph, n) for n in nodes)
    nbytes = sum(_handed_nbytes(graph, node) for node in nodes)
    yield (
        f"{line}, {flops / 1e6:.3f} of {total / 1e6:.3f} Mflop, "
        f"predicted {seconds_text(seconds)}; {bytes_text(nbytes)} are not kept until then"
    )


def _handed_nbytes(graph: Graph, node: Node) -> int:
    """Return the bytes of what a node writes for gradients to read, not for other copies."""
    views = {output for output, _ in node.operator.views}
    return sum(
        graph.tensors[tensor].nbytes
        for index, tensor in enumerate(node.outputs)
        if tensor and index not in views
        if not all(map(is_again, graph.consumers[tensor]))
    )


def precision_lines(plan: Plan) -> Iterator[str]:
    """Yield what there is to say of precision: nothing where all is as the graph has it."""
    if not plan.request.precision:
        return
    devices = ", ".join(plan.request.precision)
    if plan.memory is None:
        yield f"  float16 is allowed on {devices}; where, is decided when shapes are known"
        return
    asked = plan.request.precision
    nodes = [node for node in plan.graph.nodes if plan.assignment[node.name] in asked]
    halved = [node for node in nodes if node.name in plan.request.halved]
    casts = sum(node.op == "Cast" for node in halved)
    yield (
        f"  in float16 on {devices}: {len(halved) - casts} of {counted(len(nodes) - casts, 'node')}"
        f", {counted(casts, 'conversion')}"
    )
    updated = updates(plan.graph)
    single = Counter(
        (node.op, UPDATED if node.name in updated else _reason(node))
        for node in nodes
        if _is_single(plan, node)
    )
    for (op, reason), count in single.most_common(LISTED_REASONS):
        yield f"    {count} {op} in float32: {reason}"


def _is_single(plan: Plan, node: Node) -> bool:
    written = [plan.graph.tensors[name].dtype for name in node.outputs if name]
    return node.op != "Cast" and node.name not in plan.request.halved and np.float32 in written


def _reason(node: Node) -> str:
    if starts_half(node):
        return "the device does not compute it in float16, or a constant does not fit"
    if node.operator.float16.inputs:
        return "it reads nothing that is float16, or a constant does not fit"
    return node.operator.float16.reason
