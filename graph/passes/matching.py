"""Patterns of nodes and rules that replace their matches.

``Pattern("Mul", ("x", Pattern("Sigmoid", ("x",))))`` is x times its sigmoid. Patterns are tried in
one scan, at each node of their last operator. Rules that never end raise an error.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ..core.ir import Node
from ..core.traits import COMMUTATIVE
from ..values.errors import GraphError
from ..values.tensor import Array
from .rewriting import Rewriter

LEAST_BUDGET = 100


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant in a pattern, with a name in the match.

    `fits` returns whether a constant matches.
    """

    name: str
    fits: Callable[[Array], bool] | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """An output of an operator in a pattern.

    Parameters
    ----------
    op : str or tuple of str
        The operator, or alternatives.
    inputs : tuple
        Patterns; constants, as `Constant` or as a number; names for other tensors, the same name
        for the same tensor; None for an absent input. Commutative operators match in either order.
    attributes : Mapping, optional
        Values by name, or functions that return whether a value matches.
    name : str
        Name of the node in the match.
    shared : bool
        Whether the output may have other readers; the node stays then.
    output : int
        Index of the output.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> from plait.passes import Pattern, Rewriter, matches
    >>> b = pl.GraphBuilder("soft")
    >>> x = b.input("x", "float32", (4,))
    >>> b.output("y", b.op("Log", b.op("Add", b.op("Exp", x), np.float32(1)), name="last"))
    >>> rewriter = Rewriter(b.build())
    >>> softplus = Pattern("Log", (Pattern("Add", (Pattern("Exp", ("x",)), 1.0)),))
    >>> (match,) = matches(rewriter, softplus, rewriter.node("last"))
    >>> [node.op for node in match.nodes], match.tensors
    (['Log', 'Add', 'Exp'], {'x': 'x'})
    """

    op: str | tuple[str, ...]
    inputs: tuple[Operand, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    shared: bool = False
    output: int = 0

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,) if isinstance(self.op, str) else self.op


