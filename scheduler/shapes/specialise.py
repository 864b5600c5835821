"""A symbolic graph for given input shapes: every dimension a number, shape arithmetic folded.

One sweep in topological order: infer a node's specs from what is known by now, and where all its
inputs are known values (weights, or what Shape says of a static tensor) compute its own. With
`fold_constants` among the passes it becomes a constant, as that pass would have it; without, only
what decides shapes does, for a plan has to know those. What is not needed any more is dropped at
the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ...graph.errors import PlaitError, ShapeError
from ...graph.evaluation import Room, evaluated, is_known_ahead
from ...graph.infer import infer_node
from ...graph.ir import Graph, Node, call_of
from ...graph.names import Names
from ...graph.nested import has_effects
from ...graph.operator import Call, Specs
from ...graph.operators.control import CONTROL_FLOW
from ...graph.passes import Applied, Pass, fold_constants, name_of
from ...graph.tensor import Array, Dim, TensorSpec, spec_of
from ..errors import FeedError
from ..plans.shapes import Shapes
from . import inlining
from .inlining import Namespace, inlined


def specialised(
    graph: Graph, shapes: Shapes | None, passes: Sequence[Pass]
) -> tuple[Graph, tuple[Applied, ...]]:
    """Return the graph as `specialise` does, and what `fold_constants` did if it is a pass.

    Raises
    ------
    FeedError, ShapeError
        As `specialise`.
    """
    start = time.perf_counter()
    sweep = _swept(graph, shapes, folds=fold_constants in passes)
    after = sweep.result()
    return after, sweep.told(after, time.perf_counter() - start)


def specialise(graph: Graph, shapes: Shapes | None = None, *, folds: bool = True) -> Graph:
    """Return the graph for given input shapes, with everything known ahead computed.

    Parameters
    ----------
    graph : Graph
    shapes : Mapping of str to sequence of int, optional
        Shapes of inputs by name. Symbols they bind are replaced everywhere; other dimensions stay
        symbolic.
    folds : bool, default True
        False where nodes whose results are known ahead stay and run, unless these decide shapes.

    Raises
    ------
    FeedError
        If a shape does not fit its input.
    ShapeError
        If the shapes do not fit together further on; `at` names the node.
    """
    return _swept(graph, shapes, folds).result()


def _swept(graph: Graph, shapes: Shapes | None, folds: bool) -> _Sweep:
    sweep = _Sweep(graph, bind_inputs(graph, shapes or {}), folds)
    for node in graph.nodes:
        sweep.visit(node, inlining.UNROLLED_NODES)
    return sweep


def bind_inputs(graph: Graph, shapes: Shapes) -> dict[str, TensorSpec]:
    """Return the specs of the inputs once they have these shapes.

    Raises
    ------
    FeedError
        If a name is no input, or a shape contradicts its input or another shape.
    """
    known = set(graph.inputs)
    for name in shapes:
        if name not in known:
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
        # The first input that has a symbol says how long it is; all others have to agree.
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

    def __init__(self, graph: Graph, specs: Mapping[str, TensorSpec], folds: bool) -> None:
        self._graph = graph
        self._folds = folds
        given = (*graph.constants, *graph.prepared, *graph.late)
        self._tensors = {**specs, **{name: graph.tensors[name] for name in given}}
        self._constants: dict[str, Array] = dict(graph.constants)
        # One and the same mapping where all that is known becomes a constant.
        self._values = self._constants if folds else dict(graph.constants)
        # Folding may not make a graph much larger than its weights are: an Expand of constants
        # would.
        self._room = Room(graph.constants.values())
        self._kept: list[Node] = []
        self._met: list[str] = []
        self._deciding: set[str] = set()
        """Of what is not folded, all the same: tensors whose values decide shapes."""

    @cached_property
    def _names(self) -> Namespace:
        """The names that are taken, where nodes have to be written."""
        nodes = (node.name for node in self._graph.nodes)
        return Namespace(Names(nodes), Names(self._graph.tensors))

    def visit(self, node: Node, allowance: int) -> None:
        """Take a node in; loops may become as many nodes as the allowance."""
        call = call_of(node, self._tensors, self._values)
        specs = self._inferred(node, call)
        if node.op in CONTROL_FLOW and (plain := inlined(node, call, self._names, allowance)):
            self._constants.update(plain.constants)
            self._values.update(plain.constants)
            self._tensors.update({name: spec_of(v) for name, v in plain.constants.items()})
            # What a loop was written out as may hold loops again, which have the rest of the
            # allowance.
            for written in plain.nodes:
                self.visit(written, plain.allowance)
            return
        self._tensors.update(
            {name: spec for name, spec in zip(node.outputs, specs, strict=True) if name}
        )
        self._deciding |= self._decides(node, call, specs)
        known = is_known_ahead(node, self._tensors, self._values)
        values = evaluated(node, call, specs, self._room) if known else None
        self._values.update(values or {})
        self._met.append(node.name)
        # Without folding the node runs all the same, though its values may decide shapes meanwhile.
        if values is None or not self._folds:
            self._kept.append(node)

    def _inferred(self, node: Node, call: Call) -> Specs:
        """Return the specs of what a node writes.

        A branch that does not fit is no mistake as long as it is not entered: until a condition is
        known, so much about an If stays open.
        """
        try:
            return infer_node(node, call)
        except ShapeError:
            if node.op != "If" or call.value(0) is not None or not all(node.outputs):
                raise
            return self._graph.output_specs(node)

    def _decides(self, node: Node, call: Call, specs: Specs) -> set[str]:
        """Return what has to be a constant, lest the node's shapes are not known."""
        known = {n for n in node.inputs if n in self._values and n not in self._constants}
        if not known or not _needs(node, call, specs, known):
            return set()
        # Each alone, if one of them is what it takes; else they do together.
        return {name for name in known if _needs(node, call, specs, {name})} or known

    def told(self, after: Graph, seconds: float) -> tuple[Applied, ...]:
        """Return what became constants, and nodes that nothing needs then, if that is any."""
        if len(self._kept) == len(self._met):
            return ()
        left = {node.name for node in after.nodes}
        removed = tuple(name for name in self._met if name not in left)
        counts = len(self._met), len(after.nodes)
        return (Applied(name_of(fold_constants), *counts, (), (), removed, seconds),)

    def result(self) -> Graph:
        wanted = set(self._graph.outputs)
        kept: list[Node] = []
        # Backwards, so that readers are known before what they read.
        for node in reversed(self._kept):
            if not self._deciding.isdisjoint(node.outputs):
                self._constants.update({n: self._values[n] for n in node.outputs if n})
            elif has_effects(node) or wanted.intersection(node.outputs):
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
            {name: value for name, value in self._constants.items() if name in wanted},
            {name: bits for name, bits in self._graph.precisions.items() if name in defined},
            self._graph.prepared & wanted,
            self._graph.variables,
        )


def _needs(node: Node, call: Call, specs: Specs, names: set[str]) -> bool:
    """True when a node's shapes are not the same without the values of some inputs."""
    told = zip(node.inputs, call.values, strict=True)
    values = tuple(None if name in names else value for name, value in told)
    try:
        return infer_node(node, replace(call, values=values)) != specs
    except PlaitError:
        return True
