"""Bounds of symbolic dimensions: from which shapes to which a plan is made.

All of it is planned for the largest shapes; `bounded_shapes` says how smaller ones run in
that. Tensors that share bytes must do so at all shapes: what a Concat writes in place starts where
its first input ends, and so moves with that one's length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ...devices.device import Device
from ...graph.aliasing import runs_of
from ...graph.dims import is_computed
from ...graph.errors import Argument, Fix, ShapeError
from ...graph.infer import describe
from ...graph.ir import Graph, Node
from ...graph.own_lengths import original_lengths
from ..errors import FeedError, PlanError
from ..plans.plan import Plan
from ..plans.request import Pins
from ..plans.shapes import NO_BOUNDS, Bounds, Shapes
from .constraints import NONE, DynamicShapeConstraints
from .fixed import fixed_nodes, growing_constraints, same_nodes, without_nodes
from .specialise import specialise
from .sync_points import GraphSplit, cut_alike, frontier, has_static_shapes
from .whole import switches_of, with_whole_nodes

Start: TypeAlias = tuple[str, int, str, int]
"""A run of bytes but for its length."""

SAMPLES = 12
"""How many ways from the smallest to the largest lengths are tried."""

MOST = 1 << 40
"""Nothing is longer; sums of bytes are 64-bit numbers."""

EXAMPLE = 64
"""A length in examples of how to give some."""

GRAIN = 32
"""Models may take only lengths that are multiples of a power of two, up to this one."""


def checked_bounds(graph: Graph, bounds: object) -> Bounds:
    """Return the bounds of all symbols of a graph's inputs.

    Parameters
    ----------
    graph : Graph
    bounds : Mapping of str to int, or to (int, int)
        The largest length of each, or the smallest and the largest.

    Raises
    ------
    PlanError
        If they are malformed, or do not bound the shape of each input.
    """
    if not isinstance(bounds, Mapping):
        raise PlanError(
            f"bounds is {bounds!r}",
            fix=Fix("map symbols to lengths: ", Argument("bounds", {"n": 64})),
        )
    found = {symbol: _pair(symbol, bound) for symbol, bound in bounds.items()}
    symbols = dict(_symbols(graph))
    for symbol in found:
        if symbol not in symbols:
            raise PlanError(
                f"bounds names {symbol!r}, which is the length of nothing that is fed or computed",
                at=f"graph {graph.name!r}",
                fix=f"its symbols are: {', '.join((*symbols, *computed_symbols(graph))) or 'none'}",
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
                    example_shapes(graph, name),
                ),
            )
    # In the order of the graph, not of who wrote the bounds: plans and their digests follow from
    # it.
    return {symbol: found[symbol] for symbol in symbols}


def example_shapes(graph: Graph, *names: str) -> Argument:
    """Return how shapes of inputs are given: an argument with some length for each symbol."""
    shapes = {name: graph.tensors[name].shape or (1, 3) for name in names}
    return Argument(
        "shapes",
        {
            name: tuple(dim if isinstance(dim, int) else EXAMPLE for dim in shape)
            for name, shape in shapes.items()
        },
    )


def check_not_fixed(graph: Graph, part: Graph, bounds: object) -> None:
    """Raise PlanError if bounds name a length of a graph that shapes fix in a part of it."""
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


def all_bounds(graph: Graph, bounds: object, source: Graph | None = None) -> Bounds:
    """Return the bounds of fed lengths, and of lengths that follow from values.

    `source` is the user's graph: `graph` may lack lengths of it that were folded or not read.

    Raises
    ------
    PlanError
        If they are malformed, or bound only some of the lengths that are fed.
    """
    known = computed_symbols(graph)
    if isinstance(bounds, Mapping):
        gone = computed_symbols(source).keys() - known.keys() if source is not None else ()
        bounds = {symbol: bound for symbol, bound in bounds.items() if symbol not in gone}
        bounds = _of_every_call(graph, known, bounds)
    if not isinstance(bounds, Mapping) or known.keys().isdisjoint(bounds):
        return checked_bounds(graph, bounds)
    fed = {symbol: bound for symbol, bound in bounds.items() if symbol not in known}
    computed = {s: _pair(s, bound, least=0) for s, bound in bounds.items() if s in known}
    return {**(checked_bounds(graph, fed) if fed else NO_BOUNDS), **computed}


def _of_every_call(
    graph: Graph, known: Collection[str], bounds: Mapping[Any, Any]
) -> Mapping[Any, Any]:
    """Return bounds with those of declared lengths for each call whose own ones have none."""
    found = dict(bounds)
    for name, declared in original_lengths(graph).items():
        if name in known and declared in bounds:
            found.setdefault(name, bounds[declared])
            if declared not in known:  # each call has one of its own
                found.pop(declared, None)
    return found


def computed_symbols(graph: Graph) -> Mapping[str, str]:
    """Return the lengths of which only values will tell, by name, each with a tensor of it."""
    fed = {dim for name in graph.inputs for dim in graph.tensors[name].shape or ()}
    found: dict[str, str] = {}
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            for dim in graph.tensors[name].shape or ():
                # What is computed from other lengths has bounds by theirs.
                if isinstance(dim, str) and dim not in fed and not is_computed(dim):
                    found.setdefault(dim, name)
    return found


def fed_bounds(graph: Graph, bounds: Bounds) -> Bounds | None:
    """Return the bounds of all lengths of a graph's inputs; None if one has none."""
    found: dict[str, tuple[int, int]] = {}
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        symbols = {dim for dim in shape or () if isinstance(dim, str)}
        # One length that may be anything is enough: no largest shape, and no plan for all.
        if shape is None or not bounds.keys() >= symbols:
            return None
        found.update((symbol, bounds[symbol]) for symbol in symbols)
    return found


