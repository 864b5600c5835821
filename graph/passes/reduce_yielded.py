"""Fold the rows of a generator function into values without keeping a row."""

from __future__ import annotations

from ..core.ir import Node
from ..functions.generators import is_generator
from ..operators.reduce_rows import REDUCE_ROWS, REDUCED_CALL, make_reduced_call
from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass(REDUCE_ROWS)
def reduce_yielded(rewriter: Rewriter) -> None:
    """Replace a generator function and ReduceRows, its only reader, by one ReducedCall.

    The number of rows is then not the length of a tensor, and needs no bound.
    """
    for node in rewriter.find(REDUCE_ROWS):
        generator = _find_generator(rewriter, node)
        if generator is None:
            continue
        body = make_reduced_call(generator, node, rewriter.tensors)
        one = rewriter.make(REDUCED_CALL, body.inputs, node.outputs, name=node.name, body=body)
        if rewriter.may_merge([generator, node], one):
            rewriter.replace([generator, node], [one])


def _find_generator(rewriter: Rewriter, node: Node) -> Node | None:
    count = len(node.attributes["body"].outputs)
    generator = rewriter.producer(node.inputs[count])
    if generator is None or not is_generator(generator.operator.function):
        return None
    yielded = [name in generator.outputs for name in node.inputs]
    if yielded != [False] * count + [True] * (len(yielded) - count) or "" in node.outputs:
        return None
    return generator if rewriter.only_consumer(generator) is node else None
