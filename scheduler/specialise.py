"""A symbolic graph for given input shapes: every dimension a number, shape arithmetic folded.

One sweep in topological order: infer a node's specs from what is known by now, and where all its
inputs are known values (weights, or what Shape says of a static tensor) run its numpy kernel and
keep the result as a constant. What is not needed any more is dropped at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..devices.device import scratch_name
from ..devices.kernels import find_kernel
from ..devices.memory import host_arena, host_view
from ..devices.program import bind
from ..graph.infer import infer_node
from ..graph.ir import Graph, Node, call_of
from ..graph.names import Names
from ..graph.nested import has_effects
from ..graph.operator import Call
from ..graph.operators.control import CONTROL_FLOW
from ..graph.tensor import Array, Dim, TensorSpec, spec_of
from .errors import FeedError
from .inlining import Namespace, inlined

FOLDED_BYTES = 1 << 24
"""Results over this size are computed when the plan runs, not kept in it."""

Shapes = Mapping[str, Sequence[int]]


def specialise(graph: Graph, shapes: Shapes | None = None) -> Graph:
    """Return the graph for given input shapes, with everything known ahead computed.

    Parameters
    ----------
    graph : Graph
    shapes : Mapping of str to sequence of int, optional
        Shapes of inputs by name. Symbols they bind are replaced everywhere; other dimensions stay
        symbolic.

    Raises
    ------
    FeedError
        If a shape does not fit its input.
    ShapeError
        If the shapes do not fit together further on; `at` names the node.
    """
    specs = bind_inputs(graph, shapes or {})
    sweep = _Sweep(graph, specs)
    for node in graph.nodes:
        sweep.visit(node)
    return sweep.result()


def bind_inputs(graph: Graph, shapes: Shapes) -> dict[str, TensorSpec]:
    """Return the specs of the inputs once they have these shapes.

    Raises
    ------
    FeedError
        If a name is no input, or a shape contradicts its input or another shape.
    """
    for name in shapes:
        if name not in graph.inputs:
            raise FeedError(
                f"graph {graph.name!r} has no input {name!r}",
                fix=f"its inputs are: {', '.join(graph.inputs)}",
            )
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _bind_shape(name, graph.tensors[name], tuple(shape), symbols)
    return {name: _bound(graph.tensors[name], shapes.get(name), symbols) for name in graph.inputs}


def _bind_shape(
    name: str, spec: TensorSpec, shape: tuple[int, ...], symbols: dict[str, int]
) -> None:
    if spec.shape is None:
        return
    known = {symbol: symbols[symbol] for symbol in spec.shape if symbol in symbols}
    fits = len(shape) == len(spec.shape)
    for declared, length in zip(spec.shape, shape, strict=False):
        bound = symbols.setdefault(declared, length) if isinstance(declared, str) else declared
        fits = fits and bound == length
    if not fits:
        where = f" with {', '.join(f'{s} = {n}' for s, n in known.items())}" if known else ""
        raise FeedError(
            f"input {name!r} must be {spec}{where}, got shape {list(shape)}",
            fix="reshape or pad it",
        )


def _bound(spec: TensorSpec, shape: Sequence[int] | None, symbols: Mapping[str, int]) -> TensorSpec:
    if shape is not None:
        return TensorSpec(spec.dtype, tuple(shape))
    if spec.shape is None:
        return spec
    dims: list[Dim] = [symbols.get(d, d) if isinstance(d, str) else d for d in spec.shape]
    return TensorSpec(spec.dtype, dims)


class _Sweep:
    """The state of one sweep: specs and values known so far, nodes kept so far."""

    def __init__(self, graph: Graph, specs: Mapping[str, TensorSpec]) -> None:
        self._graph = graph
        self._tensors = {**specs, **{name: graph.tensors[name] for name in graph.constants}}
        self._values: dict[str, Array] = dict(graph.constants)
        self._kept: list[Node] = []

    @cached_property
    def _names(self) -> Namespace:
        """The names that are taken, where nodes have to be written."""
        nodes = (node.name for node in self._graph.nodes)
        return Namespace(Names(nodes), Names(self._graph.tensors))

    def visit(self, node: Node) -> None:
        call = call_of(node, self._tensors, self._values)
        specs = infer_node(node, call)
        if node.op in CONTROL_FLOW and (plain := inlined(node, call, self._names)):
            self._values.update(plain.constants)
            self._tensors.update({name: spec_of(v) for name, v in plain.constants.items()})
            for written in plain.nodes:
                self.visit(written)
            return
        self._tensors.update(
            {name: spec for name, spec in zip(node.outputs, specs, strict=True) if name}
        )
        values = self._fold(node, call, specs)
        if values is None:
            self._kept.append(node)
        else:
            self._values.update(values)

    def _fold(self, node: Node, call: Call, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
        """Return the node's outputs where they can be known now."""
        if node.operator.function is not None or node.operator.effects:
            return None
        if any(not spec.is_static or spec.nbytes > FOLDED_BYTES for spec in specs):
            return None
        if node.op in ("Shape", "Size"):
            if not call.spec(0).is_static:
                return None
        elif any(name and name not in self._values for name in node.inputs):
            return None
        return _evaluate(node, call, specs) if find_kernel(node.op, "cpu") else None

    def result(self) -> Graph:
        wanted = set(self._graph.outputs)
        kept: list[Node] = []
        for node in reversed(self._kept):
            if has_effects(node) or wanted.intersection(node.outputs):
                wanted.update(name for name in node.inputs if name)
                kept.append(node)
        kept.reverse()
        defined = wanted.union(self._graph.inputs, *(filter(None, node.outputs) for node in kept))
        return Graph(
            self._graph.name,
            self._graph.inputs,
            self._graph.outputs,
            tuple(kept),
            {name: spec for name, spec in self._tensors.items() if name in defined},
            {name: value for name, value in self._values.items() if name in wanted},
            {name: bits for name, bits in self._graph.precisions.items() if name in defined},
        )


def _evaluate(node: Node, call: Call, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Run one node on numpy, on memory of its own."""
    inputs = [name for name in node.inputs if name]
    outputs = {n: s for n, s in zip(node.outputs, specs, strict=True) if n}
    tensors = dict(zip(inputs, (s for s in call.inputs if s is not None), strict=True))
    known = {n: v for n, v in zip(node.inputs, call.values, strict=True) if v is not None}
    for name in inputs:  # Shape reads no bytes of its input, only how long it is
        if name not in known:
            spec = tensors[name]
            known[name] = np.broadcast_to(spec.dtype.type(0), spec.static_shape)
    graph = Graph(node.name, (), tuple(outputs), (node,), {**tensors, **outputs}, known)
    found = find_kernel(node.op, "cpu")
    assert found is not None
    scratch = found.scratch(call, tuple(specs)) if found.scratch else ()
    buffers = {**outputs, **{scratch_name(node, i): spec for i, spec in enumerate(scratch)}}
    views = {n: host_view(host_arena(spec.nbytes), 0, spec) for n, spec in buffers.items()}
    with np.errstate(all="ignore"):
        bind(np, "cpu", graph, views, known)()
    values = {name: views[name].array for name in outputs}
    for value in values.values():
        value.flags.writeable = False
    return values