def largest(bounds: Bounds) -> Mapping[str, int]:
    """Return the largest lengths."""
    return {symbol: high for symbol, (_, high) in bounds.items()}


@dataclass(frozen=True, slots=True)
class Template:
    """A graph with symbols, and what its form for some lengths depends on.

    Attributes
    ----------
    graph : Graph
    devices : Mapping of str to Device
    pins : Mapping of str to str
    folds : bool
        True where nodes whose results are known ahead become constants.
    fed : collection of str, optional
        The inputs of the whole graph, where this is a part of it.
    """

    graph: Graph
    devices: Mapping[str, Device]
    pins: Pins
    folds: bool
    fed: Collection[str] | None = None

    def of(self, shapes: Shapes) -> Graph:
        """Return the graph for some shapes of its inputs."""
        graph = specialise(self.graph, shapes, folds=self.folds)
        fed = self.graph.inputs if self.fed is None else self.fed
        # Only users set switches; what another part of the graph computes is a value like any
        # other.
        switches = [name for name in switches_of(self.graph) if name in fed]
        return with_whole_nodes(graph, self.devices, self.pins, switches, folds=self.folds)

    def picked(self, lengths: Mapping[str, int]) -> Graph:
        """Return the graph for some lengths of its symbols."""
        specs = {name: self.graph.tensors[name].shape or () for name in self.graph.inputs}
        return self.of(
            {
                name: [lengths[dim] if isinstance(dim, str) else dim for dim in shape]
                for name, shape in specs.items()
            }
        )

    def cut(self, bounds: Bounds, computed: Bounds) -> GraphSplit:
        """Return the graph, cut where shapes do not follow any more from those of its inputs.

        `bounds` are of the symbols in these, `computed` also those of lengths that follow from
        values.
        """
        graph = self.picked(largest(bounds))
        return (
            GraphSplit(self.graph, None, ())
            if has_static_shapes(graph)
            else cut_alike(self.graph, graph, computed)
        )


def constraints_of(template: Template, bounds: Bounds, graph: Graph) -> DynamicShapeConstraints:
    """Return what to allow for in the memory of `graph`, which is of the largest shapes.

    Nodes that would share bytes in another way at other shapes are kept apart. Where no other
    shapes that were tried tell, those that would at any place but the first byte. Fixed nodes are
    the same at all of them: only the others are looked at.
    """
    part, own = _varying(template, bounds, graph)
    # Where shapes make other nodes of the graph, the plan is not used: they need not fit into it.
    tried = list(_others(part, bounds))
    others = [other for other in tried if alike(other, own)]
    ways = [[_shared(other, node) for node in other.nodes] for other in others]
    apart = set[str]()
    for place, node in enumerate(own.nodes):
        here = _shared(own, node)
        # Samples prove nothing, but runs that begin elsewhere at some lengths do so at most, and
        # what is missed is found when such lengths come: `BoundedShapes` looks again.
        if any(there[place] != here for there in ways) or not (ways or _is_simple(here)):
            apart.add(node.name)
    has_same_nodes = len(others) == len(tried)
    return DynamicShapeConstraints(frozenset(apart), others, has_same_nodes=has_same_nodes)


def constraints_in(plan: Plan) -> DynamicShapeConstraints:
    """Return what the memory of a plan must allow for, so that all shapes within bounds fit."""
    if plan.template is None:
        return NONE
    if not plan.bounds:
        return growing_constraints(plan.template)
    template = Template(plan.template, plan.prototypes, plan.pins, plan.folds)
    return constraints_of(template, plan.bounds, plan.graph)


