"""The builder of graphs, node by node; mistakes raise at the call that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from ..core.attribute import LENGTHS
from ..core.check import check_distinct, check_precision, check_structure
from ..core.infer import has_own_length, infer_node, infer_shapes
from ..core.ir import ASSIGN, VARIABLE, Graph, Node, make_call, rename_tensors
from ..core.operator import find_operator, resolve_alias
from ..core.state import check_assignable, make_initial_value
from ..functions.python import get_operator
from ..operators.state import AFTER, GROUP
from ..values.errors import GraphError, OperatorError, ShapeError
from ..values.tensor import Array, Dim, Shape, TensorSpec, spec_of, to_exact
from .including import include_graph
from .named_tensor import Tensor
from .own_lengths import OwnLengths, write_names
from .row_nodes import add_each, add_reduce


class GraphBuilder:
    """Collects inputs, constants and nodes, then builds a checked Graph.

    Each method that makes a tensor returns it as a `Tensor`: a name to compute with. Everywhere a
    tensor is expected, its plain name works too. A tensor that is an output can also be used by its
    public name.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("affine")
    >>> x = b.input("x", "float32", ("batch", 2))
    >>> y = x @ np.eye(2, dtype="float32") + 1.0
    >>> b.output("y", y.relu())
    >>> print(b.build().tensors["y"])
    float32[batch, 2]
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._node_places: dict[str, int] = {}
        self._tensors: dict[str, TensorSpec] = {}
        self._lengths: dict[str, Shape] = {}
        self._constants: dict[str, Array] = {}
        self._precisions: dict[str, int] = {}
        self._outputs: dict[str, str] = {}
        self.own_lengths = OwnLengths()

    def __repr__(self) -> str:
        counts = f"inputs {len(self._inputs)}, outputs {len(self._outputs)}"
        return f"<GraphBuilder {self.name!r}: {counts}, nodes {len(self._nodes)}>"

    def input(
        self, name: str, dtype: DTypeLike, shape: Sequence[Dim], precision: int | None = None
    ) -> Tensor:
        """Declare the graph input `name` and return its tensor.

        `precision` is the number of bits of its integers, if less than that of their dtype.

        Raises
        ------
        GraphError
            If the name is taken, or the dtype does not allow the precision.
        ShapeError
            If the dtype or shape is invalid.
        """
        spec, name = TensorSpec(dtype, shape), self._claim(name)
        self._declare(name, spec, precision)
        self._tensors[name] = spec
        self._inputs.append(name)
        return Tensor(name, self)

    def constant(
        self,
        value: Any,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        precision: int | None = None,
    ) -> Tensor:
        """Add `value` as constant `name` and return its tensor; an array is used without a copy.

        `precision` is the number of bits of its integers, if less than that of their dtype.
        """
        array = np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value))
        if array.dtype.kind in "OUST":
            raise ShapeError(
                f"a constant is {array.dtype.name}, not numbers",
                at=name,
                fix="list text in the operator 'Constant' of ONNX Runtime: "
                "op('Constant', value_strings=words)",
            )
        spec = spec_of(array)
        array = array.astype(spec.dtype, copy=False)  # native byte order, as every device expects
        name = self._claim(name) if name else self._fresh("constant")
        self._declare(name, spec, precision)
        frozen = array.view()
        frozen.flags.writeable = False
        self._tensors[name], self._constants[name] = spec, frozen
        return Tensor(name, self)

    def op(
        self,
        op: str,
        /,
        *inputs: str | Array | float | None,
        name: str | None = None,
        outputs: int | Sequence[str] | None = None,
        **attributes: Any,
    ) -> Any:
        """Add a node and return its output, or a tuple of outputs.

        Parameters
        ----------
        op : str
            The operator's name.
        *inputs : str, array, number or None
            Tensors, or their names. Arrays become constants; so do numbers, in the dtype of the
            first tensor. None stands for an absent optional input.
        name : str, optional
            The node's name; made from the operator's by default.
        outputs : int or sequence of str, optional
            Their number, by default that of those that are not optional, or names; for 1 no tuple.
        **attributes
            The operator's attributes; defaults are filled in.

        Raises
        ------
        OperatorError
            If the operator, inputs or attributes are invalid.
        ShapeError
            If the inputs do not fit together.
        """
        op = resolve_alias(op)
        if name is not None and name in self._node_places:
            raise GraphError(f"two nodes are named {name!r}", at=op, fix="choose another name")
        at = f"node {name!r} ({op})" if name else f"{op} node"
        operator = find_operator(op, at=at)
        complete = operator.complete(attributes, at)
        outputs = operator.usual_outputs if outputs is None else outputs
        n_outputs = outputs if isinstance(outputs, int) else len(outputs)
        present = [value is not None for value in inputs]
        operator.check_arity(len(inputs), present, n_outputs, at)
        before = len(self._tensors)
        try:
            return self._append(op, operator.widen_counts(inputs), name, outputs, complete, at)
        except Exception:
            while len(self._tensors) > before:  # dicts keep their order: the newest goes first
                self._constants.pop(self._tensors.popitem()[0], None)
            raise

    def call(
        self,
        function: Callable[..., Any],
        /,
        *inputs: str | Array | float | None,
        name: str | None = None,
        outputs: Sequence[str] | None = None,
        lengths: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> Any:
        """Add a call of a Python function that is decorated with `@plait.operator`.

        Returns its output, or a tuple if it has several. `outputs` names them. A length that the
        function decides is called as declared or, if it has been called before, by a name of its
        own. `lengths` calls it otherwise, ``{"crops": "faces"}``: lengths of one name are equal.
        """
        if lengths is not None:
            attributes[LENGTHS] = write_names(lengths)
        operator = get_operator(function)
        count = len(operator.outputs.split())
        names = outputs if outputs is not None else count
        made = self.op(operator.name, *inputs, name=name, outputs=names, **attributes)
        return made[0] if outputs is not None and count == 1 else made

    def each(
        self,
        values: str | Sequence[str],
        body: Graph,
        *,
        name: str | None = None,
        batch: int | None = None,
        max_delay_s: float = 0.0,
        on_error: Literal["item", "value"] = "item",
        keep: int | None = None,
        drop: Literal["oldest", "newest"] = "oldest",
        pad: str | None = None,
    ) -> Any:
        """Run a graph for each row of tensors, and return its results, one row each, in order.

        Parameters
        ----------
        values : str or sequence of str
            Tensors with the same number of rows, one for each input of `body`.
        body : Graph
            A graph for any number of rows, each computed independently: its inputs and outputs have
            one symbol as their first axis. Without `batch` it may be a graph for one row, without
            that axis.
        name : str, optional
            The prefix of its nodes' names. Rows of nodes of one name, such as those of a loop, wait
            in one queue.
        batch : int, optional
            Run rows of all items in flight together, up to this many at once, with a plan of their
            own. By default, the rows of an item are computed as part of the item.
        max_delay_s : float, default 0.0
            How long the first row of a batch waits for others although the batch could start.
        on_error : {"item", "value"}, default "item"
            The extent of a failure of a row, even alone: ``"item"``, its whole item, or
            ``"value"``, only the row. With ``"value"`` there is one more result, booleans that say
            which rows are ok; the other rows are zeros.
        keep : int, optional
            The largest number of rows, of all items, that wait while no batch can start, at least
            `batch`; more are dropped, and not ok. Needs ``on_error="value"``.
        drop : {"oldest", "newest"}, default "oldest"
            Which rows to drop: those that have waited longest, or new ones.
        pad : str, optional
            A length in the shapes of `values` that differs between items: batches fill it up with
            zeros, to 8, 16 and so on, and cut results back. A mask has to hide the zeros.

        Raises
        ------
        GraphError
            If the graph does not work for any number of rows, or has variables, effects, random
            numbers or scales that depend on all rows, which batches cannot have; or if options are
            given that need `batch`.
        ShapeError
            If values and graph do not fit together.
        """
        label = name or self._fresh("each")
        return add_each(self, values, body, label, batch, max_delay_s, on_error, keep, drop, pad)

    def reduce(
        self,
        values: str | Sequence[str],
        function: Callable[..., Any],
        initial: str | Array | float | Sequence[str | Array | float],
        *,
        name: str | None = None,
        **attributes: Any,
    ) -> Any:
        """Fold the rows of tensors into one value by a Python function, in order; return the value.

        Rows of a generator function that nothing else reads are folded one by one: none is kept,
        and their number needs no bound.

        Parameters
        ----------
        values : str or sequence of str
            Tensors with the same number of rows.
        function : callable
            An operator that takes the value so far and a row of each tensor, and returns the next
            value, of the same dtype and shape. It must not write to its inputs.
        initial : str, array or number, or a sequence of these
            The value before the first row, and the result without rows; where the function
            has several results, as many values. Numbers get the dtypes that the function declares.
        name : str, optional
            The node's name.
        **attributes
            The function's attributes.

        Raises
        ------
        GraphError
            If the function is async, a generator or a class, or has another number of results than
            there are values.
        ShapeError
            If the value changes its dtype or shape, or the numbers of rows differ.

        Examples
        --------
        >>> import numpy as np
        >>> import plait as pl
        >>> @pl.operator(name="doc.larger")
        ... def larger(so_far: np.ndarray, row: np.ndarray) -> np.ndarray:
        ...     return np.maximum(so_far, row)
        >>> b = pl.GraphBuilder("peaks")
        >>> rows = b.input("rows", "float32", ("n", 2))
        >>> b.output("peak", b.reduce(rows, larger, np.zeros(2, "float32")))
        >>> pl.run(b.build(), {"rows": np.array([[1, 5], [3, 2]], "float32")})["peak"].tolist()
        [3.0, 5.0]
        """
        name = name or self._fresh("reduce")
        return add_reduce(self, values, get_operator(function), initial, name, attributes)

    def variable(self, name: str, initial: Any, *, dtype: DTypeLike | None = None) -> Tensor:
        """Add a variable and return its tensor: its value at the start of an item.

        Parameters
        ----------
        name : str
            The name of the variable, and of its tensor here.
        initial : array or Graph
            The initial value, or a graph without inputs that computes it as its only output.
        dtype : DTypeLike, optional
            The dtype to which an array is converted.

        Raises
        ------
        GraphError
            If the name is taken.
        ShapeError
            If a graph does not compute exactly one output of known shape.
        """
        made = initial if isinstance(initial, Graph) else make_initial_value(initial, dtype)
        tensor: Tensor
        (tensor,) = self.op(VARIABLE, name=name, outputs=[name], initial=made)
        return tensor

    def assign(
        self, variable: str, value: str | Array | float, *, name: str | None = None
    ) -> Tensor:
        """Assign `value` to `variable`, from the next item on; return the value's tensor.

        Readers of the variable still see its value at the start of the item.

        Raises
        ------
        GraphError
            If it is not a variable, or already assigned.
        ShapeError
            If dtype or shape of the value differ from the variable's.
        """
        check_assignable(self._find(variable) or variable, self._nodes, self.name)
        assigned: Tensor = self.op(ASSIGN, variable, value, name=name)
        return assigned

    def group(self, *tensors: str, name: str | None = None) -> Tensor:
        """Return an empty tensor that is ready when all `tensors` are."""
        made: Tensor = self.op(GROUP, *tensors, name=name)
        return made

    def after(self, tensor: str, *others: str, name: str | None = None) -> Tensor:
        """Return `tensor` for readers that must wait for `others`, too."""
        made: Tensor = self.op(AFTER, tensor, *others, name=name)
        return made

    def include(
        self, graph: Graph, inputs: Mapping[str, str], prefix: str | None = None
    ) -> dict[str, Tensor]:
        """Add all nodes of another graph and return the tensors of its outputs here.

        Parameters
        ----------
        graph : Graph
        inputs : Mapping
            For every input of `graph`, the tensor here that feeds it.
        prefix : str, optional
            Put before each name; by default the graph's own name and a slash.

        Raises
        ------
        GraphError
            If an input is missing, unknown, or has another dtype or rank.
        """
        return include_graph(self, graph, inputs, prefix)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name` to compute with; it may be the public name of an output.

        Raises
        ------
        GraphError
            If the tensor does not exist.
        """
        return Tensor(self.own_name(name), self)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._tensors or tensor in self._outputs

    def own_name(self, tensor: str) -> str:
        """Return the name of `tensor` in nodes, given that or the public name of an output.

        Raises
        ------
        GraphError
            If the tensor does not exist.
        """
        found = self._find(tensor)
        if found is None:
            raise GraphError(
                f"there is no tensor {tensor!r} yet",
                at=self.name,
                fix="pass what input(), constant(), op() or call() returned",
            )
        return found

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The specs of the tensors so far, by name."""
        return self._tensors

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far, in order."""
        return tuple(self._nodes)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The public names of the outputs so far."""
        return tuple(self._outputs)

    def has_node(self, name: str) -> bool:
        """Return whether there is a node called `name`."""
        return name in self._node_places

    def spec(self, tensor: str) -> TensorSpec:
        """Return the dtype and shape of `tensor`, as far as known.

        Raises
        ------
        GraphError
            If the tensor does not exist.
        """
        return self._tensors[self.own_name(tensor)]

    def value(self, tensor: str) -> Array | None:
        """Return the value of `tensor` if it is a constant, else None."""
        return self._constants.get(self._outputs.get(tensor, tensor))

    def ask_for(self, node: str, index: int) -> Tensor:
        """Make `node` compute its output `index` from now on, and return that tensor.

        Raises
        ------
        GraphError
            If the node does not exist.
        OperatorError
            If its operator has no such output.
        """
        place = self._node_places.get(node)
        if place is None:
            raise GraphError(f"there is no node {node!r}", at=self.name, fix="name one of nodes")
        found = self._nodes[place]
        if index < len(found.outputs) and found.outputs[index]:
            return Tensor(found.outputs[index], self)
        left_out = ("",) * (index + 1 - len(found.outputs))
        made = self._fresh(f"{node}.{index}", exact=True)
        outputs = [*found.outputs, *left_out]
        outputs[index] = made
        present = [bool(name) for name in found.inputs]
        found.operator.check_arity(len(present), present, len(outputs), str(found))
        complete = replace(found, outputs=tuple(outputs))
        call = make_call(complete, self._tensors, self._constants, self._lengths)
        self._tensors[made] = infer_node(complete, call)[index]
        self._nodes[place] = complete
        return Tensor(made, self)

    def output(self, name: str, tensor: str) -> None:
        """Make `tensor` a graph output under the public `name`.

        Raises
        ------
        GraphError
            If the tensor does not exist, or the output's name is taken.
        """
        found = self._find(tensor)
        if found is None:
            raise GraphError(
                f"output {name!r} names the tensor {tensor!r}, which does not exist",
                at=self.name,
                fix="pass what input(), op() or call() returned",
            )
        tensor = found
        given = tensor in self._inputs or tensor in self._constants
        if name in self._outputs or (name in self._tensors and (name != tensor or given)):
            raise GraphError(f"the name {name!r} is taken", at=self.name, fix="choose another")
        self._outputs[str(name)] = tensor

    def build(self) -> Graph:
        """Return the checked graph; you can continue to use the builder."""
        if not self._outputs:
            raise GraphError("the graph has no output", at=self.name, fix="call output(name, t)")
        nodes, tensors = list(self._nodes), dict(self._tensors)
        written = {name for node in nodes for name in node.outputs}
        renamed: dict[str, str] = {}
        for public, tensor in self._outputs.items():
            if public == tensor:
                continue
            if tensor in written and tensor not in renamed and tensor not in self._outputs:
                renamed[tensor] = public
            else:  # a fed, constant or twice fetched tensor reaches its public name by a copy
                nodes.append(Node(f"output {public}", "Identity", (tensor,), (public,)))
                tensors[public] = tensors[tensor]
        graph = rename_tensors(self._graph(nodes, tensors), renamed)
        # Lengths named after a tensor are renamed with it.
        has_lengths = any(has_own_length(name, tensors[name]) for name in renamed)
        return check_structure(infer_shapes(graph) if has_lengths else graph)

    def _graph(self, nodes: list[Node], tensors: dict[str, TensorSpec]) -> Graph:
        return Graph(
            self.name,
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(nodes),
            tensors,
            dict(self._constants),
            dict(self._precisions),
        )

    def _append(
        self,
        op: str,
        inputs: Sequence[Any],
        name: str | None,
        outputs: int | Sequence[str],
        attributes: Mapping[str, Any],
        at: str,
    ) -> Any:
        names = self._input_names(inputs, at)
        node_name = self._fresh_node(op) if name is None else str(name)
        if isinstance(outputs, int):
            suffixes = [""] if outputs == 1 else [f".{i}" for i in range(outputs)]
            made = tuple(self._fresh(node_name + suffix, exact=True) for suffix in suffixes)
        else:
            made = tuple(self._claim(out) if out else "" for out in outputs)
            check_distinct(made, at)
        # Nothing is stored before all is inferred: an invalid node leaves the builder unchanged.
        node = Node(node_name, op, names, made, attributes)
        call = make_call(node, self._tensors, self._constants, self._lengths)
        if LENGTHS in attributes:
            node = self.own_lengths.named(node, call, self._tensors, self._inputs)
            call = replace(call, attributes=node.attributes)
        for tensor, spec in zip(made, infer_node(node, call, self._lengths), strict=True):
            if tensor:
                self._tensors[tensor] = spec
        self._node_places[node_name] = len(self._nodes)
        self._nodes.append(node)
        tensors = tuple(Tensor(one, self) if one else "" for one in made)
        return tensors[0] if outputs == 1 and isinstance(outputs, int) else tensors

    def _input_names(self, inputs: Sequence[Any], at: str) -> tuple[str, ...]:
        known = (t for t in inputs if isinstance(t, str) and t in self)
        dtype = next((self.spec(tensor).dtype for tensor in known), None)
        names: list[str] = []
        for value in inputs:
            if value is None:
                names.append("")
            elif isinstance(value, str):
                found = self._find(value)
                if found is None:
                    raise OperatorError(
                        f"there is no tensor {value!r} yet",
                        at=at,
                        fix="pass what input(), constant(), op() or call() returned",
                    )
                names.append(found)
            else:
                plain = isinstance(value, bool | int | float)
                exact = to_exact(value, dtype, at) if plain and dtype is not None else value
                names.append(str(self.constant(exact)))
        return tuple(names)

    def _declare(self, name: str, spec: TensorSpec, precision: int | None) -> None:
        if precision is not None:
            self._precisions[name] = check_precision(precision, spec, f"tensor {name!r}")

    def _claim(self, name: str) -> str:
        if not name:
            raise GraphError("a tensor needs a name", at=self.name, fix="choose one")
        name = str(name)
        if name in self:
            raise GraphError(f"the name {name!r} is taken", at=self.name, fix="choose another")
        return name

    def _find(self, tensor: object) -> str | None:
        """Return the name by which nodes know `tensor`, or None."""
        if isinstance(tensor, Tensor) and tensor.builder is not self:
            raise GraphError(
                f"the tensor {tensor!r} is one of another builder, {tensor.builder.name!r}",
                at=self.name,
                fix="declare an input, and feed it by include(graph, {input: tensor}) or as an "
                "input of the node that has the graph",
            )
        if not isinstance(tensor, str):  # such as an array, which is no key
            return None
        return str(tensor) if tensor in self._tensors else self._outputs.get(tensor)

    def _fresh(self, stem: str, exact: bool = False) -> str:
        if exact and stem not in self:
            return stem
        # Counted from here, not from 1: with n such names, finding the next takes no n steps.
        number = len(self._tensors) + len(self._outputs)
        while f"{stem}.{number}" in self:
            number += 1
        return f"{stem}.{number}"

    def _fresh_node(self, op: str) -> str:
        stem, number = op.split(".")[-1].lower(), len(self._nodes)
        while f"{stem}.{number}" in self._node_places:
            number += 1
        return f"{stem}.{number}"
