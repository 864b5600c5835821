"""Bounds of symbolic dimensions: the smallest and largest shapes that a plan is made for.

Plans are made for the largest shapes; `bounded_shapes` fits smaller ones into them. Tensors that
share bytes must do so at all shapes: the second input of a Concat in place starts where the first
one ends, and so moves with the length of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ...devices.device import Device
from ...graph.building.own_lengths import find_renamed_lengths
from ...graph.core.aliasing import find_runs
from ...graph.core.infer import describe, infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.values.dims import is_computed
from ...graph.values.errors import Argument, Fix, PlaitError, ShapeError, suggest_names
from ...graph.values.recent import ByIdentity
from ...graph.values.tensor import TensorSpec
from ..errors import FeedError, PlanError
from ..plans.plan import NO_BOUNDS, Bounds, Plan, Shapes
from ..plans.request import Pins
from .constraints import NONE, DynamicShapeConstraints
from .fixed import are_same_nodes, find_fixed_nodes, find_growing_constraints, remove_nodes
from .specialise import list_loops, specialise
from .sync_points import GraphSplit, cut_alike, find_frontier, has_static_shapes, untold_shape_error
from .whole import list_switches, with_whole_nodes

Start: TypeAlias = tuple[str, int, str, int]
"""A run of bytes without its length."""

SAMPLES = 12
"""Steps from the smallest to the largest lengths that are tried."""

MOST = 1 << 40
"""The largest length: sums of bytes are 64-bit numbers."""

EXAMPLE = 64
"""A length in suggested arguments."""

GRAIN = 32
"""The largest power of two that lengths of a model are taken to be multiples of."""


def check_bounds(graph: Graph, bounds: object) -> Bounds:
    """Return the bounds of all symbols of the graph's inputs, in the order of the graph.

    `bounds` has the largest length of each symbol, or the smallest and the largest. Raises
    PlanError if they are malformed, or leave a symbol of an input open.
    """
    if not isinstance(bounds, Mapping):
        raise PlanError(
            f"bounds is {bounds!r}",
            fix=Fix("map symbols to lengths: ", Argument("bounds", {"n": 64})),
        )
    found = {symbol: _check_pair(symbol, bound) for symbol, bound in bounds.items()}
    symbols = dict(_list_symbols(graph))
    known = (*symbols, *find_computed_symbols(graph))
    for symbol in found:
        if symbol not in symbols:
            raise PlanError(
                f"bounds names {symbol!r}, which is the length of nothing that is fed or computed",
                at=f"graph {graph.name!r}",
                fix=suggest_names(symbol, known, f"its symbols are: {', '.join(known) or 'none'}"),
            )
    for symbol, name in symbols.items():
        if symbol not in found:
            raise PlanError(
                f"the bounds leave {symbol!r} open",
                at=f"input {name!r}: {graph.tensors[name]}",
                fix=Fix(
                    "bound it too: ",
                    Argument("bounds", {symbol: EXAMPLE}),
                    ", or fix the shape: ",
                    suggest_shapes(graph, name),
                ),
            )
    # In the order of the graph, not of the argument: plans and their digests follow from it.
    return {symbol: found[symbol] for symbol in symbols}


def suggest_shapes(graph: Graph, *names: str) -> Argument:
    shapes = {name: graph.tensors[name].shape or (1, 3) for name in names}
    return Argument(
        "shapes",
        {
            name: tuple(dim if isinstance(dim, int) else EXAMPLE for dim in shape)
            for name, shape in shapes.items()
        },
    )


def check_not_fixed(graph: Graph, part: Graph, bounds: object) -> None:
    """Raise PlanError if `bounds` has a length of `graph` that shapes fix in `part` of it."""
    named = bounds if isinstance(bounds, Mapping) else {}
    for name in part.inputs:
        before, after = (one.tensors[name].shape or () for one in (graph, part))
        for symbol, length in zip(before, after, strict=False):
            if symbol != length and symbol in named:
                raise PlanError(
                    f"{symbol!r} has a bound, and the shape given for {name!r} fixes it: {length}",
                    at=f"input {name!r}: {graph.tensors[name]}",
                    fix="leave out the bound, or the shape",
                )


def resolve_bounds(graph: Graph, bounds: object, source: Graph | None = None) -> Bounds:
    """Return the bounds of fed lengths, then of lengths that follow from values.

    `source` is the user's graph: `graph` may lack some of its lengths, folded or never read. Raises
    PlanError if bounds are malformed, or bound only some of the fed lengths.
    """
    known = find_computed_symbols(graph)
    if isinstance(bounds, Mapping):
        gone = find_computed_symbols(source).keys() - known.keys() if source is not None else ()
        bounds = {symbol: bound for symbol, bound in bounds.items() if symbol not in gone}
        bounds = _spread_declared_bounds(graph, known, bounds)
    if not isinstance(bounds, Mapping) or known.keys().isdisjoint(bounds):
        return check_bounds(graph, bounds)
    fed = {symbol: bound for symbol, bound in bounds.items() if symbol not in known}
    computed = {s: _check_pair(s, bound, least=0) for s, bound in bounds.items() if s in known}
    return {**(check_bounds(graph, fed) if fed else NO_BOUNDS), **computed}


def _spread_declared_bounds(
    graph: Graph, known: Collection[str], bounds: Mapping[Any, Any]
) -> Mapping[Any, Any]:
    found = dict(bounds)
    for name, declared in find_renamed_lengths(graph).items():
        if name in known and declared in bounds:
            found.setdefault(name, bounds[declared])
            if declared not in known:  # every call has its own length
                found.pop(declared, None)
    return found


def find_computed_symbols(graph: Graph) -> Mapping[str, str]:
    """Map symbols of `graph` that follow from values to the name of a tensor with that length."""
    fed = {dim for name in graph.inputs for dim in graph.tensors[name].shape or ()}
    found: dict[str, str] = {}
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            for dim in graph.tensors[name].shape or ():
                # Formulas of other lengths have bounds by theirs.
                if isinstance(dim, str) and dim not in fed and not is_computed(dim):
                    found.setdefault(dim, name)
    return found


def find_fed_bounds(graph: Graph, bounds: Bounds) -> Bounds | None:
    """Return the bounds of all symbols of the graph's inputs, or None if one has none."""
    found: dict[str, tuple[int, int]] = {}
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        symbols = {dim for dim in shape or () if isinstance(dim, str)}
        # One unbounded length is enough: there is no largest shape.
        if shape is None or not bounds.keys() >= symbols:
            return None
        found.update((symbol, bounds[symbol]) for symbol in symbols)
    return found