def _varying(template: Template, bounds: Bounds, graph: Graph) -> tuple[Template, Graph]:
    """Return the part of a template that is not fixed, and that part of the largest shapes."""
    fixed = fixed_nodes(template.graph)
    whole = template.graph
    part = replace(template, graph=without_nodes(whole, fixed), fed=whole.inputs)
    own = part.picked(largest(bounds))
    left = [node for node in graph.nodes if node.name not in fixed]
    # The fixed nodes were folded away or fused with others here: then nothing can be left out.
    return (part, own) if same_nodes(own.nodes, left) else (template, graph)


def _others(template: Template, bounds: Bounds) -> Iterator[Graph]:
    tried = [largest(bounds)]
    for lengths in _samples(bounds):
        if lengths not in tried:
            tried.append(lengths)
            with suppress(ShapeError):
                yield template.picked(lengths)


def _samples(bounds: Bounds) -> Iterator[Mapping[str, int]]:
    """Yield lengths that differ in all symbols, and such with one symbol at its largest."""
    for step in range(SAMPLES):
        # Another stride for each symbol, so that two of them are seldom as far on the way as each
        # other.
        parts = [step * (2 * place + 1) % (SAMPLES + 1) for place in range(len(bounds))]
        yield _lengths(bounds, parts, 1)
        yield _lengths(bounds, parts, GRAIN)
    for step in range(0, SAMPLES, 2):
        for largest_one in range(len(bounds)):
            parts = [SAMPLES if one == largest_one else step for one in range(len(bounds))]
            yield _lengths(bounds, parts, GRAIN)


def _lengths(bounds: Bounds, parts: Sequence[int], grain: int) -> Mapping[str, int]:
    """Return lengths, of each symbol so many parts of the way from the smallest to the largest."""
    found: dict[str, int] = {}
    for (symbol, (low, high)), part in zip(bounds.items(), parts, strict=True):
        # The largest power of two that the largest length is a multiple of: models that take only
        # such lengths say so by it.
        unit = max(1, min(high & -high, grain))
        found[symbol] = max(low, (low + (high - low) * part // SAMPLES) // unit * unit)
    return found


def alike(graph: Graph, other: Graph) -> bool:
    """True when graphs have the same nodes; shapes, attributes and values may differ."""
    have_same_constants = graph.constants.keys() == other.constants.keys()
    return have_same_constants and same_nodes(graph.nodes, other.nodes)


def check_within(graph: Graph, bounds: Bounds, shapes: Shapes) -> None:
    """Raise FeedError if a shape of an input is out of bounds, where there are some for it."""
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
    """Return the error of a length that follows from values, and is out of its bounds."""
    low, high = bound
    wider = min(low, count), max(high, count)
    return ShapeError(
        f"{symbol!r} is {count} here, out of its bounds {low} to {high}",
        at=f"tensor {tensor!r}",
        fix=Fix("plan with wider bounds: ", Argument("bounds", {symbol: wider})),
    )


class UndecidedError(PlanError):
    """Shapes that values decide have no bounds."""


def undecided_error(graph: Graph) -> PlanError:
    """Return the error for bounds on shapes that values decide."""
    node = next(iter(frontier(graph)), None)
    return UndecidedError(
        "not all shapes follow from those of the inputs, so their bounds are not known",
        at=f"graph {graph.name!r}" if node is None else describe(node, graph.call(node)),
        fix="leave bounds out: such graphs are planned while they run",
    )


def _pair(symbol: object, bound: object, least: int = 1) -> tuple[int, int]:
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
            "give the largest length, or the smallest and the largest: ",
            Argument("bounds", {"n": (8, 64)}),
        ),
    )


def _symbols(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the symbols in the shapes of inputs, each with an input that has it."""
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        if shape is None:
            raise PlanError(
                "the rank of an input is not known, so that bounds do not tell its shapes",
                at=f"input {name!r}",
                fix=Fix("fix its shape: ", example_shapes(graph, name)),
            )
        yield from ((dim, name) for dim in shape if isinstance(dim, str))


def _shared(graph: Graph, node: Node) -> tuple[list[Start], list[bool]]:
    """Return how outputs could share bytes with inputs: where runs begin, what is overwritten."""
    overwritten = [
        graph.tensors[node.inputs[source]] == graph.tensors[node.outputs[output]]
        for output, source in node.operator.inplace
        if source < len(node.inputs) and node.inputs[source] and node.outputs[output]
    ]
    return [run[:4] for run in runs_of(graph, node)], overwritten


def _is_simple(shared: tuple[list[Start], list[bool]]) -> bool:
    return not any(start or begin for _, start, _, begin in shared[0])
