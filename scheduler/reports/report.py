"""The report of a plan, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from ...devices.device import Device, Remote, Routed, Scaling
from ...devices.kinds import get_kind, guess
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import walk_nodes
from ...graph.core.printing import format_bytes, format_count, format_seconds, list_some, rate_text
from ...graph.core.traits import RUNTIME
from ...graph.functions.operator_lifecycle import HOOKS
from ...graph.gradients.recomputation import is_again
from ...graph.operators.bounded_call import calls_function, get_called_op
from ...graph.passes.half import UPDATED, find_updates, is_half_product
from ...graph.values.dtypes import TEXT
from ...graph.values.errors import Argument, Spelling, join_lines
from ...graph.values.extras import get_install_command
from ...graph.values.tensor import TensorSpec
from ..costs.costs import PYTHON_S, explain_bases
from ..dispatch.core_shares import share_cores
from ..dispatch.hand_over import describe_hand_over
from ..planner.joined_stages import join_if_possible
from ..planner.known_values import list_known_nodes
from ..planner.replanning import split_ahead
from ..planner.simulate import predict
from ..plans.partition import Subgraph
from ..plans.placement import Transfer
from ..plans.plan import Plan
from ..shapes.bounds import EXAMPLE, find_computed_symbols, suggest_shapes
from ..shapes.sync_points import explain_wait, find_frontier
from .plain import sum_flops
from .texts import (
    describe_decision,
    describe_memory,
    list_dead_nodes,
    list_nodes,
    list_passes,
    list_reasons,
    may_choose_again,
)

WORTH_INSTALLING = 1.1
"""Predicted gain from which on the report suggests a package."""
LISTED_OPS = 4
LISTED_STEPS = 40
LONGEST_DIM = 40
LISTED_NODES = 4
LISTED_REASONS = 6
LONGEST_NAME = 40


def report(plan: Plan, *, nodes: bool, spell: Spelling = str) -> str:
    """Return a report on `plan`; `nodes` adds a table, `spell` formats suggested arguments."""
    whole, plan = plan, join_if_possible(plan)
    parts = [_describe_missing_runtime(plan), _describe_plan(plan)]
    if plan.applied:
        parts.append(list_passes(plan.applied))
    parts.append(list_dead_nodes(plan.dead))
    if plan.prologue is not None:
        parts.append(_describe_prologue(plan.prologue))
    else:
        parts.append(_list_known_nodes(whole))
    parts.append(_list_subgraphs(plan))
    if plan.memory is not None:
        parts += [_list_transfers(plan), describe_memory(plan, plan.memory)]
    else:
        parts.append(_explain_open_memory(plan, spell))
    parts += [_describe_body(queue, body) for queue, body in plan.bodies.items()]
    parts.append(describe_lives(plan))
    if plan.decision is not None:
        parts.append(describe_decision(plan.decision))
    parts.append(list_reasons(plan))
    if nodes:
        parts.append(list_nodes(plan))
    return "\n\n".join(text for part in parts if (text := join_lines(part)))


def _describe_missing_runtime(plan: Plan) -> Iterator[str]:
    here = [name for name in plan.devices if get_kind(name) in ("cpu", "compiled")]
    if not here or find_spec("onnxruntime") is not None or (own := predict(plan)) is None:
        return
    other = predict(plan, plan.costs.with_models(dict.fromkeys(here, guess("ort"))))
    assert other is not None, "its shapes are known"
    gain = own.seconds / other.seconds if other.seconds else 1.0
    if gain >= WORTH_INSTALLING:
        yield (
            f"ONNX Runtime is not installed: with it, an item is predicted to be {gain:.2g} times "
            f"as fast; {get_install_command('ort')}"
        )


def _describe_plan(plan: Plan) -> Iterator[str]:
    graph, specs = plan.graph, plan.fed.tensors
    when = ", to be decided anew for what is fed" if may_choose_again(plan) else ""
    yield (
        f"plan for {graph.name!r}{when}: {format_count(len(graph.nodes), 'node')} in "
        f"{format_count(len(plan.subgraphs), 'subgraph')} "
        f"on {', '.join(plan.device_names)}; {plan.in_flight:,} in flight"
    )
    for names in plan.replicas:
        yield f"  {names[0]} stands for {names[0]} to {names[-1]}: items take turns there"
    if plan.replicas:
        yield f"  {plan.max_in_flight:,} in flight on each, with memory of its own as below"
    if functions := plan.overlapping_functions:
        yield f"  {plan.variants} items at once may call {', '.join(functions)}"
    for name, why in plan.ordered_functions.items():
        yield f"  {name} is called for one item after the other: {why}"
    for kind, names in (("in ", graph.inputs), ("out", graph.outputs)):
        on = plan.ends.inputs if kind == "in " else plan.ends.outputs
        yield f"  {kind}  " + ", ".join(
            f"{name} {_format_spec(specs[name])}" + (f" on {on[name]}" if name in on else "")
            for name in names
        )
    if plan.bounds:
        bounds = ", ".join(
            f"{name} {low:,} to {high:,}" for name, (low, high) in plan.bounds.items()
        )
        yield f"  planned for all shapes with {bounds}; figures are of the largest"
    yield from _describe_runtime_nodes(plan)
    yield from describe_precision(plan)
    yield from describe_recomputation(plan)
    if (prediction := predict(plan)) is not None:
        stream = f"; a stream {rate_text(prediction.items_per_s)}" if plan.in_flight > 1 else ""
        yield f"  predicted: one item {format_seconds(prediction.seconds)}{stream}"
        yield from _describe_guesses(plan)
        if mixed := explain_bases(plan.costs, plan.devices):
            yield f"    {mixed}"
    if hand_over := describe_hand_over():
        yield f"  {hand_over}"
    shares = share_cores(plan)
    for name in plan.devices:
        device = plan.prototypes[name]
        if isinstance(device, Remote):
            yield f"  {name}: {device.reached()}"
        elif isinstance(device, Scaling) and name in shares:
            yield f"  {name}: {device.computes_on(shares[name])}"


def _describe_runtime_nodes(plan: Plan) -> Iterator[str]:
    graphs = [plan.graph, *([] if plan.prologue is None else [plan.prologue.graph])]
    found = Counter(
        node.op
        for graph in graphs
        for _, around, node in walk_nodes(graph)
        if RUNTIME in node.operator.traits or (not calls_function(node) and _has_text(around, node))
    )
    if found:
        listed = list_some([f"{count:,} {op}" for op, count in found.most_common()], LISTED_OPS)
        nodes = format_count(found.total(), "node")
        yield f"  bound to 'ort' devices by {nodes} of ONNX Runtime's own: {listed}"


def _has_text(graph: Graph, node: Node) -> bool:
    return any(graph.tensors[name].dtype == TEXT for name in (*node.inputs, *node.outputs) if name)


def _describe_guesses(plan: Plan) -> Iterator[str]:
    found = Counter(
        get_called_op(node)
        for node in plan.graph.nodes
        if calls_function(node)
        and plan.costs.basis(plan.assignment[node.name], plan.graph, node) == "model"
    )
    if found:
        listed = list_some([*found], LISTED_OPS)
        yield (
            f"    a guess in it: {format_seconds(PYTHON_S)} or what the bytes take, for each "
            f"Python function ({listed}); plait profile --costs, or pl.tune, measures them"
        )


def _describe_body(queue: str, body: Plan) -> Iterator[str]:
    rows = (body.fed.tensors[body.fed.inputs[0]].shape or ("",))[0]
    most = body.bounds[str(rows)][1]
    yield (
        f"rows of {queue}: in batches of up to {most:,}, across items; "
        f"{body.in_flight:,} batches in flight"
    )
    yield from (f"  {line}" for line in _list_subgraphs(body))
    if body.memory is not None:
        yield from (f"  {line}" for line in describe_memory(body, body.memory))


def _describe_prologue(once: Plan) -> Iterator[str]:
    kept = sum(once.graph.tensors[name].nbytes for name in once.graph.outputs)
    prediction = predict(once)
    spent = "" if prediction is None else f", predicted {format_seconds(prediction.seconds)}"
    yield (
        f"at open: {format_count(len(once.graph.nodes), 'node')} run once{spent}; "
        f"{format_bytes(kept)} of results are kept"
    )
    for subgraph in once.subgraphs[:LISTED_STEPS]:
        yield f"  {subgraph.device}: {_list_operators(subgraph)}"


def _list_known_nodes(plan: Plan) -> Iterator[str]:
    known = list_known_nodes(plan)
    if known:
        listed = list_some([node.name for node in known], LISTED_NODES)
        yield f"at open: {format_count(len(known), 'node')} run once: {listed}"


def _format_spec(spec: TensorSpec) -> str:
    if spec.shape is None or all(len(str(dim)) <= LONGEST_DIM for dim in spec.shape):
        return str(spec)
    dims = (text if len(text := str(dim)) <= LONGEST_DIM else "..." for dim in spec.shape)
    return f"{spec.dtype}[{', '.join(dims)}]"


def _list_subgraphs(plan: Plan) -> Iterator[str]:
    listed = plan.subgraphs[:LISTED_STEPS]
    needs = {subgraph.name: _list_producers(plan, subgraph) for subgraph in listed}
    width = max((len(names) for names in needs.values()), default=0)
    wide = max((12, *(len(subgraph.device) for subgraph in listed)))
    columns = f"{'device':{wide}} {'nodes':>5} {'Mflop':>9}  {'needs':{width}}  operators"
    long = min(LONGEST_NAME, max((16, *(len(subgraph.name) for subgraph in listed))))
    yield f"{'subgraph':{long}} {columns}"
    for subgraph in listed:
        flops = sum_flops(subgraph.graph)
        yield (
            f"{subgraph.name[:long]:{long}} {subgraph.device:{wide}} {len(subgraph.graph.nodes):5} "
            f"{'?' if flops is None else f'{flops / 1e6:.3f}':>9}  "
            f"{needs[subgraph.name]:{width}}  {_list_operators(subgraph)}"
        )
    if len(plan.subgraphs) > LISTED_STEPS:
        yield f"and {len(plan.subgraphs) - LISTED_STEPS} more subgraphs"


def _list_producers(plan: Plan, subgraph: Subgraph) -> str:
    producers = {name: other.name for other in plan.subgraphs for name in other.graph.outputs}
    found = dict.fromkeys(producers[n] for n in subgraph.graph.inputs if n in producers)
    return list_some([*found], LISTED_OPS) or "-"


def _list_operators(subgraph: Subgraph) -> str:
    counts = Counter(map(get_called_op, subgraph.graph.nodes)).most_common()
    return list_some([f"{n} {op}" if n > 1 else op for op, n in counts], LISTED_OPS)


def _list_transfers(plan: Plan) -> Iterator[str]:
    transfers = [
        (step.device, one) for step in plan.steps if isinstance(one := step.work, Transfer)
    ]
    if not transfers:
        yield "transfers: none, every tensor lies where all its readers reach it"
        return
    total = sum(transfer.nbytes for _, transfer in transfers)
    yield f"transfers: {len(transfers)}, {format_bytes(total)} per item"
    for mover, transfer in transfers[:LISTED_STEPS]:
        way = _describe_route(plan.prototypes[mover], transfer.source)
        yield f"  {transfer.name}, {format_bytes(transfer.nbytes)}{way}"


def _describe_route(device: Device, source: str) -> str:
    if source not in device.capabilities.copies_from or not isinstance(device, Routed):
        return ""
    return f", {device.way_from(source)}"


def _explain_open_memory(plan: Plan, spell: Spelling) -> Iterator[str]:
    graph = plan.graph
    parts = split_ahead(plan)
    if parts is None:
        unfixed = [name for name in graph.inputs if not graph.tensors[name].is_static]
        shapes = spell(suggest_shapes(graph, *unfixed))
        yield f"memory: planned when the input shapes are known ({shapes}, or when fed)"
        return
    first = format_count(len(parts.head.nodes), "node")
    yield f"memory: planned while it runs; first {first}, up to"
    held = find_frontier(parts.rest) if parts.rest is not None else ()
    for node in held[:LISTED_STEPS]:
        yield f"  {node.name!r} ({node.op}): {explain_wait(parts, node)}"
    for symbol, tensor in find_computed_symbols(graph).items():
        yield f"  {_describe_computed_length(symbol, tensor, plan.computed.get(symbol), spell)}"


def _describe_computed_length(
    symbol: str, tensor: str, bound: tuple[int, int] | None, spell: Spelling
) -> str:
    if bound is None:
        asked = spell(Argument("bounds", {symbol: EXAMPLE}))
        return f"length {symbol!r} of {tensor!r}: open, bound it by {asked}"
    low, high = bound
    return f"length {symbol!r} of {tensor!r}: {low} to {high}, planned once for all of them"


def describe_lives(plan: Plan) -> Iterator[str]:
    """List the instances of operator classes, which are opened and closed with the plan."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for path, _, node in walk_nodes(plan.graph):
        if node.operator.owns:
            place = plan.assignment.get(path, "the device that runs it")
            found.setdefault((node.op, place, _list_hooks(node)), []).append(repr(path))
    if not found:
        return
    count = sum(map(len, found.values()))
    each = f", on each of {plan.variants} variants" if plan.variants > 1 else ""
    yield f"owned from opening to closing: {format_count(count, 'instance')}, one for a node{each}"
    for (op, place, hooks), names in found.items():
        listed = list_some(names, LISTED_NODES)
        yield f"  {len(names)} {op} on {place}, with {hooks}: {listed}"


