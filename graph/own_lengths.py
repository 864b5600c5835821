"""Lengths that Python functions decide: each call has its own, unless they are called alike.

An operator declares such a length by a symbol that none of its inputs has. In a graph, equal
symbols are equal lengths, so that a second call of the same operator gets other ones. What they are
called is an attribute of the node: symbol of the declaration, symbol in the graph, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .attribute import LENGTHS, Attributes
from .errors import OperatorError
from .infer import infer_node
from .ir import Graph, Node
from .names import Names
from .operator import Call
from .tensor import TensorSpec, symbols_of


def names_in(attributes: Attributes) -> dict[str, str]:
    """Return what the lengths of a call's declaration are called in the graph, where it says so."""
    listed: Sequence[str] = attributes.get(LENGTHS, ())
    return dict(zip(listed[::2], listed[1::2], strict=True))


def listed(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return what lengths are called as an attribute."""
    return tuple(one for pair in names.items() for one in pair)


def original_lengths(graph: Graph) -> dict[str, str]:
    """Return the lengths of a graph that are called otherwise than declared, each with that."""
    return {
        name: declared
        for node in graph.nodes
        for declared, name in names_in(node.attributes).items()
        if name != declared
    }


class OwnLengths:
    """The lengths that the calls of a graph under construction decide, by operator."""

    def __init__(self, taken: Iterable[tuple[str, str]] = ()) -> None:
        self._taken = set(taken)

    def copy(self) -> OwnLengths:
        """Return those that there are now."""
        return OwnLengths(self._taken)

    def is_taken(self, op: str, name: str) -> bool:
        """True when a call of the operator decides a length of that name."""
        return (op, name) in self._taken

    def named(
        self, node: Node, call: Call, tensors: Mapping[str, TensorSpec], inputs: Iterable[str]
    ) -> Node:
        """Return a node whose own lengths have names, new ones where others have theirs.

        `tensors` are all that there are. Those that are fed are `inputs`: who declares a length of
        one of these means that one.

        Raises
        ------
        OperatorError
            If the node names a length that the operator does not declare.
        """
        declared = own_symbols(node, call)
        given = names_in(node.attributes)
        if unknown := given.keys() - declared:
            raise OperatorError(
                f"{node.op} decides no length {sorted(unknown)[0]!r}",
                at=f"node {node.name!r}",
                fix=f"it decides: {', '.join(declared) or 'none'}",
            )
        again = [one for one in declared if one not in given and self.is_taken(node.op, one)]
        if again:
            fed = symbols_of(tensors[name] for name in inputs)
            names = Names(symbols_of(tensors.values()))
            given.update((one, names.take(one)) for one in again if one not in fed)
        self._taken.update((node.op, given.get(symbol, symbol)) for symbol in declared)
        return replace(node, attributes={**node.attributes, LENGTHS: listed(given)})


class IncludedLengths:
    """What the own lengths of a graph are called in another one that it is included in.

    Those that are equal in there stay so, and are not equal to those of calls that were there.

    Parameters
    ----------
    graph : Graph
    own : OwnLengths
        Those of the other graph.
    """

    def __init__(self, graph: Graph, own: OwnLengths) -> None:
        self._graph = graph
        self._own = own
        self._before = own.copy()
        self._names: dict[str, str] = {}

    def of(self, node: Node, tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
        """Return the attribute of a node of the graph in the other one, whose tensors are these."""
        given, found = names_in(node.attributes), {}
        for symbol in own_symbols(node, self._graph.call(node)):
            inside = given.get(symbol, symbol)
            if inside not in self._names:
                names = Names(symbols_of(tensors.values()))
                is_taken = self._before.is_taken(node.op, inside)
                self._names[inside] = names.take(symbol) if is_taken else inside
            name = self._names[inside]
            if name != symbol or self._own.is_taken(node.op, name):
                found[symbol] = name
        return listed(found)


def own_symbols(node: Node, call: Call) -> dict[str, None]:
    """Return the lengths that the operator of a node declares, and none of its inputs has."""
    plain = {**node.attributes, LENGTHS: ()}
    specs = infer_node(replace(node, attributes=plain), replace(call, attributes=plain))
    read = symbols_of(spec for spec in call.inputs if spec is not None)
    return {one: None for one in symbols_of(specs) if one not in read and one.isidentifier()}
