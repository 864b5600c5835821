"""`gradients`: adds the nodes that compute gradients to a graph, by reverse accumulation.

It visits the nodes between xs and ys in reverse, for the gradient of a sum of outputs, each
weighted by its `grad_ys`. Source: Griewank and Walther, *Evaluating Derivatives* (2nd edition,
2008), section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, overload

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..core.ir import Graph, Node
from ..core.nested import draws, list_graphs
from ..core.traits import FLAT, Part
from ..decompositions.rules import decompositions
from ..values.dtypes import kind_of
from ..values.errors import GraphError, ShapeError
from ..values.tensor import TensorSpec
from .checkpoints import Checkpoints, plan_recomputation
from .formula import Formula, Term
from .recomputation import Recomputation
from .registry import Adjoint, find_rule
from .via_decomposition import differentiate_expansion


class Reverse:
    """One sweep from outputs to inputs.

    The backward pass computes the tensors of `again` a second time.
    """

    def __init__(
        self, builder: GraphBuilder, xs: Sequence[str], again: Recomputation | None = None
    ) -> None:
        self.formula = Formula(builder)
        self._again = again
        self._builder = builder
        self._nodes = builder.nodes
        self._changing = _find_changing(builder, self._nodes, xs)
        self._parts: dict[str, list[Term]] = {}

    def add(self, tensor: str, gradient: Term) -> None:
        self._parts.setdefault(tensor, []).append(gradient)

    def total(self, tensor: str) -> Term | None:
        parts = self._parts.get(tensor)
        if parts is None:
            return None
        if len(parts) > 1:
            # Kept as one term: it may be requested again, by the tensor's node and as an x.
            self._parts[tensor] = [parts[0].op("Add" if len(parts) == 2 else "Sum", *parts[1:])]
        return self._parts[tensor][0]

    def sweep(self) -> None:
        # In reverse order all readers of a tensor have added to its gradient before its writer is
        # visited.
        for node in reversed(self._nodes):
            wanted = [self._is_changing(t) and not self._is_empty(t) for t in node.inputs]
            depends = any(tensor in self._parts for tensor in node.outputs)
            # Other nodes need no rule: no gradient arrives, or none is requested.
            if depends and any(wanted) and any(map(self._is_changing, node.outputs)):
                self._pass(node, wanted)

    def _is_empty(self, tensor: str) -> bool:
        spec = self._builder.spec(tensor)
        return spec.is_static and spec.size == 0

    def _pass(self, node: Node, wanted: Sequence[bool]) -> None:
        # An expansion may refuse some nodes of its operator.
        expands = node.op in decompositions()
        rule = find_rule(node.op) or (differentiate_expansion if expands else None)
        if rule is None:
            reason = node.operator.lacks.get(Part.GRADIENT)
            raise GraphError(
                f"no gradient of {node.op} is known" + (f": {reason}" if reason else ""),
                at=str(node),
                fix="write it with other operators, or register a rule with "
                "plait.operators.gradient",
            )
        if list_graphs(node) and draws(node):  # its graphs are run anew, where they would draw anew
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
                # Rules may compute in a wider dtype than the tensor's.
                self.add(tensor, gradient.cast(self._builder.spec(tensor).dtype))

    def _is_changing(self, tensor: str) -> bool:
        return tensor in self._changing


def _find_changing(builder: GraphBuilder, nodes: Iterable[Node], xs: Iterable[str]) -> set[str]:
    """Return `xs` and all float tensors in `nodes`, of `builder`, that depend on one of them."""
    found = set(xs)
    for node in nodes:
        if FLAT not in node.operator.traits and not found.isdisjoint(node.inputs):
            found.update(t for t in node.outputs if t and is_float(builder, t))
    return found


def is_float(builder: GraphBuilder, tensor: str) -> bool:
    """Return whether `tensor` of `builder` holds floats: only these have gradients."""
    return kind_of(builder.spec(tensor).dtype) == "f"


Several: TypeAlias = list[str] | list[Tensor] | tuple[str, ...]
OneOrMore: TypeAlias = str | Several
Weights: TypeAlias = str | Sequence[str | None] | None


@overload
def gradients(
    where: GraphBuilder,
    ys: OneOrMore,
    xs: str,
    grad_ys: Weights = None,
    checkpoint: Checkpoints = None,
) -> Tensor: ...
@overload
def gradients(
    where: GraphBuilder,
    ys: OneOrMore,
    xs: Several,
    grad_ys: Weights = None,
    checkpoint: Checkpoints = None,
) -> list[Tensor]: ...
@overload
def gradients(
    where: Graph,
    ys: OneOrMore,
    xs: OneOrMore,
    grad_ys: Weights = None,
    checkpoint: Checkpoints = None,
) -> Graph: ...
def gradients(
    where: GraphBuilder | Graph,
    ys: OneOrMore,
    xs: OneOrMore,
    grad_ys: Weights = None,
    checkpoint: Checkpoints = None,
) -> Tensor | list[Tensor] | Graph:
    """Add the nodes that compute the gradients of `ys` with respect to `xs`.

    The gradient is d(Σ grad_y · y)/dx for each x, summed over all elements of all ys. It is 0 for a
    tensor on which no y depends.

    Parameters
    ----------
    where : GraphBuilder or Graph
        The builder or graph of the tensors. A builder gets more nodes; for a graph a new one is
        made.
    ys : str, or list or tuple of str
        Float tensors, such as a loss.
    xs : str, or list or tuple of str
        Float tensors, inner ones as well.
    grad_ys : str, None, or sequence of these, optional
        For each y a tensor of its shape with weights for its elements; None stands for ones.
    checkpoint : sequence of str, or "auto", optional
        Tensors that are kept for the backward pass; tensors between them are recomputed there,
        which takes less memory and more time. ``"auto"`` chooses them. By default, all tensors are
        kept.

    Returns
    -------
    Tensor, list of Tensor, or Graph
        For a builder the gradients, a list for several xs. For a graph a graph with an additional
        output ``gradient/x`` for each x.

    Raises
    ------
    GraphError
        If a tensor is unknown, one of ys and xs does not hold floats, or an operator in between has
        no gradient: the message names its node.
    ShapeError
        If one of `grad_ys` does not have the dtype and shape of its y.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("square")
    >>> x = b.input("x", "float32", (3,))
    >>> b.output("slope", pl.gradients(b, x * x, x))
    >>> pl.run(pl.plan(b.build()), {"x": np.array([1, 2, 3], "float32")})["slope"]
    array([2., 4., 6.], dtype=float32)
    """
    if isinstance(where, Graph):
        return _add_outputs(where, ys, xs, grad_ys, checkpoint)
    made = _build(where, _to_list(ys), _to_list(xs), grad_ys, checkpoint)
    return made[0] if isinstance(xs, str) else made


def _add_outputs(
    graph: Graph, ys: OneOrMore, xs: OneOrMore, grad_ys: Weights, checkpoint: Checkpoints
) -> Graph:
    builder = GraphBuilder(graph.name)
    for name in graph.inputs:
        spec = graph.tensors[name]
        builder.input(name, spec.dtype, spec.shape or (), graph.precisions.get(name))
    # Rebuilt, since gradients request further outputs of nodes, such as means.
    builder.include(graph, {name: name for name in graph.inputs}, prefix="")
    for name in graph.outputs:
        builder.output(name, name)
    wanted = list(dict.fromkeys(_to_list(xs)))
    made = gradients(builder, ys, wanted, grad_ys, checkpoint)
    for name, gradient in zip(wanted, made, strict=True):
        builder.output(f"gradient/{name}", gradient)
    return builder.build()


def _build(
    builder: GraphBuilder, ys: list[str], xs: list[str], grad_ys: Weights, checkpoint: Checkpoints
) -> list[Tensor]:
    ys, xs = ([builder.own_name(tensor) for tensor in tensors] for tensors in (ys, xs))
    for role, tensors in (("y", ys), ("x", xs)):
        for tensor in tensors:
            _check_float(builder, role, tensor)
    if not ys:
        raise GraphError("there is no y", at=builder.name, fix="pass at least one")
    # A snapshot: nodes that the gradients add are not visited.
    reverse = Reverse(builder, xs, plan_recomputation(builder, ys, xs, checkpoint))
    reverse.formula.prefix = "gradient/"
    # The sweep begins with the derivative of each y by itself: 1 times its weight.
    for y, seed in zip(ys, _check_weights(builder, ys, grad_ys), strict=True):
        term = reverse.formula.term(y)
        reverse.add(y, reverse.formula.like(term, 1) if seed is None else Term(term.formula, seed))
    reverse.sweep()
    reverse.formula.prefix = "gradient/"
    return [_get_result(reverse, x).tensor for x in xs]


def _get_result(reverse: Reverse, x: str) -> Term:
    found = reverse.total(x)
    return reverse.formula.like(reverse.formula.term(x), 0) if found is None else found


def _to_list(names: OneOrMore) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_weights(builder: GraphBuilder, ys: Sequence[str], grad_ys: Weights) -> list[str | None]:
    if grad_ys is None:
        return [None] * len(ys)
    given: list[str | None] = [grad_ys] if isinstance(grad_ys, str) else list(grad_ys)
    if len(given) != len(ys):
        raise GraphError(
            f"there are {len(ys)} ys and {len(given)} grad_ys",
            at=builder.name,
            fix="pass one for each y; None stands for ones",
        )
    for y, weight in zip(ys, given, strict=True):
        if weight is not None and not _may_be(builder.spec(weight), builder.spec(y)):
            raise ShapeError(
                f"grad_ys {weight!r} is {builder.spec(weight)}, but {y!r} is {builder.spec(y)}",
                at=builder.name,
                fix="pass a tensor of the same dtype and shape",
            )
    return given


def _may_be(spec: TensorSpec, wanted: TensorSpec) -> bool:
    if spec.dtype != wanted.dtype:
        return False
    if spec.shape is None or wanted.shape is None:
        return True
    return len(spec.shape) == len(wanted.shape) and all(
        a == b or isinstance(a, str) or isinstance(b, str)
        for a, b in zip(spec.shape, wanted.shape, strict=True)
    )


def _check_float(builder: GraphBuilder, role: str, tensor: str) -> None:
    spec = builder.spec(tensor)
    if not is_float(builder, tensor):
        raise GraphError(
            f"{role} {tensor!r} is {spec}: only floats have gradients",
            at=builder.name,
            fix="name a float tensor, or insert a Cast where it is used",
        )