def _list_hooks(node: Node) -> str:
    hooks = [hook for hook in HOOKS if hasattr(node.operator.function, hook)]
    return ", ".join([*hooks[:-1], "run", *hooks[-1:]] if "close" in hooks else [*hooks, "run"])


def describe_recomputation(plan: Plan) -> Iterator[str]:
    """Describe the cost of nodes of `plan` computed again for gradients, and the bytes saved."""
    graph = plan.graph
    nodes = [node for node in graph.nodes if is_again(node)]
    if not nodes:
        return
    line = f"  computed again for gradients: {format_count(len(nodes), 'node')}"
    total = sum_flops(graph)
    if total is None:
        yield line
        return
    flops = sum(get_cost(graph, node).flops for node in nodes)
    seconds = sum(plan.costs.node_s(plan.assignment[n.name], graph, n) for n in nodes)
    nbytes = sum(_sum_recomputed_nbytes(graph, node) for node in nodes)
    yield (
        f"{line}, {flops / 1e6:.3f} of {total / 1e6:.3f} Mflop, "
        f"predicted {format_seconds(seconds)}; {format_bytes(nbytes)} are not kept until then"
    )


def _sum_recomputed_nbytes(graph: Graph, node: Node) -> int:
    """Sum the bytes of outputs of `node` in `graph`, except those that only recomputation reads."""
    views = {output for output, _ in node.operator.views}
    return sum(
        graph.tensors[tensor].nbytes
        for index, tensor in enumerate(node.outputs)
        if tensor and index not in views
        if not all(map(is_again, graph.consumers[tensor]))
    )


def describe_precision(plan: Plan) -> Iterator[str]:
    """Describe the nodes of `plan` that run in float16, if the request allows it."""
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
        f"  in float16 on {devices}: {len(halved) - casts} of "
        f"{format_count(len(nodes) - casts, 'node')}, {format_count(casts, 'conversion')}"
    )
    updated = find_updates(plan.graph)
    single = Counter(
        (node.op, UPDATED if node.name in updated else _explain_float32(node))
        for node in nodes
        if _is_single(plan, node)
    )
    for (op, reason), count in single.most_common(LISTED_REASONS):
        yield f"    {count} {op} in float32: {reason}"


def _is_single(plan: Plan, node: Node) -> bool:
    written = [plan.graph.tensors[name].dtype for name in node.outputs if name]
    return node.op != "Cast" and node.name not in plan.request.halved and np.float32 in written


def _explain_float32(node: Node) -> str:
    if is_half_product(node):
        return "the device does not compute it in float16, or a constant does not fit"
    if node.operator.float16.inputs:
        return "it reads nothing that is float16, or a constant does not fit"
    return node.operator.float16.reason
