"""Each as the nodes of its graph, on all rows at once, outside of batch servers.

Whole as the nodes that it holds, as in models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.attribute import Attributes
from ..core.ir import Graph
from ..core.whole import WHOLE
from ..operators.each import EACH, VALUE
from .rules import DecompositionBuilder, Operand, decomposition


@decomposition(EACH, wide=False)
def each(builder: DecompositionBuilder, *inputs: str) -> tuple[str, ...]:
    # All rows are ok, since a failing row fails its item.
    return _write_rows(builder, builder.attributes, inputs)


@decomposition(WHOLE, wide=False)
def whole(builder: DecompositionBuilder, *inputs: str) -> tuple[str, ...]:
    return _write_nodes(builder, builder.attributes["body"], inputs)


def _write_rows(
    builder: DecompositionBuilder, attributes: Attributes, inputs: Sequence[Operand]
) -> tuple[str, ...]:
    results = _write_nodes(builder, attributes["body"], inputs)
    if attributes["on_error"] == VALUE:
        count = builder("Shape", inputs[0], start=0, end=1)
        results += (builder("Expand", np.array(True), count),)
    return results


def _write_nodes(
    builder: DecompositionBuilder, body: Graph, inputs: Sequence[Operand]
) -> tuple[str, ...]:
    known: dict[str, Operand] = {"": "", **body.constants}
    known.update(zip(body.inputs, inputs, strict=True))
    for node in body.nodes:
        operands = [known[name] for name in node.inputs]
        if node.op == EACH:  # devices that lack one lack the other
            made: Sequence[str] = _write_rows(builder, node.attributes, operands)
        else:
            made = builder.several(len(node.outputs), node.op, *operands, **node.attributes)
        known.update(zip(node.outputs, made, strict=True))
    found = [known[name] for name in body.outputs]
    return tuple(one if isinstance(one, str) else builder("Identity", one) for one in found)
