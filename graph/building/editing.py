"""Manual editing of a graph.

Between two edits anything may be missing: dangling inputs without a writer, and outputs without
readers. `Editor.result` orders the nodes, infers changed specs, and checks everything. A pass, with
a valid graph after every step, should use `plait.passes.Rewriter` instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core.attribute import Kind
from ..core.check import check
from ..core.infer import infer_changed
from ..core.ir import Graph, Node, no_node_error
from ..core.operator import find_operator, resolve_alias
from ..core.ordering import order_depth_first, sort_nodes
from ..core.parameters import Number
from ..passes.wiring import Wiring
from ..values.errors import GraphError, suggest_names
from ..values.names import Names
from ..values.tensor import Dim, TensorSpec, spec_of


class Editor:
    """The state of an edit: made by `Graph.edit`.

    Nodes are identified by their names, and tensors are edges: readers and the writer of a tensor
    are linked, in whichever order they were added.

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
        return isinstance(name, str) and name in self._wiring.names

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._wiring.nodes())

    def node(self, name: str) -> Node:
        """Return the node `name` in its current state.

        Raises GraphError if there is none of that name; the message names those that are alike.
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

        Raises OperatorError if operator, attributes or their number are wrong; GraphError as in
        `insert`.

        Parameters
        ----------
        op : str
            The operator's name.
        *inputs : str or None
            Tensors; None stands for an absent optional one.
        name : str, optional
            Derived from the operator by default.
        outputs : int or sequence of str, default 1
            The number of outputs, or their names.
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
        # The call is checked now; specs only when all tensors are known.
        operator.check_arity(len(present), present, len(outputs), str(node))
        return self._insert(node)

    def insert(self, node: Node) -> Node:
        """Add `node`, link it with the readers and writers of its tensors, and return it.

        Raises GraphError if there is a node of that name, or something else defines one of its
        outputs.
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
        # It has another writer now: unlinked readers of the former one are linked with it.
        self._unlinked = {one for one in self._unlinked if one[1] not in written}
        self._wiring.append(node)
        return node

    def remove(self, name: str) -> Node:
        """Remove the node `name` and return it; its readers keep dangling inputs.

        Raises GraphError if there is none of that name.
        """
        node = self.node(name)
        self._wiring.remove(node)
        self._unlinked = {one for one in self._unlinked if one[0] != name}
        return node

    def rewire(self, name: str, to: Mapping[str, str]) -> Node:
        """Make the node `name` read other tensors, as `to` maps them, and return the changed node.

        Raises GraphError if there is no such node, or it does not read one of the former tensors.
        """
        node = self.node(name)
        strange = [tensor for tensor in to if tensor not in node.inputs]
        if strange:
            raise _refused_edit_error(f"it does not read {strange[0]!r}", node)
        # A name that is not read any more leaves no unlinked entry, in case it is read again.
        self._unlinked = {one for one in self._unlinked if one[0] != name or one[1] not in to}
        changed = replace(node, inputs=tuple(to.get(one, one) for one in node.inputs))
        self._wiring.exchange([node], [changed], node)
        return changed

    def set_attribute(self, name: str, attribute: str, value: Any) -> Node:
        """Set one attribute of a node, and return the changed node.

        Raises GraphError if there is no such node; OperatorError if the operator has no such
        attribute, or the value is invalid.

        Parameters
        ----------
        name : str
            The name of the node.
        value : object
            Checked as in `add`; None stands for the default. A `Number` of
            `plait.operators.Parameters` is taken as a 32-bit integer for an integer attribute,
            otherwise as a 32-bit float, rounded to the nearest valid value.
        """
        node = self.node(name)
        declared = node.operator.attributes.get(attribute)
        # A number of a foreign file is three at once; the declaration decides which one is meant.
        if isinstance(value, Number):
            whole = declared is not None and declared.kind is Kind.INT
            value = value.int32 if whole else value.float32
        given = {**node.attributes, attribute: value}
        changed = replace(node, attributes=node.operator.complete(given, str(node)))
        self._wiring.exchange([node], [changed], node)
        return changed

    def producer(self, tensor: str) -> Node | None:
        return self._wiring.producer(tensor)

    def readers(self, tensor: str) -> tuple[Node, ...]:
        found = self._wiring.readers(tensor)
        return tuple(node for node in found if (node.name, tensor) not in self._unlinked)

    def is_linked(self, writer: str, tensor: str, reader: str) -> bool:
        return self._names(writer, tensor, reader) and (reader, tensor) not in self._unlinked

    def link(self, writer: str, tensor: str, reader: str) -> bool:
        """Undo `unlink` of `writer`, `tensor` and `reader`; return whether anything changed."""
        # The reader still names the tensor: only the link is restored.
        changes = self._names(writer, tensor, reader) and (reader, tensor) in self._unlinked
        self._unlinked.discard((reader, tensor))
        return changes

    def unlink(self, writer: str, tensor: str, reader: str) -> bool:
        """Cut the link by which `reader` reads `tensor` of `writer`; return whether it existed."""
        # The node keeps the name of the tensor: restoring the link needs no other state.
        changes = self.is_linked(writer, tensor, reader)
        if changes:
            self._unlinked.add((reader, tensor))
        return changes

    @property
    def dangling_inputs(self) -> tuple[tuple[str, str], ...]:
        """Tensors that are read but not defined, each with a node that reads it."""
        return tuple(
            (tensor, node.name)
            for node in self.nodes
            for tensor in dict.fromkeys(filter(None, node.inputs))
            if not self._is_defined(tensor) or (node.name, tensor) in self._unlinked
        )

    @property
    def dangling_outputs(self) -> tuple[str, ...]:
        """Tensors that nodes write, but that are neither read nor fetched."""
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

        Raises GraphError if nodes wait for each other in a cycle.
        """
        return tuple(order_depth_first(self.nodes))

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare the input `name` with `dtype` and `shape`, and return its name.

        Raises GraphError if something else defines it.
        """
        self._claim(name)
        self._inputs[name] = TensorSpec(dtype, shape)
        return name

    def constant(self, name: str, value: Any, dtype: DTypeLike | None = None) -> str:
        """Add `value` as constant `name`, and return `name`; raises GraphError if it is in use."""
        self._claim(name)
        # A copy, as the caller may continue to write to the array.
        array = np.array(value, dtype=dtype)
        spec = spec_of(array)
        array = array.astype(spec.dtype, copy=False)
        array.flags.writeable = False
        self._constants[name] = array
        return name

    def output(self, tensor: str) -> None:
        """Make `tensor` the last output, under its name."""
        self._outputs[tensor] = None

    def forget(self, tensor: str) -> None:
        """Remove `tensor` from the inputs, constants, or outputs.

        Its writer stays, and readers of an input keep a dangling input. Raises GraphError if it is
        not one of these.
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
        """Raise GraphError if an input or output lacks a writer; other outputs may dangle."""
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
        """Return the checked graph of the current state; the editor stays usable.

        The nodes keep their order, except for those before their inputs. Raises GraphError if
        something is missing, nodes form a cycle, or nothing is fetched; ShapeError if tensors no
        longer fit together.
        """
        self.check()
        # Only necessary moves: an edit in one place leaves listings, and so plans, unchanged
        # elsewhere.
        nodes, cycle = sort_nodes(self.nodes)
        if cycle:
            names = ", ".join(repr(node.name) for node in cycle)
            raise GraphError(
                f"nodes wait for each other in a cycle: {names}",
                at=self._graph.name,
                fix="rewire() one of them",
            )
        if not self._outputs:
            raise GraphError("nothing is fetched", at=self._graph.name, fix="call output(tensor)")
        # Tensors of a prologue are like inputs, and no node of this graph writes them.
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
        return check(whole.with_nodes(nodes))

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
    """Turn the constants `names` of `graph` into inputs, after the present ones.

    Raises GraphError if the graph has no such constant; ShapeError if a shape depends on its value
    and cannot stay open.
    """
    editor = graph.edit()
    for name in names:
        if name not in graph.constants:
            raise GraphError(
                f"{name!r} is not a constant of the graph",
                at=graph.name,
                fix=suggest_names(name, graph.constants, "name one of graph.constants"),
            )
        spec = graph.tensors[name]
        editor.forget(name)
        editor.input(name, spec.dtype, spec.static_shape)
    return editor.result()


def _refused_edit_error(what: str, node: Node) -> GraphError:
    return GraphError(what, at=str(node), fix="choose another name, or remove what is in the way")
