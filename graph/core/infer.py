"""Shape inference: applies the operators' rules to a graph; errors name the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..values.dims import UNKNOWN
from ..values.errors import PlaitError, ShapeError, describe_error, is_ctrl_c
from ..values.registry import Registry
from ..values.tensor import MOST_DIMS, Array, Dim, Shape, TensorSpec, spec_of
from .ir import Graph, Node, make_call
from .operator import Call, Cost

LONGEST_DIM = 300
"""Limit of characters of a symbolic length; nested expressions double with each node."""

_RULE_FIX = "correct its inputs and attributes, or the rule of an operator of your own"
_SYMBOL_FIX = (
    "; lengths such as 'n' can be computed with by + - * // %, and where that is not enough a rule "
    "may say that one is plait.operators.UNKNOWN until shapes are numbers"
)


class asking:  # noqa: N801 - as `suppress` is, and with no generator, for it is entered by node
    """Add the node to errors of its operator's rules, and convert foreign errors to ShapeErrors.

    Files, feeds and folded constants pass unforeseen numbers to rules. A rule that exits is wrong
    like any other: only Ctrl-C passes.
    """

    __slots__ = ("_call", "_node")

    def __init__(self, node: Node, call: Call) -> None:
        self._node, self._call = node, call

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, PlaitError):
            if error.at is None:
                error.at = describe(self._node, self._call)
        elif error is not None and not is_ctrl_c(error):
            specs = self._call.inputs
            has_symbols = any(spec is not None and not spec.is_static for spec in specs)
            raise ShapeError(
                f"{self._node.op} cannot be understood: {describe_error(error)}",
                at=describe(self._node, self._call),
                fix=_RULE_FIX + (_SYMBOL_FIX if has_symbols else ""),
            ) from error


def infer_node(
    node: Node, call: Call, lengths: dict[str, Shape] | None = None
) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs of `node` for the inputs in `call`.

    The elements of an output that lists lengths are added to `lengths`, if they are known.

    Raises ShapeError if the inputs do not fit the operator, or its rule fails or yields too few
    outputs.
    """
    with asking(node, call):
        specs = tuple(node.operator.infer(call))
        rule = length_rules.get(node.op)
        if lengths is not None and rule is not None and node.outputs[0]:
            found = rule(call)
            if found is not None and len(found) <= MOST_DIMS and not any(map(_is_long, found)):
                lengths[node.outputs[0]] = tuple(found)
    if len(specs) < len(node.outputs):
        raise ShapeError(
            f"{node.op} yields {len(specs)} outputs here, {len(node.outputs)} are asked for",
            at=describe(node, call),
            fix="ask for fewer outputs",
        )
    return tuple(map(_name_unknown, specs, node.outputs))


length_rules = Registry[str, Callable[[Call], Sequence[Dim] | None]](
    "operator {!r} has two rules for lengths"
)
"""By operator: returns the elements of the output, a list of lengths, or None if one is unknown."""


def _name_unknown(spec: TensorSpec, tensor: str) -> TensorSpec:
    """Name each unknown or long length of `spec` after `tensor` and the axis."""
    if spec.shape is None or not any(map(_needs_name, spec.shape)):
        return spec
    named = (
        _name_length(tensor, axis) if _needs_name(dim) else dim
        for axis, dim in enumerate(spec.shape)
    )
    return TensorSpec(spec.dtype, tuple(named))


def has_own_length(tensor: str, spec: TensorSpec) -> bool:
    return any(dim == _name_length(tensor, axis) for axis, dim in enumerate(spec.shape or ()))


def _name_length(tensor: str, axis: int) -> str:
    return f"{tensor}.shape[{axis}]"


def _needs_name(dim: Dim) -> bool:
    return dim == UNKNOWN or _is_long(dim)


def _is_long(dim: Dim) -> bool:
    return isinstance(dim, str) and len(dim) > LONGEST_DIM


def infer_shapes(graph: Graph) -> Graph:
    """Infer all specs of `graph` again from those of the inputs and constants.

    Raises ShapeError if shapes or dtypes do not fit; `at` names the node.
    """
    given = (*graph.inputs, *graph.constants)
    tensors = {name: graph.tensors[name] for name in given}
    lengths: dict[str, Shape] = {}
    for node in graph.nodes:
        call = make_call(node, tensors, graph.constants, lengths)
        inferred = zip(node.outputs, infer_node(node, call, lengths), strict=True)
        tensors.update({name: spec for name, spec in inferred if name})
    return replace(graph, tensors=tensors)


def infer_changed(
    before: Graph,
    nodes: Sequence[Node],
    inputs: Mapping[str, TensorSpec],
    constants: Mapping[str, Array],
) -> dict[str, TensorSpec]:
    """Return the specs of all tensors of a graph of `nodes`, `inputs` and `constants`.

    Nodes with the same inputs as in `before` keep their specs. Raises ShapeError like
    `infer_shapes`.
    """
    known = {node.name: node for node in before.nodes}
    tensors = {**{name: spec_of(array) for name, array in constants.items()}, **inputs}
    given = (*before.entering, *before.prepared)
    same = {name for name in given if inputs.get(name) == before.tensors.get(name)}
    # By identity: comparing elements could take longer than inferring.
    same |= {name for name, array in before.constants.items() if constants.get(name) is array}
    lengths: dict[str, Shape] = {}
    for node in nodes:
        is_same = node == known.get(node.name) and same.issuperset(filter(None, node.inputs))
        # Lengths may change where specs do not, and nodes that change may read those that stay.
        if is_same and lengths.keys().isdisjoint(node.inputs) and not _may_list(node, before):
            found = [before.tensors[name] if name else None for name in node.outputs]
        else:
            call = make_call(node, tensors, constants, lengths)
            found = [*infer_node(node, call, lengths)]
        for name, spec in zip(node.outputs, found, strict=False):
            if name and spec is not None:
                tensors[name] = spec
                # So a change ends where specs are unchanged, and later nodes are not inferred.
                if name in before.producers and spec == before.tensors[name]:
                    same.add(name)
    return tensors


def _may_list(node: Node, graph: Graph) -> bool:
    spec = graph.tensors.get(node.outputs[0])
    return node.op in length_rules and spec is not None and spec.dtype.kind in "iu"


def get_cost(graph: Graph, node: Node) -> Cost:
    """Return the modelled cost of `node` in `graph`; all its tensors must be static."""
    known = graph.costs.get(node.name)
    if known is not None and known[0] is node:
        return known[1]
    call, outputs = graph.call(node), graph.output_specs(node)
    nbytes = sum(spec.nbytes for spec in (*call.inputs, *outputs) if spec is not None)
    with asking(node, call):
        cost = Cost(int(node.operator.cost(call, outputs)), nbytes)
    graph.costs[node.name] = node, cost
    return cost


def describe(node: Node, call: Call) -> str:
    specs = ", ".join("-" if spec is None else str(spec) for spec in call.inputs)
    return f"{node}, inputs {specs}"
