"""The graph: named tensors between nodes, immutable.

Edges are tensor names. Nodes are in topological order. To change a graph, make another one;
`plait.graph.core.check.check` verifies the invariants of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..values.dtypes import has_objects
from ..values.errors import GraphError, join_lines, suggest_names
from ..values.tensor import Array, Shape, TensorSpec, spec_of
from .attribute import LENGTHS, Attributes
from .operator import Call, Cost, Operator, find_operator

if TYPE_CHECKING:
    from ..building.editing import Editor

VARIABLE, ASSIGN = "Variable", "Assign"
"""The operators of state: an Assign's output is the variable's value for the next item."""

ABSENT = ""
"""The name that stands for an absent optional input."""


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator.

    Attributes
    ----------
    name : str
        Unique in its graph.
    op : str
        The operator's name.
    inputs, outputs : tuple of str
        Tensor names; an absent optional one is ``""``.
    attributes : Mapping
        Complete: defaults are filled in.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> (node,) = b.build().nodes
    >>> node.name, node.op, node.inputs, node.outputs
    ('relu', 'Relu', ('x',), ('y',))
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes = field(default_factory=dict)

    @property
    def operator(self) -> Operator:
        """The operator, from the registry."""
        return find_operator(self.op, at=self)

    @property
    def arguments(self) -> dict[str, Any]:
        """The attributes that are arguments of a Python function."""
        return {name: value for name, value in self.attributes.items() if name != LENGTHS}

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.name, self.op, self.inputs, self.outputs, dict(self.attributes))

    def __str__(self) -> str:
        inputs = ", ".join(name or "-" for name in self.inputs)
        outputs = ", ".join(name or "-" for name in self.outputs)
        return join_lines([f"node {self.name!r}: {self.op}({inputs}) -> {outputs}"])


@dataclass(frozen=True, eq=False)
class Graph:
    """What to compute: nodes between named tensors.

    Two graphs are equal if everything in them is equal, constants bit for bit.

    Attributes
    ----------
    name : str
    inputs, outputs : tuple of str
        The tensors that are fed and fetched; their names are public.
    nodes : tuple of Node
        In a topological order.
    tensors : Mapping of str to TensorSpec
        Every tensor of the graph: inputs, constants and node outputs.
    constants : Mapping of str to Array
        Read-only numpy arrays.
    precisions : Mapping of str to int
        Declared bits of integer inputs and constants, if fewer than those of their dtype.
    prepared : frozenset of str
        Tensors that exist before the first item, although no node here writes them.
    variables : Mapping of str to Node
        The tensors of variables, with the variables' original nodes; also unread ones.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> graph = b.build()
    >>> graph.inputs, graph.outputs
    (('x',), ('y',))
    >>> graph.node("relu").op
    'Relu'
    >>> print(graph.tensors["x"])
    float32[2]
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, TensorSpec]
    constants: Mapping[str, Array]
    precisions: Mapping[str, int] = field(default_factory=dict)
    prepared: frozenset[str] = frozenset()
    variables: Mapping[str, Node] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line; `plait.graph.core.printing` has the full text."""
        parts = ("inputs", "outputs", "nodes", "constants")
        counts = ", ".join(f"{part} {len(getattr(self, part))}" for part in parts)
        return f"<Graph {self.name!r}: {counts}>"

    def _repr_html_(self) -> str:
        """Return the listing for notebooks, or its first lines."""
        from .printing import to_html

        return to_html(self)

    def node(self, name: str) -> Node:
        """Return the node called `name`.

        Raises
        ------
        GraphError
            If there is no such node; the message lists similar names.

        Examples
        --------
        >>> import plait as pl
        >>> b = pl.GraphBuilder("net")
        >>> b.output("y", b.op("Elu", b.input("x", "float32", (4,)), name="bend"))
        >>> b.build().node("bend").attributes["alpha"]
        1.0
        """
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            raise no_node_error(name, self._by_name, self.name)
        return found

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def object_inputs(self) -> frozenset[str]:
        """The inputs that are Python objects, which are passed by reference."""
        return frozenset(name for name in self.inputs if has_objects(self.tensors[name].dtype))

    @cached_property
    def plain_inputs(self) -> Sequence[tuple[str, Any]]:
        """The name and dtype of each input; None for that of text and objects."""
        dtypes = [(name, self.tensors[name].dtype) for name in self.inputs]
        return [(name, None if dtype.hasobject else dtype) for name, dtype in dtypes]

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that writes each tensor; inputs and constants have none."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def producer_indices(self) -> Sequence[Sequence[int]]:
        """For every node, by index, the nodes whose results it reads, in ascending order."""
        nodes = enumerate(self.nodes)
        indices = {name: index for index, node in nodes for name in node.outputs if name}
        return [sorted({indices[t] for t in node.inputs if t in indices}) for node in self.nodes]

    @cached_property
    def constant_indices(self) -> frozenset[int]:
        """Indices of nodes that depend on constants alone, without calls of functions."""
        known, found = set(self.constants), set[int]()
        for index, node in enumerate(self.nodes):
            if known.issuperset(filter(None, node.inputs)) and node.operator.function is None:
                found.add(index)
                known.update(node.outputs)
        return frozenset(found)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor, each once, in order."""
        found: dict[str, list[Node]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def fetched(self) -> frozenset[str]:
        """The outputs as a set, for fast lookups: there may be thousands."""
        return frozenset(self.outputs)

    @cached_property
    def assigned(self) -> Mapping[str, str]:
        """The tensors kept for the next item, with the variable's tensor for each.

        Filled only once variables are no longer nodes.
        """
        nodes = self.nodes if self.variables else ()
        return {node.outputs[0]: node.inputs[0] for node in nodes if node.op == ASSIGN}

    @cached_property
    def late(self) -> tuple[str, ...]:
        """The variables' tensors that an item gets from the item before, while both run.

        Empty while variables are nodes. All others are `prepared`.
        """
        read = {name for node in self.nodes for name in node.inputs} if self.variables else set()
        return tuple(name for name in self.variables if name in read - self.prepared)

    @cached_property
    def entering(self) -> tuple[str, ...]:
        """The tensors that an item gets from outside: inputs and late variables."""
        return (*self.inputs, *self.late)

    @cached_property
    def leaving(self) -> tuple[str, ...]:
        """The tensors that are read when an item has ended: outputs and late assigned values."""
        kept = (name for name, variable in self.assigned.items() if variable in self.late)
        return tuple(dict.fromkeys((*self.outputs, *kept)))

    @cached_property
    def costs(self) -> dict[str, tuple[Node, Cost]]:
        """The costs of nodes by name, cached by `plait.graph.core.infer.get_cost`."""
        return {}

    @cached_property
    def is_static(self) -> bool:
        """True if all dimensions of all tensors are numbers."""
        return all(spec.is_static for spec in self.tensors.values())

    def call(self, node: Node) -> Call:
        """Return the view of `node` for shape and cost rules."""
        return make_call(node, self.tensors, self.constants)

    def output_specs(self, node: Node) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs of `node`, without absent ones."""
        return tuple(self.tensors[name] for name in node.outputs if name)

    def extract(self, nodes: Iterable[Node], name: str) -> Graph:
        """Return the subgraph of `nodes`, called `name`.

        Its inputs are the tensors that cross into it, including prepared ones; its outputs are
        those that are read outside, fetched or kept. Constants are included. The nodes must be in
        the graph's order.
        """
        kept = tuple(nodes)
        inside = {node.name for node in kept}
        # Values for the next item leave the subgraph, though no node reads them.
        fetched = {*self.outputs, *self.assigned}
        outputs = (
            tensor
            for node in kept
            for tensor in node.outputs
            if tensor
            and (
                tensor in fetched
                or any(reader.name not in inside for reader in self.consumers[tensor])
            )
        )
        return self.select(kept, outputs, name)

    def select(self, nodes: Iterable[Node], outputs: Iterable[str], name: str = "") -> Graph:
        """Return the graph of `nodes`, in this graph's order, with these `outputs`.

        Its inputs are the tensors that cross into it, in the order in which nodes read them, so
        that graphs with equal nodes are equal. Constants are included. `name` defaults to this
        graph's.
        """
        kept = tuple(nodes)
        written = {tensor for node in kept for tensor in node.outputs if tensor}
        read = dict.fromkeys(tensor for node in kept for tensor in node.inputs if tensor)
        constants = {tensor: self.constants[tensor] for tensor in read if tensor in self.constants}
        inputs = tuple(t for t in read if t not in written and t not in constants)
        specs = {tensor: self.tensors[tensor] for tensor in (*read, *sorted(written))}
        precisions = {t: bits for t, bits in self.precisions.items() if t in read}
        return Graph(name or self.name, inputs, tuple(outputs), kept, specs, constants, precisions)

    def with_nodes(self, nodes: Sequence[Node], more: Mapping[str, Array] | None = None) -> Graph:
        """Return this graph with other `nodes` and `more` constants, without unused tensors."""
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        named.update(self.inputs, self.outputs, self.variables)
        made = more or {}
        constants = {**self.constants, **made}
        tensors = {**self.tensors, **{name: spec_of(value) for name, value in made.items()}}
        return replace(
            self,
            nodes=tuple(nodes),
            tensors={name: spec for name, spec in tensors.items() if name in named},
            constants={name: value for name, value in constants.items() if name in named},
            precisions={name: bits for name, bits in self.precisions.items() if name in named},
        )

    def edit(self) -> Editor:
        """Return an editor that starts from this graph."""
        from ..building.editing import Editor

        return Editor(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return _get_structure(self) == _get_structure(other) and all(
            # Identical arrays need no comparison; in others NaN equals NaN.
            array is other.constants[name] or array.tobytes() == other.constants[name].tobytes()
            for name, array in self.constants.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        from .printing import to_text

        return to_text(self)


def no_node_error(name: str, names: Iterable[str], graph: str) -> GraphError:
    fix = suggest_names(name, names, "see the graph's nodes")
    return GraphError(f"there is no node {name!r}", at=graph, fix=fix)


def _get_structure(graph: Graph) -> tuple[object, ...]:
    """Return everything in `graph` but the values of constants; tensors with dtypes and shapes."""
    named = set(graph.constants)
    declared = dict(graph.tensors), dict(graph.precisions)
    kept = graph.prepared, dict(graph.variables)
    return graph.name, graph.inputs, graph.outputs, graph.nodes, *declared, named, *kept


def make_call(
    node: Node,
    tensors: Mapping[str, TensorSpec],
    values: Mapping[str, Array],
    lengths: Mapping[str, Shape] | None = None,
) -> Call:
    return Call(
        tuple([tensors[name] if name else None for name in node.inputs]),
        tuple([values.get(name) for name in node.inputs]),
        node.attributes,
        len(node.outputs),
        tuple([lengths.get(name) for name in node.inputs]) if lengths else (),
    )


def topological_layers(graph: Graph) -> tuple[tuple[Node, ...], ...]:
    """Return the nodes of `graph` by layer: a layer has all nodes with producers in earlier ones.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("fork")
    >>> x = b.input("x", "float32", (2,))
    >>> left, right = b.op("Relu", x, name="left"), b.op("Tanh", x, name="right")
    >>> b.output("y", b.op("Add", left, right, name="join"))
    >>> [[node.name for node in layer] for layer in pl.topological_layers(b.build())]
    [['left', 'right'], ['join']]
    """
    layer_of: dict[str, int] = {}
    layers: list[list[Node]] = []
    for node in graph.nodes:
        # Tensors that no node writes precede layer 0.
        index = 1 + max((layer_of.get(name, -1) for name in node.inputs), default=-1)
        layer_of.update((name, index) for name in node.outputs if name)
        # In a topological order layers grow one by one.
        if index == len(layers):
            layers.append([])
        layers[index].append(node)
    return tuple(map(tuple, layers))


def rename_tensors(graph: Graph, names: Mapping[str, str]) -> Graph:
    if not names:
        return graph

    def new(name: str) -> str:
        return names.get(name, name)

    nodes = tuple(
        replace(node, inputs=tuple(map(new, node.inputs)), outputs=tuple(map(new, node.outputs)))
        for node in graph.nodes
    )
    tensors = {new(name): spec for name, spec in graph.tensors.items()}
    return replace(graph, nodes=nodes, tensors=tensors)


def find_needed(
    tensors: Iterable[str],
    nodes: Sequence[Node],
    keeps: Callable[[Node], bool] = lambda node: False,
) -> Iterator[Node]:
    """Yield the `nodes` that `tensors`, or nodes that `keeps` accepts, need: the last one first."""
    wanted = set(tensors)
    # From the end on, each node comes after all that read it.
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs) or keeps(node):
            wanted.update(filter(None, node.inputs))
            yield node
