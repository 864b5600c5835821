"""Gradients through a node that is recomputed with other operators, which have rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..core.ir import Graph
from ..decompositions.rules import decompose, decompositions
from ..passes.rewriting import Rewriter
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint

Inputs: TypeAlias = Sequence[Term | None]
Write: TypeAlias = Callable[[Inputs], Sequence[Term | None]]
"""Returns replacements for a node's outputs, given those for its inputs."""


def differentiate_through(at: Adjoint, write: Write) -> Gradients:
    """Recompute the node `at` by calling `write`, and differentiate that.

    `write` gets copies of the inputs: one may depend on another, and the gradient must not follow
    the path between these two here.
    """
    from .build import gradients  # which goes through nodes by rules such as this one

    node, formula = at.node, at.formula
    wanted = {tensor: i for i, tensor in reversed([*enumerate(node.inputs)]) if at.wants(i)}
    copies = {tensor: at.input(i).op("Identity") for tensor, i in wanted.items()}
    given = [copies.get(tensor, x) for tensor, x in zip(node.inputs, at.inputs, strict=True)]
    made = write(given)
    pairs = zip(made, at.gradients, strict=False)
    weighed = [(y.name, g.name) for y, g in pairs if y is not None and g is not None]
    ys, weights = [y for y, _ in weighed], [g for _, g in weighed]
    found = gradients(formula.builder, ys, [x.name for x in copies.values()], weights)
    yield from zip(wanted.values(), map(formula.term, found), strict=True)


def differentiate_expansion(at: Adjoint) -> Gradients:
    simpler, node, formula = _expand(at), at.node, at.formula

    def write(inputs: Inputs) -> list[Term | None]:
        fed = {name: x.name for name, x in zip(node.inputs, inputs, strict=True) if x is not None}
        made = formula.builder.include(simpler, fed, prefix=f"gradient/{node.name}/")
        return [formula.term(made[name]) if name else None for name in node.outputs]

    yield from differentiate_through(at, write)


def _expand(at: Adjoint) -> Graph:
    """Return the graph of the expansion of the node `at`, and of its inputs."""
    builder, node = at.formula.builder, at.node
    named = dict.fromkeys(name for name in node.inputs if name)
    outputs = tuple(name for name in node.outputs if name)
    tensors = {name: builder.spec(name) for name in (*named, *outputs)}
    values = {name: builder.value(name) for name in named}
    constants = {name: value for name, value in values.items() if value is not None}
    inputs = tuple(name for name in named if name not in constants)
    alone = Graph(node.name, inputs, outputs, (node,), tensors, constants)
    for rule in decompositions()[node.op]:
        rewriter = Rewriter(alone)
        made = decompose(rewriter, node, rule)
        if made:
            rewriter.replace([node], made)
            graph = rewriter.result()
            rest = {n: v for n, v in graph.constants.items() if n not in constants}
            return replace(graph, inputs=tuple(named), constants=rest)
    raise at.refused_error(
        "this form of it is not written out in operators that have gradients",
        "give its inputs shapes made of numbers, or write it out",
    )
