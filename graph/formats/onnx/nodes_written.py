"""Nodes in the form of ONNX, those of nested graphs too.

Nested graphs of ONNX see the names of those around them, so that all names are told apart, and what
a nested graph captures is called there as it is outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ir import Graph, Node
from ...names import Names
from ...nested import all_nodes
from ...operators.control import CONTROL_FLOW, uncaptured
from ...tensor import TensorSpec
from .forms import ELEMENT_TYPE_OF, attribute_protos, domain_and_type, tensor_proto


def node_protos(graph: Graph) -> list[Any]:
    """Return the NodeProtos of a graph's nodes."""
    own = {name: name for name in graph.tensors}
    writer = _Writer(Names((*graph.tensors, *(path for path, _, _ in all_nodes(graph)))))
    return [writer.node(node, own, node.name) for node in graph.nodes]


def value_proto(name: str, spec: TensorSpec) -> Any:
    """Return the ValueInfoProto of an input or output."""
    from onnx import TensorShapeProto, TypeProto, ValueInfoProto

    tensor = TypeProto.Tensor(elem_type=ELEMENT_TYPE_OF[spec.dtype.name])
    if spec.shape is not None:
        dims = [
            TensorShapeProto.Dimension(dim_value=dim)
            if isinstance(dim, int)
            else TensorShapeProto.Dimension(dim_param=dim)
            for dim in spec.shape
        ]
        tensor.shape.CopyFrom(TensorShapeProto(dim=dims))
    return ValueInfoProto(name=name, type=TypeProto(tensor_type=tensor))


class _Writer:
    """Writes nodes; names of tensors are told apart over all graphs."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def node(self, node: Node, names: Mapping[str, str], path: str) -> Any:
        """Return a NodeProto; `names` are those of its graph's tensors in the model."""
        from onnx import AttributeProto, NodeProto

        graphs = [
            AttributeProto(name=key, type="GRAPH", g=self._nested(node, value, names, path))
            for key, value in node.attributes.items()
            if node.op in CONTROL_FLOW and isinstance(value, Graph)
        ]
        domain, op_type = domain_and_type(node.op)
        return NodeProto(
            name=path,
            domain=domain,
            op_type=op_type,
            input=[names.get(name, "") for name in uncaptured(node)],
            output=[names.get(name, "") for name in node.outputs],
            attribute=[*attribute_protos(node), *graphs],
        )

    def _nested(self, node: Node, graph: Graph, outer: Mapping[str, str], path: str) -> Any:
        """Return the GraphProto of a branch or body."""
        from onnx import GraphProto, NodeProto

        captured = node.inputs[len(uncaptured(node)) :]
        own = graph.inputs[: len(graph.inputs) - len(captured)]
        known = zip(graph.inputs[len(own) :], captured, strict=True)
        names = {inner: outer[name] for inner, name in known}
        written = set[str]()
        for name in graph.tensors:
            if name not in names:
                names[name] = self._names.take(f"{path}/{name}")
        nodes = [self.node(one, names, f"{path}/{one.name}") for one in graph.nodes]
        outputs: list[str] = []
        for name in graph.outputs:  # each is written by a node of its own
            outputs.append(names[name])
            if name not in graph.producers or name in written:
                outputs[-1] = self._names.take(f"{names[name]}/out")
                copy = NodeProto(op_type="Identity", input=[names[name]], output=outputs[-1:])
                nodes.append(copy)
            written.add(name)
        return GraphProto(
            name=graph.name or path,
            input=self._values(graph, own, [names[name] for name in own]),
            output=self._values(graph, graph.outputs, outputs),
            node=nodes,
            initializer=[tensor_proto(names[name], a) for name, a in graph.constants.items()],
        )

    def _values(self, graph: Graph, tensors: Sequence[str], names: Sequence[str]) -> list[Any]:
        pairs = zip(names, tensors, strict=True)
        return [value_proto(name, graph.tensors[tensor]) for name, tensor in pairs]