def pick_largest(bounds: Bounds) -> Mapping[str, int]:
    return {symbol: high for symbol, (_, high) in bounds.items()}


@dataclass(frozen=True, slots=True)
class Template:
    """A graph with symbols, and everything that its form for given lengths depends on."""

    graph: Graph
    devices: Mapping[str, Device]
    pins: Pins
    folds: bool
    """True if nodes with results that are known ahead become constants."""
    fed: Collection[str] | None = None
    """The inputs of the whole graph, if this is a part of it."""
    kept_loops: Collection[str] = ()
    """The loops that are too long to be unrolled at the largest lengths: they stay at all."""

    def of(self, shapes: Shapes) -> Graph:
        graph = specialise(self.graph, shapes, folds=self.folds, kept_loops=self.kept_loops)
        fed = self.graph.inputs if self.fed is None else self.fed
        # Only users set switches: inputs from other parts of the graph are ordinary values.
        switches = [name for name in list_switches(self.graph) if name in fed]
        return with_whole_nodes(graph, self.devices, self.pins, switches, folds=self.folds)

    def picked(self, lengths: Mapping[str, int]) -> Graph:
        specs = {name: self.graph.tensors[name].shape or () for name in self.graph.inputs}
        return self.of(
            {
                name: [lengths[dim] if isinstance(dim, str) else dim for dim in shape]
                for name, shape in specs.items()
            }
        )

    def cut(self, bounds: Bounds, computed: Bounds) -> GraphSplit:
        """Cut the graph at the first shapes that do not follow from shapes of inputs.

        `bounds` has the symbols of inputs, `computed` also the lengths that follow from values.
        """
        graph = self.picked(pick_largest(bounds))
        return (
            GraphSplit(self.graph, None, ())
            if has_static_shapes(graph)
            else cut_alike(self.graph, graph, computed)
        )


def find_constraints(template: Template, bounds: Bounds, graph: Graph) -> DynamicShapeConstraints:
    """Return the constraints that other shapes within `bounds` put on the memory of `graph`.

    The graph is the largest form of `template`. Nodes that would share bytes differently at other
    shapes are kept apart. If no other shapes could be tried, nodes that share bytes from any place
    but the first are. Fixed nodes are the same at all shapes and are left out.
    """
    known = _constraints.get(graph)
    if known is not None and known[:2] == (template, bounds):
        return known[2]
    found = _find_constraints(template, bounds, graph)
    _constraints[graph] = template, bounds, found
    return found


