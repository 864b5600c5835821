"""Nodes that read tensors without elements: some of ONNX Runtime's kernels end the process then.

It is not given any, but for the past of attention, which is empty when a text begins. What nodes
make of nothing follows from shapes, and is computed when a session is made; and Concat does without
what adds nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.evaluation import FOLDED_BYTES
from ...graph.infer import infer_node
from ...graph.ir import Graph, Node, call_of
from ...graph.names import Names
from ...graph.operator import Call, find_operator
from ...graph.tensor import Array, TensorSpec
from ..evaluating import evaluate
from ..kernels import find_kernel


def is_empty(spec: TensorSpec | None, value: Array | None) -> bool:
    """True for a computed tensor without elements; constants say that something is left out."""
    return spec is not None and value is None and spec.is_static and spec.size == 0


def may_be_empty(node: Node, index: int) -> bool:
    """True for an input that kernels are made to find empty: the past of attention, at first."""
    formals = node.operator.inputs.split()
    return index < len(formals) and formals[index].startswith("past")


def without_empty(node: Node, call: Call) -> tuple[Node, Call]:
    """Return a Concat of what has elements; other nodes as they are."""
    pairs = zip(call.inputs, call.values, strict=True)
    left = [place for place, pair in enumerate(pairs) if not is_empty(*pair)]
    if node.op != "Concat" or len(left) == len(node.inputs):
        return node, call
    inputs, values = ([given[i] for i in left] for given in (call.inputs, call.values))
    fewer = replace(node, inputs=tuple(node.inputs[place] for place in left))
    return fewer, replace(call, inputs=tuple(inputs), values=tuple(values))


def makes_of_nothing(node: Node, call: Call) -> bool:
    """True when none of the tensors that a node is given, all but constants, has elements."""
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


def without_empty_inputs(graph: Graph) -> Graph:
    """Return a graph whose nodes are given no tensors without elements, as far as they do without.

    What is fetched is still written by nodes.
    """
    constants, tensors, nodes = dict(graph.constants), dict(graph.tensors), list[Node]()
    names = Names(tensors)
    for node in graph.nodes:
        call = call_of(node, tensors, constants)
        made = makes_of_nothing(node, call)
        values = evaluate(node, call, infer_node(node, call)) if made else None
        if values is None:
            nodes.append(without_empty(node, call)[0])
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
