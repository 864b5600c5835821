"""A graph taken apart and put together again, by hand.

Between two edits anything may be missing: inputs that nothing writes dangle, and so do outputs that
nothing reads. `Editor.result` puts the nodes in order, infers what has changed, and checks it all.
A pass, whose every step leaves a whole graph, is better off with `plait.graph.passes.rewriting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .attribute import Kind
from .check import check
from .errors import GraphError
from .infer import infer_changed
from .ir import Graph, Node, no_node_error
from .names import Names, did_you_mean
from .operator import find_operator, resolve_alias
from .ordering import in_order, order_depth_first
from .parameters import Number
from .passes.merging import with_nodes
from .passes.wiring import Wiring
from .tensor import Dim, TensorSpec, spec_of


class Editor:
    """The state of an edit: made by `Graph.edit`.

    Nodes are told apart by their names, tensors are edges: who reads a tensor is linked to who
    writes it, in whichever order the two came.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> x = b.input("x", "float32", (4,))
    >>> b.output("y", b.op("Add", x, x, name="add", outputs=["y"])[0])
    >>> editor = b.build().edit()
    >>> _ = editor.remove("add")
    >>> _ = editor.add("Mul", "x", "two", name="mul", outputs=["y"])
    >>> editor.dangling_inputs
    (('two', 'mul'),)
    >>> _ = editor.constant("two", 2.0, "float32")
    >>> print(editor.result().nodes[0])
    node 'mul': Mul(x, two) -> y
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._wiring = Wiring(graph)
        self._inputs = {name: graph.tensors[name] for name in graph.inputs}
        self._constants = dict(graph.constants)
        self._precisions = dict(graph.precisions)
        self._outputs = dict.fromkeys(graph.outputs)
        self._unlinked: set[tuple[str, str]] = set()
        self._node_names = Names(node.name for node in graph.nodes)
        self._tensor_names = Names(graph.tensors)

    def __contains__(self, name: object) -> bool:
        """True when there is a node of a name."""
        return isinstance(name, str) and name in self._wiring.names

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes as they stand: in the order in which they came."""
        return tuple(self._wiring.nodes())

    def node(self, name: str) -> Node:
        """Return a node as it is now.

        Raises
        ------
        GraphError
            If there is none of that name; the message names those that are alike.
        """
        if name not in self:
            raise no_node_error(name, self._wiring.names, self._graph.name)
        return self._wiring.node(name)

    def add(
        self,
        op: str,
        /,
        *inputs: str | None,
        name: str | None = None,
        outputs: int | Sequence[str] = 1,
        **attributes: Any,
    ) -> Node:
        """Add a node; the tensors that it reads need not be there yet.

        Parameters
        ----------
        op : str
            The operator's name.
        *inputs : str or None
            Tensors; None stands for an absent optional one.
        name : str, optional
            Made from the operator's when left out.
        outputs : int or sequence of str, default 1
            How many outputs, or their names.

        Raises
        ------
        OperatorError
            If operator, attributes or their number are wrong.
        GraphError
            As `insert`.
        """
        op = resolve_alias(op)
        operator = find_operator(op, at=name)
        complete = operator.complete(attributes, at=f"{op} node")
        free = self._node_names.take(name or op.split(".")[-1].lower())
        made = name or free
        if isinstance(outputs, int):
            suffixes = [""] if outputs == 1 else [f".{index}" for index in range(outputs)]
            outputs = [self._tensor_names.take(made + suffix) for suffix in suffixes]
        node = Node(made, op, tuple(one or "" for one in inputs), tuple(outputs), complete)
        present = [bool(one) for one in node.inputs]
        # What the call itself tells is checked now, where it is made; specs only when all is there.
        operator.check_arity(len(present), present, len(outputs), str(node))
        return self._insert(node)

    def insert(self, node: Node) -> Node:
        """Add a node that is made already, and link it with all that names its tensors.

        Raises
        ------
        GraphError
            If there is a node of that name, or something else defines one of its outputs.
        """
        self._node_names.take(node.name)
        return self._insert(node)

    def _insert(self, node: Node) -> Node:
        if not node.name or node.name in self:
            raise _refused_edit_error(
                f"there is a node {node.name!r} already" if node.name else "no name", node
            )
        written = [tensor for tensor in node.outputs if tensor]
        for tensor in written:
            if self._is_defined(tensor) or written.count(tensor) > 1:
                raise _refused_edit_error(f"tensor {tensor!r} would be defined twice", node)
            if tensor not in self._tensor_names:
                self._tensor_names.take(tensor)
        # Another writer: what was unlinked from the one before is linked with this one.
        self._unlinked = {one for one in self._unlinked if one[1] not in written}
        self._wiring.append(node)
        return node

    def remove(self, name: str) -> Node:
        """Take a node out and return it; who read its outputs is left with dangling inputs.

        Raises
        ------
        GraphError
            If there is none of that name.
        """
        node = self.node(name)
        self._wiring.remove(node)
        self._unlinked = {one for one in self._unlinked if one[0] != name}
        return node

    def rewire(self, name: str, to: Mapping[str, str]) -> Node:
        """Let a node read other tensors in the place of some, and return it as it is then.

        Raises
        ------
        GraphError
            If there is no such node, or it reads none of the former.
        """
        node = self.node(name)
        strange = [tensor for tensor in to if tensor not in node.inputs]
        if strange:
            raise _refused_edit_error(f"it does not read {strange[0]!r}", node)
        # A name that is read no more leaves nothing unlinked behind, should it be read again.
        self._unlinked = {one for one in self._unlinked if one[0] != name or one[1] not in to}
        changed = replace(node, inputs=tuple(to.get(one, one) for one in node.inputs))
        self._wiring.exchange([node], [changed], node)
        return changed

    def set_attribute(self, name: str, attribute: str, value: Any) -> Node:
        """Give a node another value of one attribute, and return it as it is then.

        Parameters
        ----------
        name : str
            The node's.
        attribute : str
        value : object
            Checked as in `add`; None stands for the default. A `plait.graph.parameters.Number` is
            taken in the view that fits: an integer attribute takes the 32-bit integer, any other
            the 32-bit float, so that what does not fit is the nearest that does.

        Raises
        ------
        GraphError
            If there is no such node.
        OperatorError
            If its operator has no such attribute, or the value is none for it.
        """
        node = self.node(name)
        declared = node.operator.attributes.get(attribute)
        # A number of a foreign file is three at once; the declaration tells which one is meant.
        if isinstance(value, Number):
            whole = declared is not None and declared.kind is Kind.INT
            value = value.int32 if whole else value.float32
        given = {**node.attributes, attribute: value}
        changed = replace(node, attributes=node.operator.complete(given, str(node)))
        self._wiring.exchange([node], [changed], node)
        return changed

    def producer(self, tensor: str) -> Node | None:
        """Return the node that writes a tensor, None where no node does."""
        return self._wiring.producer(tensor)

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """Return the nodes that a tensor is linked to."""
        found = self._wiring.readers(tensor)
        return tuple(node for node in found if (node.name, tensor) not in self._unlinked)

    def is_linked(self, writer: str, tensor: str, reader: str) -> bool:
        """True when one node hands a tensor to another one."""
        return self._names(writer, tensor, reader) and (reader, tensor) not in self._unlinked

    def link(self, writer: str, tensor: str, reader: str) -> bool:
        """Undo `unlink`; return whether anything changed."""
        # The reader still names the tensor, so that there is nothing to restore but the link.
        changes = self._names(writer, tensor, reader) and (reader, tensor) in self._unlinked
        self._unlinked.discard((reader, tensor))
        return changes

    def unlink(self, writer: str, tensor: str, reader: str) -> bool:
        """Let a node's input dangle that another one writes; return whether anything changed.

        Nothing does unless both are there, the one writes the tensor, and the other reads it.
        """
        # The node goes on naming the tensor: a link that is undone needs no memory of its place.
        changes = self.is_linked(writer, tensor, reader)
        if changes:
            self._unlinked.add((reader, tensor))
        return changes

    @property
    def dangling_inputs(self) -> tuple[tuple[str, str], ...]:
        """Tensors that are read and that nothing defines, each with a node that reads it."""
        return tuple(
            (tensor, node.name)
            for node in self.nodes
            for tensor in dict.fromkeys(filter(None, node.inputs))
            if not self._is_defined(tensor) or (node.name, tensor) in self._unlinked
        )

    @property
    def dangling_outputs(self) -> tuple[str, ...]:
        """Tensors that nodes write, and that are neither read nor fetched."""
        return tuple(
            tensor
            for node in self.nodes
            for tensor in filter(None, node.outputs)
            if tensor not in self._outputs and not self.readers(tensor)
        )

    @property
    def isolated_nodes(self) -> tuple[Node, ...]:
        """The nodes without a link to another node."""
        return tuple(
            node
            for node in self.nodes
            if not any(self.readers(tensor) for tensor in filter(None, node.outputs))
            and not any(
                (node.name, tensor) not in self._unlinked and self.producer(tensor) is not None
                for tensor in filter(None, node.inputs)
            )
        )

    def depth_first(self) -> tuple[Node, ...]:
        """Return the nodes in depth-first order, each after the writers of its inputs.

        Raises
        ------
        GraphError
            If nodes wait for each other in a cycle.
        """
        return tuple(order_depth_first(self.nodes))

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare one more input of the graph and return its name.

        Raises
        ------
        GraphError
            If something else defines it.
        """
        self._claim(name)
        self._inputs[name] = TensorSpec(dtype, shape)
        return name

    def constant(self, name: str, value: Any, dtype: DTypeLike | None = None) -> str:
        """Add a constant and return its name.

        Raises
        ------
        GraphError
            If something else defines it.
        """
        self._claim(name)
        # A copy, as the caller may go on writing to what was passed.
        array = np.array(value, dtype=dtype)
        spec = spec_of(array)
        array = array.astype(spec.dtype, copy=False)
        array.flags.writeable = False
        self._constants[name] = array
        return name

    def output(self, tensor: str) -> None:
        """Have a tensor fetched under its name, after those that are fetched already."""
        self._outputs[tensor] = None

    def forget(self, tensor: str) -> None:
        """Drop what is public or constant of a tensor: an input, a constant, or an output.

        What a node writes is only fetched no longer; who reads an input is left dangling.

        Raises
        ------
        GraphError
            If it is none of these.
        """
        found = False
        self._precisions.pop(tensor, None)
        for table in (self._inputs, self._constants, self._outputs):
            if tensor in table:
                found = True
                del table[tensor]
        if not found:
            raise GraphError(
                f"{tensor!r} is not an input, constant or output",
                at=self._graph.name,
                fix="remove the node that writes it",
            )

    def check(self) -> None:
        """Raise GraphError if something is missing; outputs may dangle."""
        for tensor, name in self.dangling_inputs:
            raise GraphError(
                f"input {tensor!r} dangles: nothing that it is linked to writes it",
                at=str(self.node(name)),
                fix="add what writes it, link() it, or rewire() the node",
            )
        for tensor in self._outputs:
            if not self._is_defined(tensor):
                raise GraphError(
                    f"nothing writes the output {tensor!r}",
                    at=self._graph.name,
                    fix="add what writes it, or forget() it",
                )

    def result(self) -> Graph:
        """Return the graph as it is now, checked; the editor can go on being used.

        The nodes keep their order but for those that stand before what they read.

        Raises
        ------
        GraphError
            If something is missing, nodes wait for each other in a cycle, or nothing is fetched.
        ShapeError
            If tensors no longer fit together.
        """
        self.check()
        # Only those move that must: an edit in one place leaves listings, and so plans, alike
        # elsewhere.
        nodes, cycle = in_order(self.nodes)
        if cycle:
            names = ", ".join(repr(node.name) for node in cycle)
            raise GraphError(
                f"nodes wait for each other in a cycle: {names}",
                at=self._graph.name,
                fix="rewire() one of them",
            )
        if not self._outputs:
            raise GraphError("nothing is fetched", at=self._graph.name, fix="call output(tensor)")
        # What a prologue prepares is read like an input, and no node of this graph writes it.
        known, prepared = self._graph.tensors, {*self._graph.prepared, *self._graph.late}
        given = {**{name: known[name] for name in prepared if name in known}, **self._inputs}
        whole = replace(
            self._graph,
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            nodes=tuple(nodes),
            tensors=infer_changed(self._graph, nodes, given, self._constants),
            constants=dict(self._constants),
            precisions=self._precisions,
        )
        return check(with_nodes(whole, nodes))

    def _names(self, writer: str, tensor: str, reader: str) -> bool:
        both = writer in self and reader in self and bool(tensor)
        return both and tensor in self.node(writer).outputs and tensor in self.node(reader).inputs

    def _is_defined(self, tensor: str) -> bool:
        tables = self._inputs, self._constants, self._graph.prepared, self._graph.late
        return self._wiring.producer(tensor) is not None or any(tensor in one for one in tables)

    def _claim(self, name: str) -> None:
        if not name or self._is_defined(name):
            raise GraphError(
                f"tensor {name!r} is defined already" if name else "a tensor needs a name",
                at=self._graph.name,
                fix="choose another name, or forget() or remove() what defines it",
            )
        self._tensor_names.take(name)


def feed_constants(graph: Graph, names: Iterable[str]) -> Graph:
    """Make inputs of constants, after the inputs that there are.

    Raises
    ------
    GraphError
        If the graph has no such constant.
    ShapeError
        If a shape depends on its value in a way that cannot stay open.
    """
    editor = graph.edit()
    for name in names:
        if name not in graph.constants:
            raise GraphError(
                f"{name!r} is not a constant of the graph",
                at=graph.name,
                fix=did_you_mean(name, graph.constants, "name one of graph.constants"),
            )
        spec = graph.tensors[name]
        editor.forget(name)
        editor.input(name, spec.dtype, spec.static_shape)
    return editor.result()


def _refused_edit_error(what: str, node: Node) -> GraphError:
    return GraphError(what, at=str(node), fix="choose another name, or remove what is in the way")
