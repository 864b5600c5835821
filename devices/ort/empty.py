"""Nodes with empty inputs, for which some kernels of ONNX Runtime end the process.

They get no empty inputs, except the past of attention, which is empty at the start of a text.
Results of empty inputs follow from shapes, and are computed when a session is made; Concat drops
empty inputs.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.core.evaluation import FOLDED_BYTES
from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.core.operator import Call, find_operator
from ...graph.values.names import Names
from ...graph.values.tensor import Array, TensorSpec
from ..evaluating import evaluate
from ..kernels.registry import find_kernel


def is_empty(spec: TensorSpec | None, value: Array | None) -> bool:
    """Return whether a tensor of `spec` is empty and computed: its `value` has to be None."""
    return spec is not None and value is None and spec.is_static and spec.size == 0


def may_be_empty(node: Node, index: int) -> bool:
    """Return whether kernels of `node` allow an empty input `index`, as the past is at first."""
    formals = node.operator.inputs.split()
    return index < len(formals) and formals[index].startswith("past")


def drop_empty_inputs(node: Node, call: Call) -> tuple[Node, Call]:
    """Return `node` and `call` of a Concat without its empty inputs; other pairs unchanged."""
    pairs = zip(call.inputs, call.values, strict=True)
    left = [place for place, pair in enumerate(pairs) if not is_empty(*pair)]
    if node.op != "Concat" or len(left) == len(node.inputs):
        return node, call
    inputs, values = ([given[i] for i in left] for given in (call.inputs, call.values))
    fewer = replace(node, inputs=tuple(node.inputs[place] for place in left))
    return fewer, replace(call, inputs=tuple(inputs), values=tuple(values))


def is_known_from_empty(node: Node, call: Call) -> bool:
    operator = node.operator
    if operator.function is not None or operator.effects or operator.bounded is not None:
        return False
    if operator.draws is not None and operator.draws(node.inputs):
        return False
    pairs = zip(call.inputs, call.values, strict=True)
    computed = [pair for pair in pairs if pair[0] is not None and pair[1] is None]
    if not computed or not all(is_empty(*pair) for pair in computed):
        return False
    specs = infer_node(node, call)
    small = all(spec.is_static and spec.nbytes <= FOLDED_BYTES for spec in specs)
    return small and find_kernel(node.op, "cpu", call) is not None


def remove_empty_inputs(graph: Graph) -> Graph:
    """Return `graph` with as few empty inputs as possible; nodes still write all of its outputs."""
    constants, tensors, nodes = dict(graph.constants), dict(graph.tensors), list[Node]()
    names = Names(tensors)
    for node in graph.nodes:
        call = make_call(node, tensors, constants)
        made = is_known_from_empty(node, call)
        values = evaluate(node, call, infer_node(node, call)) if made else None
        if values is None:
            nodes.append(drop_empty_inputs(node, call)[0])
            continue
        for name, value in values.items():
            held = names.take(f"{name}/known") if name in graph.outputs else name
            constants[held], tensors[held] = value, tensors[name]
            if held != name:
                attributes = find_operator("Identity").complete({}, node.name)
                nodes.append(Node(held, "Identity", (held,), (name,), attributes))
    if len(constants) == len(graph.constants) and tuple(nodes) == graph.nodes:
        return graph
    return replace(graph, nodes=tuple(nodes), tensors=tensors, constants=constants)