_constraints: ByIdentity[Graph, tuple[Template, Bounds, DynamicShapeConstraints]] = ByIdentity()
"""An opened plan asks for what it was planned with."""


def _find_constraints(template: Template, bounds: Bounds, graph: Graph) -> DynamicShapeConstraints:
    template = replace(template, kept_loops=list_loops(graph))
    part, own = _extract_varying(template, bounds, graph)
    # Shapes that make other nodes do not run in this plan: they need not fit.
    tried = list(_specialise_samples(part, bounds))
    others = [other for other in tried if are_alike(other, own)]
    ways = [[_find_sharing(other, node) for node in other.nodes] for other in others]
    apart = set[str]()
    for place, node in enumerate(own.nodes):
        here = _find_sharing(own, node)
        # Samples prove nothing, but runs that begin elsewhere at some lengths do so at most
        # lengths; `BoundedShapes` checks again when lengths come.
        if any(there[place] != here for there in ways) or not (ways or _is_simple(here)):
            apart.add(node.name)
    has_same_nodes = len(others) == len(tried)
    return DynamicShapeConstraints(frozenset(apart), others, has_same_nodes=has_same_nodes)


def find_plan_constraints(plan: Plan) -> DynamicShapeConstraints:
    if plan.template is None:
        return NONE
    if not plan.bounds:
        return find_growing_constraints(plan.template)
    template = Template(plan.template, plan.prototypes, plan.pins, plan.folds)
    return find_constraints(template, plan.bounds, plan.graph)


def _extract_varying(template: Template, bounds: Bounds, graph: Graph) -> tuple[Template, Graph]:
    fixed = find_fixed_nodes(template.graph)
    whole = template.graph
    part = replace(template, graph=remove_nodes(whole, fixed), fed=whole.inputs)
    own = part.picked(pick_largest(bounds))
    left = [node for node in graph.nodes if node.name not in fixed]
    # If fixed nodes were folded or fused with others here, none can be left out.
    return (part, own) if are_same_nodes(own.nodes, left) else (template, graph)


def _specialise_samples(template: Template, bounds: Bounds) -> Iterator[Graph]:
    tried = [pick_largest(bounds)]
    for lengths in _sample_lengths(bounds):
        if lengths not in tried:
            tried.append(lengths)
            with suppress(ShapeError):
                yield template.picked(lengths)


def _sample_lengths(bounds: Bounds) -> Iterator[Mapping[str, int]]:
    for step in range(SAMPLES):
        # Another stride for each symbol, so that two of them seldom coincide.
        parts = [step * (2 * place + 1) % (SAMPLES + 1) for place in range(len(bounds))]
        yield _interpolate_lengths(bounds, parts, 1)
        yield _interpolate_lengths(bounds, parts, GRAIN)
    for step in range(0, SAMPLES, 2):
        for largest_one in range(len(bounds)):
            parts = [SAMPLES if one == largest_one else step for one in range(len(bounds))]
            yield _interpolate_lengths(bounds, parts, GRAIN)


