"""A symbolic graph for given input shapes: every dimension a number, shape arithmetic folded.

One sweep in topological order infers each node's specs from the specs before it, and evaluates
nodes with known inputs (weights, or the Shape of a static tensor). With `fold_constants` among the
passes results become constants, as by that pass; without, only values that decide shapes do, since
a plan needs static shapes. Nodes that nothing reads any more are dropped at the end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TypeVar

from ...graph.core.evaluation import Room, evaluate_lengths, evaluate_node, is_known_ahead
from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.core.nested import has_effects
from ...graph.core.operator import Call, Specs
from ...graph.operators.control import CONTROL_FLOW
from ...graph.passes.fold_constants import fold_constants
from ...graph.passes.pipeline import Applied, Pass, name_of
from ...graph.values.errors import PlaitError, ShapeError
from ...graph.values.names import Names
from ...graph.values.tensor import Array, Dim, Shape, TensorSpec, spec_of
from ..errors import FeedError
from ..plans.plan import Shapes
from ..plans.request import PassOptions
from . import inlining
from .inlining import Namespace, inline_node

T = TypeVar("T")

_MULTIPLES = 2, 4, 8, 16, 32, 64, 128
"""Common products of the strides of a network: it takes lengths that these divide."""


def specialise_with_passes(
    graph: Graph, shapes: Shapes | None, passes: Sequence[Pass]
) -> tuple[Graph, tuple[Applied, ...]]:
    start = time.perf_counter()
    try:
        sweep = _run_sweep(graph, shapes, folds=PassOptions.from_passes(passes).folds)
    except ShapeError as error:
        error.fix = _suggest_shapes(graph, shapes or {}) or error.fix
        raise
    after = sweep.result()
    return after, sweep.told(after, time.perf_counter() - start)


def specialise(
    graph: Graph,
    shapes: Shapes | None = None,
    *,
    folds: bool = True,
    kept_loops: Collection[str] = (),
) -> Graph:
    """Return the graph for given input shapes, with values that are known ahead as constants.

    Raises FeedError if a shape does not fit its input; ShapeError if shapes are incompatible inside
    the graph; `at` names the node.

    Parameters
    ----------
    shapes : Mapping of str to sequence of int, optional
        Shapes of inputs by name. Their symbols are replaced everywhere; other dimensions stay
        symbolic.
    folds : bool, default True
        If false, nodes with results that are known ahead stay and run, unless these decide shapes.
    kept_loops : collection of str, optional
        Nodes with bodies that stay, even if they are short enough to be unrolled.
    """
    return _run_sweep(graph, shapes, folds, kept_loops).result()


def _run_sweep(
    graph: Graph, shapes: Shapes | None, folds: bool, kept_loops: Collection[str] = ()
) -> _Sweep:
    sweep = _Sweep(graph, bind_inputs(graph, shapes or {}), folds, kept_loops)
    for node in graph.nodes:
        sweep.visit(node, inlining.UNROLLED_NODES)
    return sweep


def _suggest_shapes(graph: Graph, shapes: Shapes) -> str | None:
    """Return the advice to pad `shapes` to those that suit `graph`, or None if none are found."""
    dims = {name: graph.tensors[name].shape for name in shapes}
    given = dict(chain(*(zip(own, shapes[name], strict=True) for name, own in dims.items() if own)))

    def replace_lengths(lengths: Mapping[Dim, int]) -> dict[str, list[int]]:
        return {name: [lengths[dim] for dim in own or ()] for name, own in dims.items() if own}

    def suits(lengths: Mapping[Dim, int]) -> bool:
        with suppress(PlaitError):
            return bool(_run_sweep(graph, {**shapes, **replace_lengths(lengths)}, folds=False))
        return False

    for multiple in _MULTIPLES:
        more = {d: n if n == d else -(-n // multiple) * multiple for d, n in given.items()}
        if more != given and suits(more):
            for dim in given:  # of few that need it, such as an image's and not a batch's
                if suits(fewer := {**more, dim: given[dim]}):
                    more = fewer
            changes = (
                f"{name} from {list(shapes[name])} to {shape}"
                for name, shape in replace_lengths(more).items()
                if shape != list(shapes[name])
            )
            return f"resize or pad what is fed, for instance {', '.join(changes)}"
    return None


def list_loops(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes if node.op in CONTROL_FLOW}


def bind_inputs(graph: Graph, shapes: Shapes) -> dict[str, TensorSpec]:
    """Return the specs of all inputs of `graph` by name, with the given `shapes` bound.

    Raises FeedError if a name is not an input, or a shape contradicts its input or another shape.
    """
    known = set(graph.inputs)
    for name in shapes:
        if name not in known:
            listed = ", ".join(f"{one}, {graph.tensors[one]}" for one in graph.inputs)
            is_length = any(name in (graph.tensors[one].shape or ()) for one in graph.inputs)
            raise FeedError(
                f"graph {graph.name!r} has no input {name!r}",
                fix=f"{'give the whole shape of an input: ' * is_length}its inputs are: {listed}",
            )
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _bind_shape(name, graph.tensors[name], tuple(shape), symbols)
    return {
        name: _bind_spec(graph.tensors[name], shapes.get(name), symbols) for name in graph.inputs
    }


def _bind_shape(
    name: str, spec: TensorSpec, shape: tuple[int, ...], symbols: dict[str, int]
) -> None:
    if spec.shape is None:
        return
    known = {symbol: symbols[symbol] for symbol in spec.shape if symbol in symbols}
    fits = len(shape) == len(spec.shape)
    for declared, length in zip(spec.shape, shape, strict=False):
        # The first input with a symbol sets its length; all others must agree.
        bound = symbols.setdefault(declared, length) if isinstance(declared, str) else declared
        fits = fits and bound == length
    if not fits:
        where = f" with {', '.join(f'{s} = {n}' for s, n in known.items())}" if known else ""
        raise FeedError(
            f"input {name!r} must be {spec}{where}, got shape {list(shape)}",
            fix="reshape or pad it",
        )


def _bind_spec(
    spec: TensorSpec, shape: Sequence[int] | None, symbols: Mapping[str, int]
) -> TensorSpec:
    if shape is not None:
        return TensorSpec(spec.dtype, tuple(shape))
    if spec.shape is None:
        return spec
    dims: list[Dim] = [symbols.get(d, d) if isinstance(d, str) else d for d in spec.shape]
    return TensorSpec(spec.dtype, dims)


class _Sweep:
    """The state of one sweep: specs and values known so far, nodes kept so far."""

    def __init__(
        self,
        graph: Graph,
        specs: Mapping[str, TensorSpec],
        folds: bool,
        kept_loops: Collection[str],
    ) -> None:
        self._graph = graph
        self._folds = folds
        self._kept_loops = kept_loops
        given = (*graph.constants, *graph.prepared, *graph.late)
        self._tensors = {**specs, **{name: graph.tensors[name] for name in given}}
        self._lengths: dict[str, Shape] = {}
        self._constants: dict[str, Array] = dict(graph.constants)
        # The same mapping if all known values become constants.
        self._values = self._constants if folds else dict(graph.constants)
        # Folding must not make a graph much larger than its weights, as an Expand would.
        self._room = Room(graph.constants.values())
        self._kept: list[Node] = []
        self._met: list[str] = []
        self._deciding: set[str] = set()
        """Tensors with values that decide shapes: constants even without folding."""

    @cached_property
    def _names(self) -> Namespace:
        nodes = (node.name for node in self._graph.nodes)
        return Namespace(Names(nodes), Names(self._graph.tensors))

    def visit(self, node: Node, allowance: int) -> None:
        call = make_call(node, self._tensors, self._values, self._lengths)
        specs = self._inferred(node, call)
        allowance = 0 if node.name in self._kept_loops else allowance
        if node.op in CONTROL_FLOW and (plain := inline_node(node, call, self._names, allowance)):
            self._constants.update(plain.constants)
            self._values.update(plain.constants)
            self._tensors.update({name: spec_of(v) for name, v in plain.constants.items()})
            # Unrolled bodies may contain loops, which share the rest of the allowance.
            for written in plain.nodes:
                self.visit(written, plain.allowance)
            return
        self._tensors.update(
            {name: spec for name, spec in zip(node.outputs, specs, strict=True) if name}
        )
        self._deciding |= self._decides(node, call, specs)
        values = None
        if is_known_ahead(node, self._tensors, self._values):
            values = evaluate_lengths(node, specs, self._lengths)
            values = values or evaluate_node(node, call, specs, self._room)
        self._values.update(values or {})
        self._met.append(node.name)
        # Without folding the node runs, even if its values decided shapes.
        if values is None or not self._folds:
            self._kept.append(node)

    def _inferred(self, node: Node, call: Call) -> Specs:
        """Infer the specs of outputs of `node` from `call`.

        Incompatible shapes in a branch are an error only if the branch is entered: until the
        condition is known, the outputs of the If stay open.
        """
        try:
            return infer_node(node, call, self._lengths)
        except ShapeError:
            if node.op != "If" or call.value(0) is not None or not all(node.outputs):
                raise
            return self._graph.output_specs(node)

    def _decides(self, node: Node, call: Call, specs: Specs) -> set[str]:
        known = {n for n in node.inputs if n in self._values and n not in self._constants}
        if not known or not _needs(node, call, specs, known):
            return set()
        # Single inputs that are necessary; else all of them together.
        return {name for name in known if _needs(node, call, specs, {name})} or known

    def told(self, after: Graph, seconds: float) -> tuple[Applied, ...]:
        if len(self._kept) == len(self._met):
            return ()
        left = {node.name for node in after.nodes}
        removed = tuple(name for name in self._met if name not in left)
        counts = len(self._met), len(after.nodes)
        return (Applied(name_of(fold_constants), *counts, (), (), removed, seconds),)

    def result(self) -> Graph:
        wanted = set(self._graph.outputs)
        kept: list[Node] = []
        # Backwards, so that readers come before the tensors that they read.
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
    def forget(known: Sequence[T]) -> tuple[T | None, ...]:
        given = zip(node.inputs, known, strict=False)
        return tuple(None if name in names else value for name, value in given)

    without = replace(call, values=forget(call.values), elements=forget(call.elements))
    try:
        return infer_node(node, without) != specs
    except PlaitError:
        return True
