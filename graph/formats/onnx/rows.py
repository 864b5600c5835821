"""Graphs for rows, and those held whole, as nodes of the graph around them: ONNX knows neither."""

from __future__ import annotations

from dataclasses import replace

from ...decompositions import decomposed, decompositions
from ...ir import Graph, Node
from ...nested import all_nodes
from ...operators.each import EACH
from ...passes.rewriting import Rewriter
from ...whole import WHOLE

_INLINED = EACH, WHOLE


def inline_rows(graph: Graph) -> Graph:
    """Return a graph that computes the same without `Each` and `Whole`, nested graphs included.

    A row that fails fails everything there.
    """
    if all(node.op not in _INLINED for _, _, node in all_nodes(graph)):
        return graph
    rewriter = Rewriter(replace(graph, nodes=tuple(map(_inline_inside, graph.nodes))))
    for node in rewriter.find(*_INLINED):
        (rule,) = decompositions()[node.op]
        made = decomposed(rewriter, node, rule)
        assert made is not None, "it is the graph itself"
        rewriter.replace([node], made)
    return rewriter.result()


def _inline_inside(node: Node) -> Node:
    """Return a node whose own graphs have no `Each`."""
    graphs = {k: inline_rows(v) for k, v in node.attributes.items() if isinstance(v, Graph)}
    return replace(node, attributes={**node.attributes, **graphs}) if graphs else node
