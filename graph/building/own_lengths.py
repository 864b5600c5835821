"""Lengths that Python functions decide: each call has its own, unless they have one name.

An operator declares such a length by a symbol that none of its inputs has. In a graph, equal
symbols are equal lengths, so that a second call of the same operator gets new ones. Their names are
an attribute of the node: symbol of the declaration, symbol in the graph, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.attribute import LENGTHS, Attributes
from ..core.infer import infer_node
from ..core.ir import Graph, Node
from ..core.operator import Call
from ..values.errors import OperatorError
from ..values.names import Names
from ..values.tensor import TensorSpec, list_symbols


def read_names(attributes: Attributes) -> dict[str, str]:
    """Map the lengths declared in `attributes` to their names in the graph, where these differ."""
    write_names: Sequence[str] = attributes.get(LENGTHS, ())
    return dict(zip(write_names[::2], write_names[1::2], strict=True))


def write_names(names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(one for pair in names.items() for one in pair)


def find_renamed_lengths(graph: Graph) -> dict[str, str]:
    return {
        name: declared
        for node in graph.nodes
        for declared, name in read_names(node.attributes).items()
        if name != declared
    }


class OwnLengths:
    """The lengths that the calls of a graph under construction decide, by operator."""

    def __init__(self, taken: Iterable[tuple[str, str]] = ()) -> None:
        self._taken = set(taken)

    def copy(self) -> OwnLengths:
        return OwnLengths(self._taken)

    def is_taken(self, op: str, name: str) -> bool:
        return (op, name) in self._taken

    def named(
        self, node: Node, call: Call, tensors: Mapping[str, TensorSpec], inputs: Iterable[str]
    ) -> Node:
        """Name the lengths that `node` decides in `call`, with new names for those in use.

        `tensors` are all tensors so far, and `inputs` the fed ones: a declared length with the name
        of a fed one is that length. Raises OperatorError if the node names a length that the
        operator does not declare.
        """
        declared = find_own_symbols(node, call)
        given = read_names(node.attributes)
        if unknown := given.keys() - declared:
            raise OperatorError(
                f"{node.op} decides no length {sorted(unknown)[0]!r}",
                at=f"node {node.name!r}",
                fix=f"it decides: {', '.join(declared) or 'none'}",
            )
        again = [one for one in declared if one not in given and self.is_taken(node.op, one)]
        if again:
            fed = list_symbols(tensors[name] for name in inputs)
            names = Names(list_symbols(tensors.values()))
            given.update((one, names.take(one)) for one in again if one not in fed)
        self._taken.update((node.op, given.get(symbol, symbol)) for symbol in declared)
        return replace(node, attributes={**node.attributes, LENGTHS: write_names(given)})


class IncludedLengths:
    """The names of a graph's own lengths in another one that includes it.

    Those that are equal in there stay so, and are not equal to those of calls that were there.
    `own` are those of the other graph.
    """

    def __init__(self, graph: Graph, own: OwnLengths) -> None:
        self._graph = graph
        self._own = own
        self._before = own.copy()
        self._names: dict[str, str] = {}

    def of(self, node: Node, tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
        """Return the attribute of an included `node`, given the `tensors` of the other graph."""
        given, found = read_names(node.attributes), {}
        for symbol in find_own_symbols(node, self._graph.call(node)):
            inside = given.get(symbol, symbol)
            if inside not in self._names:
                names = Names(list_symbols(tensors.values()))
                is_taken = self._before.is_taken(node.op, inside)
                self._names[inside] = names.take(symbol) if is_taken else inside
            name = self._names[inside]
            if name != symbol or self._own.is_taken(node.op, name):
                found[symbol] = name
        return write_names(found)


def find_own_symbols(node: Node, call: Call) -> dict[str, None]:
    """Return the lengths that the operator of `node` declares and its inputs lack.

    Declared inputs have the operator's own symbols. Otherwise those in `call` count.
    """
    plain, inputs = {**node.attributes, LENGTHS: ()}, call.inputs
    if node.operator.declared:  # results of earlier calls may have lengths of the same names
        inputs = tuple(spec and _with_marked_symbols(spec) for spec in inputs)
    call = replace(call, inputs=inputs, attributes=plain)
    specs = infer_node(replace(node, attributes=plain), call)
    read = list_symbols(spec for spec in inputs if spec is not None)
    return {one: None for one in list_symbols(specs) if one not in read and one.isidentifier()}


def _with_marked_symbols(spec: TensorSpec) -> TensorSpec:
    if spec.shape is None:
        return spec
    marked = [f"fed.{one}" if isinstance(one, str) else one for one in spec.shape]
    return TensorSpec(spec.dtype, tuple(marked))
