"""The registry of gradient rules, and the node and gradients that a rule is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from ..core.ir import Node
from ..core.operator import find_operator, list_operators
from ..core.traits import FLAT
from ..values.errors import GraphError
from ..values.registry import Registry
from ..values.tensor import Dim, Shape
from .formula import Formula, Term
from .recomputation import Recomputation


class Adjoint:
    """One node of the backward pass.

    Attributes
    ----------
    formula : Formula
        Writes the gradient's nodes.
    inputs : tuple of Term or None
        None for an absent optional input.
    gradients : tuple of Term or None
        One for each output; None if no y depends on it.
    """

    def __init__(
        self,
        node: Node,
        formula: Formula,
        gradients: Sequence[Term | None],
        wanted: Sequence[bool],
        again: Recomputation | None = None,
    ) -> None:
        self.node = node
        self.formula = formula
        self.gradients = tuple(gradients)
        self._wanted = tuple(wanted)
        self._again = again
        self._first = next((term.name for term in gradients if term is not None), "")
        self.inputs = tuple(self._term(name) if name else None for name in node.inputs)

    def __getitem__(self, attribute: str) -> Any:
        return self.node.attributes[attribute]

    def input(self, index: int) -> Term:
        term = self.inputs[index]
        assert term is not None
        return term

    def optional(self, index: int) -> Term | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int = 0) -> Term:
        known = self.node.outputs
        if index < len(known) and known[index]:
            return self._term(known[index])
        node = self.node.name
        if self._again is not None:
            node = self._again.node(self.node, self._first)
        return self.formula.term(self.formula.builder.ask_for(node, index))

    def wants(self, index: int) -> bool:
        return index < len(self._wanted) and self._wanted[index]

    @property
    def dy(self) -> Term:
        """The gradient of the first output; zeros if no y depends on it."""
        return self.gradient(0)

    def gradient(self, index: int) -> Term:
        found = self.gradients[index] if index < len(self.gradients) else None
        return self.formula.like(self.output(index), 0) if found is None else found

    def summed(self, term: Term, like: Term, shape: Shape | None = None) -> Term:
        """Return `term` summed over axes along which the input `like` is broadcast, in its shape.

        `shape` is the known shape of `term`; that of the first output by default.
        """
        wide = self.output(0).spec.shape if shape is None else shape
        narrow = like.spec.shape
        if wide is None or narrow is None:
            return _sum_by_shapes(term, like)
        if wide == narrow:
            return term
        lead = len(wide) - len(narrow)
        pairs = list(zip(wide[lead:], narrow, strict=True))
        if any(a != b and b != 1 for a, b in pairs):  # a symbol may turn out to be 1
            return _sum_by_shapes(term, like)
        axes = [*range(lead), *(lead + i for i, (a, b) in enumerate(pairs) if a != b)]
        if len(axes) == lead:
            return term.sum(axes, keepdims=False)
        return term.sum(axes).reshaped(self.formula.shape_of(like))

    def shared(self, term: Term, dims: Sequence[Dim], whole: Term, part: Term) -> Term:
        """Return `term` divided by the number of elements of `whole` for each element of `part`.

        The number is the product of `dims` if these are numbers. It may be too large for float16,
        which is divided in single precision.
        """
        wide = term.cast("float32") if term.dtype.itemsize < 4 else term
        lengths = [dim for dim in dims if isinstance(dim, int)]
        if len(lengths) == len(dims):
            return (wide / math.prod(lengths)).cast(term.dtype)
        count = whole.op("Size") / part.op("Size")
        return (wide / count.cast(wide.dtype)).cast(term.dtype)

    def _term(self, tensor: str) -> Term:
        if self._again is None:
            return self.formula.term(tensor)
        return self._again.term(self.formula, tensor, self._first)

    def refused_error(self, why: str, fix: str) -> GraphError:
        return GraphError(f"no gradient of {self.node.op}: {why}", at=str(self.node), fix=fix)


def _sum_by_shapes(term: Term, like: Term) -> Term:
    """Return `term` summed to the shape of `like`; only at run time it is known along which axes.

    An axis of length n that was 1 is split into n times 1, any other into 1 times n; the sum is
    over the first of each two.
    """
    formula, lead = term.formula, term.rank - like.rank
    narrow = formula.joined(formula.constant([1] * lead), formula.shape_of(like))
    repeats = formula.shape_of(term) / narrow.op("Max", formula.constant(1))
    return sum_of_repeats(term, repeats, narrow, term.rank).reshaped(formula.shape_of(like))


def sum_of_repeats(term: Term, repeats: Term, lengths: Term, rank: int) -> Term:
    """Sum the repeats in `term`: its `rank` axes are `repeats` times as long as `lengths`."""
    formula = term.formula
    column = formula.constant([1])
    pairs = [vector.op("Unsqueeze", column) for vector in (repeats, lengths)]
    both = formula.op("Concat", *pairs, axis=1).reshaped(formula.constant([2 * rank]))
    return term.reshaped(both).sum(range(0, 2 * rank, 2), keepdims=False)


Rule: TypeAlias = Callable[[Adjoint], Iterable[tuple[int, Term]]]
"""Yields the index of an input and its gradient, for the inputs that the adjoint wants."""

_Rule = TypeVar("_Rule", bound=Rule)

_rules: Registry[str, Rule] = Registry("two gradients of {!r}")


def gradient(op: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers the gradient rule of the operator `op`.

    Raises
    ------
    GraphError
        If there is one already.
    """

    def decorate(rule: _Rule) -> _Rule:
        _rules.register(op, rule)
        return rule

    return decorate


def find_rule(op: str) -> Rule | None:
    return _rules.find(op)


def differentiable() -> tuple[str, ...]:
    """Return the names of all operators that have a gradient, be it zero, sorted."""
    flat = (op for op in list_operators() if FLAT in find_operator(op).traits)
    return tuple(sorted({*_rules, *flat}))
