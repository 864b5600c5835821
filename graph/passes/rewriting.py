"""A graph under change: groups of nodes are replaced, producers and readers kept up to date.

Every change is checked first and then made as a whole (seeds H5 to H14): inputs and outputs keep
their names, nodes with effects stay, the order stays a topological one. A change costs time in
proportion to its own size, so that a pass is linear in the nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..core.infer import infer_node
from ..core.ir import Graph, Node, make_call
from ..core.nested import has_effects
from ..core.operator import Call, find_operator
from ..core.traits import Trait
from ..values.errors import GraphError
from ..values.names import Names
from ..values.tensor import Array, TensorSpec, spec_of
from .constants import ConstantPool
from .wiring import Wiring

MayMerge: TypeAlias = Callable[[Graph, Sequence[Node], Node], bool]
"""Returns whether nodes of a graph may be replaced by one node: (graph, nodes, replacement)."""


@runtime_checkable
class Placing(Protocol):
    """A `MayMerge` that also knows which nodes can run."""

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool: ...

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why no device can run `node` of `graph`, or None."""

    def inside(self) -> Placing:
        """Return the rule for nested graphs, which run in the form that passes leave."""


def allow_any(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
    return True


class Rewriter:
    """The state of a pass.

    Parameters
    ----------
    graph : Graph
        Is not changed: `result` returns another.
    may_merge : callable
        Decides which nodes may become one.

    Attributes
    ----------
    constants : Mapping of str to Array
        Both of the current nodes.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.passes import Rewriter
    >>> b = pl.GraphBuilder("copy")
    >>> x = b.input("x", "float32", (2,))
    >>> b.output("y", b.op("Relu", b.op("Identity", x, name="copy"), name="relu"))
    >>> rewriter = Rewriter(b.build())
    >>> copy = rewriter.node("copy")
    >>> rewriter.bypass(copy, {copy.outputs[0]: "x"})
    True
    >>> [node.op for node in rewriter.result().nodes]
    ['Relu']
    """

    def __init__(self, graph: Graph, may_merge: MayMerge = allow_any) -> None:
        self.graph = graph
        self.tensors: dict[str, TensorSpec] = dict(graph.tensors)
        self.constants: dict[str, Array] = dict(graph.constants)
        self._may_merge = may_merge
        self._public = frozenset(graph.outputs)
        self._given = graph.prepared.union(graph.inputs, graph.variables)
        self._wiring = Wiring(graph)
        # With the node that the name stood for: a name may come to stand for another one.
        self._inferred: dict[str, tuple[Node, Sequence[TensorSpec]]] = {}
        self._first_size = self._size = count_size(graph.nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._wiring

    @property
    def names(self) -> KeysView[str]:
        return self._wiring.names

    def node(self, name: str) -> Node:
        return self._wiring.node(name)

    def find(self, *ops: str) -> list[Node]:
        """Return the nodes of the given operators, or all nodes, in order."""
        return [node for node in self._wiring.nodes() if not ops or node.op in ops]

    def find_with(self, trait: Trait) -> list[Node]:
        return [node for node in self._wiring.nodes() if trait in node.operator.traits]

    def producer(self, tensor: str) -> Node | None:
        return self._wiring.producer(tensor)

    def readers(self, tensor: str) -> list[Node]:
        return self._wiring.readers(tensor)

    def reader_count(self, tensor: str) -> int:
        return self._wiring.reader_count(tensor)

    def consumers(self, node: Node) -> list[Node]:
        """Return the nodes that read any output of `node`, each once."""
        found = {one.name: one for tensor in node.outputs for one in self.readers(tensor)}
        return list(found.values())

    def only_consumer(self, node: Node, *, alone: bool = False) -> Node | None:
        """Return the only node that reads the outputs of `node`.

        None if there are several, or an output is fetched; with `alone` also if the consumer reads
        other tensors, except constants.
        """
        found = self.consumers(node)
        fetched = any(tensor in self._public for tensor in node.outputs)
        if len(found) != 1 or fetched:
            return None
        others = set(filter(None, found[0].inputs)) - set(node.outputs) - self.constants.keys()
        return None if alone and others else found[0]

    def is_private(self, tensor: str) -> bool:
        # A precision is a promise about this very tensor, like a public name.
        declared = tensor in self._public or tensor in self.graph.precisions
        return not declared and self.reader_count(tensor) == 1

    def is_output(self, tensor: str) -> bool:
        return tensor in self._public

    def call(self, node: Node) -> Call:
        return make_call(node, self.tensors, self.constants)

    def specs(self, node: Node) -> Sequence[TensorSpec]:
        """Infer the specs of the outputs of `node`, once for each node."""
        known = self._inferred.get(node.name)
        if known is None or known[0] is not node:
            known = self._inferred[node.name] = node, infer_node(node, self.call(node))
        return known[1]

    def may_merge(self, nodes: Sequence[Node], one: Node) -> bool:
        return self._may_merge(self.view, nodes, one)

    def may_drop(self, node: Node) -> bool:
        """Return whether `node` may go: it is not pinned, or has the pin of its neighbours."""
        # Only a node that is not pinned may merge with one without a name.
        unnamed = replace(node, name="")
        if self.may_merge([node, unnamed], unnamed):
            return True
        before = [self.producer(tensor) for tensor in node.inputs[:1]]
        return any(
            bool(group) and all(one and self.may_merge([node, one], one) for one in group)
            for group in (before, self.consumers(node))
        )

    def make(
        self,
        op: str,
        inputs: Sequence[str],
        /,
        outputs: Sequence[str] | None = None,
        *,
        name: str,
        **attributes: Any,
    ) -> Node:
        """Return a node that is not in the graph yet.

        Parameters
        ----------
        outputs : sequence of str, optional
            By default, one tensor named after the node.
        name : str
            Made unique, unless it is the name of a node, which the new one is to replace.
        """
        complete = find_operator(op, at=name).complete(attributes, at=name)
        # The new node takes the name of the replaced one: pins and profiles refer to it.
        if name not in self.names:
            name = self._node_names.take(name)
        if outputs is None:
            outputs = (self._tensor_names.take(name),)
        node = Node(name, op, tuple(inputs), tuple(outputs), complete)
        # Recorded now, as the next node may read it before either is in the graph.
        for tensor, spec in zip(outputs, self.specs(node), strict=False):
            if tensor and tensor not in self.tensors:
                self.tensors[tensor] = spec
        return node

    def new_tensor(self, stem: str) -> str:
        return self._tensor_names.take(stem)

    def constant(self, value: Any, stem: str) -> str:
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        known = self._pool.find(array)
        if known is not None:
            return known
        name = self._tensor_names.take(stem)
        # All nodes with this constant share the array.
        array.flags.writeable = False
        self.constants[name], self.tensors[name] = array, spec_of(array)
        self._pool.add(name, array)
        return name

    def replace(self, old: Sequence[Node], new: Sequence[Node]) -> None:
        """Replace nodes by others, as one change.

        Parameters
        ----------
        new : sequence of Node
            In order. They write all tensors of `old` that others read, and may have their names.

        Raises
        ------
        GraphError
            If that would break the graph, which is left as it was.
        """
        if not old:
            raise GraphError("no node is replaced", fix="insert behind a node")
        # All checks come first, so that no error leaves half of a change. Sorted, as patterns list
        # their nodes from the last to the first.
        ranked = sorted(old, key=self._wiring.rank)
        check_replacement(self, ranked, new)
        at = self._wiring.stand_in(ranked, new)
        if at is None:
            raise refused_error("the nodes around would be in the wrong order", old)
        size = self._size + count_size(new) - count_size(ranked)
        check_growth(self._first_size, size, self.graph.name)
        self._wiring.exchange(ranked, new, at)
        self._size = size

    def insert(self, after: Node, new: Sequence[Node]) -> None:
        self.replace([after], [after, *new])

    def bypass(self, node: Node, to: Mapping[str, str]) -> bool:
        """Remove `node`; readers of its outputs read other tensors instead.

        Parameters
        ----------
        to : Mapping of str to str
            For each output that is read or fetched, an earlier tensor of the same spec.

        Returns
        -------
        bool
            False, without a change, if two public names would become one.

        Raises
        ------
        GraphError
            If a tensor is not written before the node.
        """
        for tensor in to.values():
            self._check_earlier(tensor, node)
        needed = [tensor for tensor in node.outputs if self._is_needed(tensor)]
        if has_effects(node) or any(tensor not in to for tensor in needed):
            return False
        public = [tensor for tensor in needed if tensor in self._public]
        sources = [to[tensor] for tensor in public]
        # A source takes over a public name, which must stay; it can take over one only.
        if len(set(sources)) < len(sources) or not all(map(self._may_be_renamed, sources)):
            return False
        if any(self.tensors[tensor] != self.tensors[to[tensor]] for tensor in needed):
            return False
        self._wiring.remove(node)
        # Readers of private outputs come first; they read the source by its final name.
        renamed = {to[tensor]: tensor for tensor in public}
        for tensor in needed:
            if tensor not in public:
                self._wiring.reread(tensor, renamed.get(to[tensor], to[tensor]))
        for source, tensor in renamed.items():
            self._wiring.rename(source, tensor)
        return True

    def reread(self, node: Node, to: Mapping[str, str]) -> Node:
        """Replace inputs of `node` by earlier tensors, as `to` maps them; return the new node."""
        changed = replace(node, inputs=tuple(to.get(name, name) for name in node.inputs))
        self.replace([node], [changed])
        return changed

    def drop_dead(self) -> None:
        """Remove nodes without readers in one sweep, if the graph has changed.

        Nodes with effects or fetched outputs stay.
        """
        # Backwards: readers are removed before their producers are checked.
        for node in reversed(self.find() if self._wiring.changed else ()):
            if not has_effects(node) and not any(map(self._is_needed, node.outputs)):
                self._wiring.remove(node)

    def result(self) -> Graph:
        """Return the current graph: `graph` itself if nothing has changed."""
        if not self._wiring.changed:
            return self.graph
        return self.view.with_nodes(self.find())

    @cached_property
    def view(self) -> Graph:
        return replace(self.graph, tensors=self.tensors, constants=self.constants)

    @cached_property
    def _node_names(self) -> Names:
        return Names(self.names)

    @cached_property
    def _tensor_names(self) -> Names:
        return Names(self.tensors)

    @cached_property
    def _pool(self) -> ConstantPool:
        return ConstantPool(self.constants, self.graph.precisions)

    def _is_needed(self, tensor: str) -> bool:
        return bool(tensor) and (tensor in self._public or self.reader_count(tensor) > 0)

    def _check_earlier(self, tensor: str, node: Node) -> None:
        writer = self.producer(tensor)
        if writer is None and tensor not in self._given and tensor not in self.constants:
            raise refused_error(f"there is no tensor {tensor!r}", [node])
        if writer is not None and self._wiring.rank(writer) >= self._wiring.rank(node):
            raise refused_error(
                f"{tensor!r} is written by {writer.name!r}, which is no earlier", [node]
            )

    def _may_be_renamed(self, tensor: str) -> bool:
        return self.producer(tensor) is not None and tensor not in self._public


GROWTH_FACTOR, GROWTH_FREE = 64, 100_000
"""Limits of nodes and inputs that a pass may write: for each existing one, and in addition."""


def count_size(nodes: Iterable[Node]) -> int:
    return sum(1 + len(node.inputs) for node in nodes)


def check_growth(before: int, after: int, at: str) -> None:
    """Raise GraphError, at `at`, if growth from `before` to `after` nodes is beyond all reason.

    Decompositions multiply nodes by about ten; a rule that doubles each node would exhaust the
    memory.
    """
    most = GROWTH_FACTOR * before + GROWTH_FREE
    if after > most:
        raise GraphError(
            f"a pass writes {after:,} nodes and inputs in place of {before:,}; at most {most:,}",
            at=at,
            fix="leave that pass out: passes=['-its_name']",
        )


def check_replacement(rewriter: Rewriter, old: Sequence[Node], new: Sequence[Node]) -> None:
    gone, going = {node.name for node in old}, {t for node in old for t in node.outputs}
    written = [tensor for node in new for tensor in node.outputs if tensor]
    for tensor in going.difference(written, ("",)):
        readers = [*new, *(node for node in rewriter.readers(tensor) if node.name not in gone)]
        if rewriter.is_output(tensor) or any(tensor in node.inputs for node in readers):
            raise refused_error(f"nothing would write {tensor!r}, which is read", old)
    goes = any(has_effects(node) for node in old if node not in new)
    if goes and not any(map(has_effects, new)):
        raise refused_error("a node with effects would go", old)
    for node in new:
        if node.name in rewriter.names and node.name not in gone:
            raise refused_error(f"there is a node {node.name!r} already", old)
        if node not in rewriter:
            _check_specs(rewriter, node, old)
    writers = [one for tensor in written if (one := rewriter.producer(tensor)) is not None]
    if any(one.name not in gone for one in writers) or len(set(written)) < len(written):
        raise refused_error("a tensor would be written twice", old)


def refused_error(what: str, nodes: Iterable[Node]) -> GraphError:
    listed = ", ".join(repr(node.name) for node in nodes)
    return GraphError(what, at=f"in place of {listed}", fix="repair the pass")


def _check_specs(rewriter: Rewriter, node: Node, old: Sequence[Node]) -> None:
    unknown = [name for name in node.inputs if name and name not in rewriter.tensors]
    if unknown:
        raise refused_error(f"there is no tensor {unknown[0]!r}", old)
    for tensor, spec in zip(node.outputs, rewriter.specs(node), strict=False):
        known = rewriter.tensors.setdefault(tensor, spec)
        alike = spec.dtype == known.dtype and (
            spec == known or not (spec.is_static and known.is_static)
        )
        if tensor and not alike:
            raise refused_error(f"{tensor!r} would be {spec}, but is {known}", old)
