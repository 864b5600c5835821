"""Each as the nodes of its graph, on all rows at once, outside of batch servers.

A graph that mixes rows is run for one after the other. Whole as the nodes that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..core.attribute import Attributes
from ..core.infer import infer_shapes
from ..core.ir import Graph, Node
from ..core.operator import find_operator
from ..core.whole import WHOLE
from ..operators.each import EACH, VALUE
from ..operators.row_axes import find_mixing_node
from ..values.names import Names
from ..values.tensor import TensorSpec, read_only, spec_of
from .rules import DecompositionBuilder, Operand, decomposition


@decomposition(EACH, wide=False)
def each(builder: DecompositionBuilder, *inputs: str) -> tuple[str, ...]:
    # All rows are ok, since a failing row fails its item.
    return _write_rows(builder, builder.attributes, inputs)


@decomposition(WHOLE, wide=False)
def whole(builder: DecompositionBuilder, *inputs: str) -> tuple[str, ...]:
    return _write_nodes(builder, builder.attributes["body"], inputs)


def _write_rows(
    builder: DecompositionBuilder, attributes: Attributes, inputs: Sequence[str]
) -> tuple[str, ...]:
    body: Graph = attributes["body"]
    if find_mixing_node(body, dict.fromkeys(body.inputs, 0)) is None:
        results = _write_nodes(builder, body, inputs)
    else:
        one = make_row_graph(body, list(map(builder.spec, inputs)))
        more = {"body": one, "num_scan_inputs": len(inputs)}
        results = tuple(builder.several(len(one.outputs), "Scan", *inputs, **more))
    if attributes["on_error"] == VALUE:
        count = builder("Shape", inputs[0], start=0, end=1)
        results += (builder("Expand", np.array(True), count),)
    return results


def make_row_graph(body: Graph, specs: Sequence[TensorSpec]) -> Graph:
    """Return `body` for one row of `specs`, without their first axis."""
    names = Names((*body.tensors, *(node.name for node in body.nodes)))
    axis, array = names.take("axis"), read_only(np.array([0]))
    inputs, outputs = (tuple(map(names.take, own)) for own in (body.inputs, body.outputs))

    def make(op: str, source: str, target: str) -> Node:
        attributes = find_operator(op).complete({}, op)
        return Node(names.take(op), op, (source, axis), (target,), attributes)

    before = map(partial(make, "Unsqueeze"), inputs, body.inputs)
    after = map(partial(make, "Squeeze"), body.outputs, outputs)
    rows = (TensorSpec(one.dtype, one.shape and one.shape[1:]) for one in specs)
    tensors = {**body.tensors, **dict(zip(inputs, rows, strict=True)), axis: spec_of(array)}
    made = replace(body, inputs=inputs, outputs=outputs, nodes=(*before, *body.nodes, *after))
    constants = {**body.constants, axis: array}
    return infer_shapes(replace(made, tensors=tensors, constants=constants))


def _write_nodes(
    builder: DecompositionBuilder, body: Graph, inputs: Sequence[Operand]
) -> tuple[str, ...]:
    known: dict[str, Operand] = {"": "", **body.constants}
    known.update(zip(body.inputs, inputs, strict=True))
    for node in body.nodes:
        operands = [known[name] for name in node.inputs]
        if node.op == EACH:  # devices that lack one lack the other
            fed = [one if isinstance(one, str) else builder("Identity", one) for one in operands]
            made: Sequence[str] = _write_rows(builder, node.attributes, fed)
        else:
            made = builder.several(len(node.outputs), node.op, *operands, **node.attributes)
        known.update(zip(node.outputs, made, strict=True))
    found = [known[name] for name in body.outputs]
    return tuple(one if isinstance(one, str) else builder("Identity", one) for one in found)