def _interpolate_lengths(bounds: Bounds, parts: Sequence[int], grain: int) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for (symbol, (low, high)), part in zip(bounds.items(), parts, strict=True):
        # Models may take only multiples of a power of two: the largest length shows it.
        unit = max(1, min(high & -high, grain))
        found[symbol] = max(low, (low + (high - low) * part // SAMPLES) // unit * unit)
    return found


def are_alike(graph: Graph, other: Graph) -> bool:
    """Return whether `graph` and `other` have the same nodes; shapes and values may differ."""
    have_same_constants = graph.constants.keys() == other.constants.keys()
    return have_same_constants and are_same_nodes(graph.nodes, other.nodes)


def check_within(graph: Graph, bounds: Bounds, shapes: Shapes) -> None:
    for name, shape in shapes.items():
        dims = graph.tensors[name].shape
        for symbol, length in zip(dims, shape, strict=True) if dims is not None else ():
            if not isinstance(symbol, str) or symbol not in bounds:
                continue
            low, high = bounds[symbol]
            if not low <= length <= high:
                wider = min(low, length), max(high, length)
                advice = "plan with wider bounds: "
                if not length:
                    advice = "feed no empty arrays, or plan for these, too: "
                raise FeedError(
                    f"input {name!r} has {symbol} = {length}, out of its bounds {low} to {high}",
                    at=f"graph {graph.name!r}, input {name!r}: {graph.tensors[name]}",
                    fix=Fix(advice, Argument("bounds", {symbol: wider})),
                )


def count_error(tensor: str, symbol: str, count: int, bound: tuple[int, int]) -> ShapeError:
    low, high = bound
    wider = min(low, count), max(high, count)
    return ShapeError(
        f"{symbol!r} is {count} here, out of its bounds {low} to {high}",
        at=f"tensor {tensor!r}",
        fix=Fix("plan with wider bounds: ", Argument("bounds", {symbol: wider})),
    )


class UndecidedError(PlanError):
    """Raised for bounds on a graph in which values decide other lengths."""


def undecided_error(graph: Graph) -> PlanError:
    node = next(iter(find_frontier(graph)), None)
    return UndecidedError(
        "not all shapes follow from those of the inputs, so their bounds are not known",
        at=f"graph {graph.name!r}" if node is None else describe(node, graph.call(node)),
        fix="leave bounds out: such graphs are planned while they run",
    )


def _check_pair(symbol: object, bound: object, least: int = 1) -> tuple[int, int]:
    pair = tuple(bound) if isinstance(bound, tuple | list) else (least, bound)
    lengths = [
        int(one) for one in pair if isinstance(one, int | np.integer) and not isinstance(one, bool)
    ]
    if not isinstance(symbol, str) or len(pair) != 2 or len(lengths) != 2:
        raise _bound_error(symbol, bound)
    low, high = lengths
    if not 0 <= low <= high <= MOST:
        raise _bound_error(symbol, bound)
    return low, high


def _bound_error(symbol: object, bound: object) -> PlanError:
    return PlanError(
        f"the bound of {symbol!r} is {bound!r}",
        fix=Fix(
            f"give the largest length, {MOST:,} at most, or the smallest and the largest: ",
            Argument("bounds", {"n": (8, 64)}),
        ),
    )


def _list_symbols(graph: Graph) -> Iterator[tuple[str, str]]:
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        if shape is None:
            raise PlanError(
                "the rank of an input is not known, so that bounds do not tell its shapes",
                at=f"input {name!r}",
                fix=Fix("fix its shape: ", suggest_shapes(graph, name)),
            )
        yield from ((dim, name) for dim in shape if isinstance(dim, str))


def _find_sharing(graph: Graph, node: Node) -> tuple[list[Start], list[bool]]:
    overwritten = [
        graph.tensors[node.inputs[source]] == graph.tensors[node.outputs[output]]
        for output, source in node.operator.inplace
        if source < len(node.inputs) and node.inputs[source] and node.outputs[output]
    ]
    return [run[:4] for run in find_runs(graph, node)], overwritten


def _is_simple(shared: tuple[list[Start], list[bool]]) -> bool:
    return not any(start or begin for _, start, _, begin in shared[0])


def check_results(graph: Graph, bounds: Bounds) -> None:
    """Raise PlanError if a Python function in `graph` has results of a length that is never known.

    Such a length is open even if all lengths of inputs are known, and is not in `bounds`.
    """
    unbounded = find_computed_symbols(graph).keys() - bounds.keys()
    if not any(
        node.operator.function is not None and not unbounded.isdisjoint(spec.shape or ())
        for node in graph.nodes
        for spec in graph.output_specs(node)
    ):
        return
    lengths, tensors = pick_largest(bounds), dict(graph.tensors)
    for name in graph.inputs:
        tensors[name] = _substitute_lengths(tensors[name], lengths, EXAMPLE)
    for node in graph.nodes:
        names = [name for name in node.outputs if name]
        try:
            specs = infer_node(node, make_call(node, tensors, graph.constants))
        except PlaitError:  # these lengths are incompatible
            pass
        else:
            tensors.update(
                (name, _substitute_lengths(spec, lengths))
                for name, spec in zip(node.outputs, specs, strict=True)
                if name
            )
            is_open = not all(tensors[name].is_static for name in names)
            if node.operator.function is not None and is_open:
                raise untold_shape_error(graph, node, bounds)
        for name in names:
            tensors[name] = _substitute_lengths(tensors[name], lengths, EXAMPLE)


def _substitute_lengths(
    spec: TensorSpec, lengths: Mapping[str, int], other: int | None = None
) -> TensorSpec:
    if spec.shape is None or spec.is_static:
        return spec
    dims = (
        lengths.get(dim, dim if other is None else other) if isinstance(dim, str) else dim
        for dim in spec.shape
    )
    return TensorSpec(spec.dtype, tuple(dims))