Operand: TypeAlias = Pattern | Constant | str | float | None


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a pattern.

    Attributes
    ----------
    nodes : tuple of Node
        Nodes without other readers, the last one first.
    tensors : Mapping of str to str
        Tensors and constants by their names in the pattern.
    named : Mapping of str to Node
        Nodes by their names in the pattern.
    """

    nodes: tuple[Node, ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, Node] = field(default_factory=dict)

    @property
    def last(self) -> Node:
        return self.nodes[0]


Build: TypeAlias = Callable[[Rewriter, Match], Sequence[Node] | None]
"""Returns the replacement of a match, or None to keep it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and its replacement.

    Parameters
    ----------
    name : str
        For errors.
    build : callable
        Takes the `Rewriter` and the match; returns nodes that write the outputs of the last one.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.passes import Pattern, Rewriter, Rule, apply
    >>> def build(rewriter, match):
    ...     x, last = match.tensors["x"], match.last
    ...     return [rewriter.make("Abs", (x,), last.outputs, name=last.name)]
    >>> b = pl.GraphBuilder("root")
    >>> x = b.input("x", "float32", (4,))
    >>> b.output("y", b.op("Sqrt", b.op("Mul", x, x)))
    >>> rewriter = Rewriter(b.build())
    >>> apply(rewriter, [Rule("abs", Pattern("Sqrt", (Pattern("Mul", ("x", "x")),)), build)])
    >>> [node.op for node in rewriter.result().nodes]
    ['Abs']
    """

    name: str
    pattern: Pattern
    build: Build
    needs: tuple[frozenset[str], ...] = field(init=False)
    """For each pattern among the inputs of the last node, its possible operators."""

    def __post_init__(self) -> None:
        inner = (each for each in self.pattern.inputs if isinstance(each, Pattern))
        object.__setattr__(self, "needs", tuple(frozenset(each.ops) for each in inner))


def apply(rewriter: Rewriter, rules: Sequence[Rule], budget: int | None = None) -> None:
    """Apply rules until none matches, also to the nodes that they write.

    Parameters
    ----------
    budget : int, optional
        Limit of applications; by default twice the number of nodes, but at least a hundred.

    Raises
    ------
    GraphError
        If the limit is reached: the rules undo one another. The message names the last one.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.passes import Pattern, Rewriter, Rule, apply
    >>> b = pl.GraphBuilder("twice")
    >>> b.output("y", b.op("Relu", b.op("Relu", b.input("x", "float32", (4,)))))
    >>> def build(rewriter, match):
    ...     last = match.last
    ...     return [rewriter.make("Relu", (match.tensors["x"],), last.outputs, name=last.name)]
    >>> rewriter = Rewriter(b.build())
    >>> apply(rewriter, [Rule("once", Pattern("Relu", (Pattern("Relu", ("x",)),)), build)])
    >>> len(rewriter.result().nodes)
    1
    """
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in rule.pattern.ops:
            by_op.setdefault(op, []).append(rule)
    # One scan, in order. New nodes come next, since further rules may match them.
    waiting = deque(rewriter.find(*by_op))
    left = max(LEAST_BUDGET, 2 * len(rewriter.graph.nodes)) if budget is None else budget
    # Waiting nodes may have been removed or rewired since.
    while waiting:
        node = waiting.popleft()
        if node not in rewriter:
            continue
        applied = _apply_one(rewriter, by_op.get(node.op, ()), node)
        if applied is None:
            continue
        rule, new = applied
        left -= 1
        if left < 0:
            raise GraphError(
                f"the rule {rule.name!r} was applied again and again",
                at=str(node),
                fix="repair the rule: what it writes must not match",
            )
        waiting.extendleft(reversed(new))


def _apply_one(
    rewriter: Rewriter, rules: Sequence[Rule], node: Node
) -> tuple[Rule, Sequence[Node]] | None:
    writers = {n.op for name in node.inputs if (n := rewriter.producer(name)) is not None}
    for rule in rules:
        # This cheap check refuses most nodes.
        if any(writers.isdisjoint(ops) for ops in rule.needs):
            continue
        for match in matches(rewriter, rule.pattern, node):
            new = rule.build(rewriter, match)
            if new is not None and all(rewriter.may_merge(match.nodes[::-1], n) for n in new):
                rewriter.replace(match.nodes, new)
                return rule, new
    return None


def matches(rewriter: Rewriter, pattern: Pattern, node: Node) -> Iterator[Match]:
    if pattern.output < len(node.outputs):
        for match in _match_operand(rewriter, pattern, node.outputs[pattern.output], Match()):
            if _is_closed(rewriter, match):
                yield match


def _match_operand(
    rewriter: Rewriter, operand: Operand, tensor: str, so_far: Match
) -> Iterator[Match]:
    if isinstance(operand, Pattern):
        yield from _match_node(rewriter, operand, tensor, so_far)
    elif operand is None:
        if not tensor:
            yield so_far
    elif isinstance(operand, str):
        if tensor and tensor not in rewriter.constants:
            yield from _bind_name(so_far, operand, tensor)
    elif tensor in rewriter.constants:
        value = rewriter.constants[tensor]
        if not isinstance(operand, Constant):
            if is_number(value, operand):
                yield so_far
        elif operand.fits is None or operand.fits(value):
            yield from _bind_name(so_far, operand.name, tensor)


def _match_node(
    rewriter: Rewriter, pattern: Pattern, tensor: str, so_far: Match
) -> Iterator[Match]:
    node = rewriter.producer(tensor)
    if node is None or node.op not in pattern.ops or len(node.inputs) != len(pattern.inputs):
        return
    if node.outputs.index(tensor) != pattern.output:
        return
    if not all(_fits(node.attributes[key], want) for key, want in pattern.attributes.items()):
        return
    # Shared nodes stay, so they are not among the nodes to replace.
    met = so_far.nodes if pattern.shared or node in so_far.nodes else (*so_far.nodes, node)
    named = {**so_far.named, pattern.name: node} if pattern.name else so_far.named
    # For two equal inputs one order is enough.
    commutes = COMMUTATIVE in node.operator.traits and node.inputs[0] != node.inputs[1]
    orders = itertools.permutations(node.inputs) if commutes else [node.inputs]
    for order in orders:
        found = [replace(so_far, nodes=met, named=named)]
        # Each input narrows the matches of the ones before: a name means one tensor.
        for inner, name in zip(pattern.inputs, order, strict=True):
            found = [m for earlier in found for m in _match_operand(rewriter, inner, name, earlier)]
        yield from found


def _bind_name(so_far: Match, name: str, tensor: str) -> Iterator[Match]:
    # A name met before must be this tensor again.
    if so_far.tensors.get(name, tensor) == tensor:
        yield replace(so_far, tensors={**so_far.tensors, name: tensor})


def _is_closed(rewriter: Rewriter, match: Match) -> bool:
    """Return whether tensors between nodes of `match` have no other readers in `rewriter`."""
    names = {node.name for node in match.nodes}
    return all(
        not rewriter.is_output(tensor)
        and tensor not in rewriter.graph.precisions
        and rewriter.reader_count(tensor) <= len(names)
        and all(reader.name in names for reader in rewriter.readers(tensor))
        for node in match.nodes[1:]
        for tensor in node.outputs
        if tensor
    )


def _fits(value: Any, wanted: Any) -> bool:
    if callable(wanted):
        return bool(wanted(value))
    return is_close(value, wanted) if isinstance(wanted, float) else bool(value == wanted)


def is_number(array: Array, value: float) -> bool:
    """Return whether `array` is one float that equals `value` up to rounding."""
    return bool(array.size == 1 and array.dtype.kind == "f" and is_close(array.item(), value))


def is_close(number: float, value: float) -> bool:
    return bool(np.float32(number) == np.float32(value)) or math.isclose(
        number, value, rel_tol=2e-7
    )
