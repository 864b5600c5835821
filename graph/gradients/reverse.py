"""Reverse accumulation: from what depends on a tensor back to the tensor, node by node.

The gradient of a sum of outputs, each weighted by its `grad_ys`. Source: Griewank and Walther,
*Evaluating Derivatives* (2nd edition, 2008), section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..builder import GraphBuilder
from ..dtypes import kind_of
from ..errors import GraphError
from ..ir import Node
from ..nested import draws, graphs_in
from ..traits import FLAT, Part
from .adjoint import Adjoint
from .formula import Formula, Term
from .recomputation import Recomputation
from .registry import find_rule
from .via_decomposition import is_written_out, through_decomposition


class Reverse:
    """One sweep from outputs to inputs.

    Parameters
    ----------
    builder : GraphBuilder
    xs : sequence of str
    again : Recomputation, optional
        What is not kept for the way back.

    Attributes
    ----------
    formula : Formula
    """

    def __init__(
        self, builder: GraphBuilder, xs: Sequence[str], again: Recomputation | None = None
    ) -> None:
        self.formula = Formula(builder)
        self._again = again
        self._builder = builder
        self._nodes = builder.nodes
        self._changing = _changing(builder, self._nodes, xs)
        self._parts: dict[str, list[Term]] = {}

    def add(self, tensor: str, gradient: Term) -> None:
        """Add to the gradient of a tensor."""
        self._parts.setdefault(tensor, []).append(gradient)

    def total(self, tensor: str) -> Term | None:
        """Return the gradient of a tensor, None where nothing depends on it."""
        parts = self._parts.get(tensor)
        if parts is None:
            return None
        if len(parts) > 1:
            # Kept as one: an output may be asked for again, by its node and as an x.
            self._parts[tensor] = [parts[0].op("Add" if len(parts) == 2 else "Sum", *parts[1:])]
        return self._parts[tensor][0]

    def sweep(self) -> None:
        """Go back through all nodes, from the last one to the first."""
        # Against the order of the graph: all readers of a tensor have added to its gradient by the
        # time that its writer is asked.
        for node in reversed(self._nodes):
            wanted = [self._is_changing(t) and not self._is_empty(t) for t in node.inputs]
            depends = any(tensor in self._parts for tensor in node.outputs)
            if depends and any(wanted) and any(map(self._is_changing, node.outputs)):
                self._pass(node, wanted)

    def _is_empty(self, tensor: str) -> bool:
        spec = self._builder.spec(tensor)
        return spec.is_static and spec.size == 0

    def _pass(self, node: Node, wanted: Sequence[bool]) -> None:
        """Add what comes to a node's inputs."""
        rule = find_rule(node.op) or (through_decomposition if is_written_out(node.op) else None)
        if rule is None:
            reason = node.operator.lacks.get(Part.GRADIENT)
            raise GraphError(
                f"no gradient of {node.op} is known" + (f": {reason}" if reason else ""),
                at=str(node),
                fix="write it with other operators, or register a rule with "
                "plait.graph.gradients.gradient",
            )
        if graphs_in(node) and draws(node):  # its graphs are run anew, where they would draw anew
            raise GraphError(
                f"no gradient of {node.op}: a graph inside of it draws random numbers",
                at=str(node),
                fix="draw them outside, and hand them in",
            )
        self.formula.prefix = f"gradient/{node.name}/"
        gradients = [self.total(tensor) if tensor else None for tensor in node.outputs]
        adjoint = Adjoint(node, self.formula, gradients, wanted, self._again)
        for index, gradient in rule(adjoint):
            if wanted[index]:
                tensor = node.inputs[index]
                self.add(tensor, gradient.cast(self._builder.spec(tensor).dtype))

    def _is_changing(self, tensor: str) -> bool:
        return tensor in self._changing


def _changing(builder: GraphBuilder, nodes: Iterable[Node], xs: Iterable[str]) -> set[str]:
    """Return the floats that change where one of the tensors does."""
    found = set(xs)
    for node in nodes:
        if FLAT not in node.operator.traits and not found.isdisjoint(node.inputs):
            found.update(t for t in node.outputs if t and is_float(builder, t))
    return found


def is_float(builder: GraphBuilder, tensor: str) -> bool:
    """True when a tensor holds floats: nothing else has a gradient."""
    return kind_of(builder.spec(tensor).dtype) == "f"
