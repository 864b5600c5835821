"""Gradients of operators that have no rule, but can be written out in operators that do."""

from __future__ import annotations

from dataclasses import replace

from ..expansions import drafted, expansions
from ..ir import Graph
from ..passes.rewriting import Rewriter
from .adjoint import Adjoint
from .elementwise import Gradients


def is_written_out(op: str) -> bool:
    """True when an operator has an expansion, which may not take every node of it."""
    return op in expansions()


def through_expansion(at: Adjoint) -> Gradients:
    """Compute the node again as its expansion, and go back through that."""
    from .build import gradients  # which goes through nodes by rules such as this one

    builder, node = at.formula.builder, at.node
    simpler = _simpler(at)
    fed = {name: name for name in simpler.inputs}
    made = builder.include(simpler, fed, prefix=f"gradient/{node.name}/")
    pairs = zip(node.outputs, at.gradients, strict=True)
    given = [(made[output], g.name) for output, g in pairs if g is not None]
    ys, weights = [y for y, _ in given], [weight for _, weight in given]
    wanted = [index for index in range(len(node.inputs)) if at.wants(index)]
    xs = [node.inputs[index] for index in wanted]
    for index, gradient in zip(wanted, gradients(builder, ys, xs, weights), strict=True):
        yield index, at.formula.term(gradient)


def _simpler(at: Adjoint) -> Graph:
    """Return a graph of what is written in place of the node, and of its inputs."""
    builder, node = at.formula.builder, at.node
    named = dict.fromkeys(name for name in node.inputs if name)
    outputs = tuple(name for name in node.outputs if name)
    tensors = {name: builder.spec(name) for name in (*named, *outputs)}
    values = {name: builder.value(name) for name in named}
    constants = {name: value for name, value in values.items() if value is not None}
    inputs = tuple(name for name in named if name not in constants)
    alone = Graph(node.name, inputs, outputs, (node,), tensors, constants)
    for rule in expansions()[node.op]:
        rewriter = Rewriter(alone)
        made = drafted(rewriter, node, rule)
        if made:
            rewriter.replace([node], made)
            graph = rewriter.result()
            rest = {n: v for n, v in graph.constants.items() if n not in constants}
            return replace(graph, inputs=tuple(named), constants=rest)
    raise at.refuse(
        "this form of it is not written out in operators that have gradients",
        "give its inputs shapes made of numbers, sequences of at most 32 steps, or write it out",
    )
