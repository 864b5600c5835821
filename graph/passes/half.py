"""Compute parts of a graph in float16: convert weights ahead, and cast at the borders.

Products start it: they gain from half the bytes and from faster units. Nodes after them stay in
float16 while they only move numbers, or add and multiply a few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ..core.infer import infer_node
from ..core.ir import ASSIGN, Graph, Node
from ..core.nested import has_effects
from ..core.operator import find_operator
from ..core.traits import IN_SUMS, PRODUCT
from ..values.errors import OperatorError, ShapeError
from ..values.names import Names
from ..values.tensor import Array, TensorSpec

UPDATED = "small steps are lost beside weights, and the squares of small gradients are 0"
"""The reason why the next values of variables are float32."""

_LEAST, _MOST = (float(number) for number in (np.finfo(np.float16).tiny, np.finfo(np.float16).max))


def get_half_inputs(node: Node) -> range:
    if node.attributes.get("training_mode"):
        return range(0)
    return node.operator.float16.inputs


def is_half_product(node: Node) -> bool:
    return PRODUCT in node.operator.traits and bool(get_half_inputs(node))


def find_updates(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes of `graph` from products, or sums, to assignments.

    Weights stay float32, as in Micikevicius et al., *Mixed Precision Training* (2018).
    """
    wanted, found = set[str](), set[str]()
    for node in reversed(graph.nodes):
        leads = node.op == ASSIGN or not wanted.isdisjoint(node.outputs)
        if leads and not is_half_product(node) and node.operator.float16 != IN_SUMS:
            found.add(node.name)
            wanted.update(filter(None, node.inputs))
    return frozenset(found)


def fits(constant: Array) -> bool:
    """Return whether the largest number in `constant` neither overflows nor underflows in float16.

    Small numbers among larger ones may vanish.
    """
    sizes = np.abs(constant[np.isfinite(constant)])
    most = float(sizes.max(initial=0.0))
    return most <= _MOST and (most >= _LEAST or most == 0)


Takes: TypeAlias = Callable[[Graph, Node, str], bool]  # can a node run in a place?
SINGLE, HALF = np.dtype(np.float32), np.dtype(np.float16)


@dataclass(frozen=True, slots=True)
class Halved:
    """A graph of which parts compute in float16."""

    graph: Graph
    places: Mapping[str, str]
    """For each node that computes in float16 or casts, its place."""


def compute_in_half(
    graph: Graph, places: Mapping[str, str], half: Collection[str], takes: Takes
) -> Halved:
    """Compute products of `graph`, and the nodes after them, in float16, between Casts.

    `places` maps names of nodes to places; nodes that it lacks stay. The places in `half` allow
    float16. A Cast at the border to another place runs there if `takes(graph, node, place)`, which
    halves the transferred bytes.
    """
    writer = _Writer(graph, places, half, takes)
    for node in graph.nodes:
        writer.visit(node)
    return Halved(writer.result(), writer.placed) if writer.placed else Halved(graph, {})


class _Writer:
    def __init__(
        self, graph: Graph, places: Mapping[str, str], half: Collection[str], takes: Takes
    ) -> None:
        self.placed: dict[str, str] = {}
        self._graph, self._places, self._allowed, self._takes = graph, places, half, takes
        self._updates = find_updates(graph)
        self._nodes: list[Node] = []
        self._tensors = dict(graph.tensors)
        self._constants: dict[str, Array] = dict(graph.constants)
        self._names = Names(graph.tensors)
        self._node_names = Names(node.name for node in graph.nodes)
        self._half_of: dict[str, str] = {}
        self._made: set[str] = set()
        self._written: set[str] = set()
        self._single_of: dict[tuple[str, str], str] = {}

    @cached_property
    def _view(self) -> Graph:
        return replace(self._graph, tensors=self._tensors, constants=self._constants)

    def visit(self, node: Node) -> None:
        place = self._places.get(node.name, "")
        may = place in self._allowed and node.name not in self._updates
        names = self._select_inputs(node) if may else []
        if names and self._write_half(node, place, names):
            return
        inputs = [self._get_single(name, place) if name else name for name in node.inputs]
        self._nodes.append(replace(node, inputs=tuple(inputs)))

    def result(self) -> Graph:
        return self._view.with_nodes(self._nodes)

    def _select_inputs(self, node: Node) -> list[str]:
        """Return the inputs to convert with `node`; empty if it must stay float32."""
        chosen = get_half_inputs(node)
        names = [n for i, n in enumerate(node.inputs) if i in chosen and self._is_single(n)]
        starts = is_half_product(node) or not self._written.isdisjoint(names)
        constants = (self._constants[name] for name in names if name in self._constants)
        return names if starts and not has_effects(node) and all(map(fits, constants)) else []

    def _write_half(self, node: Node, place: str, names: Sequence[str]) -> bool:
        chosen, outputs = get_half_inputs(node), [n for n in node.outputs if self._is_single(n)]
        to = {name: self._reserve_half(name) for name in (*names, *outputs)}
        made = replace(
            node,
            inputs=tuple(
                to.get(name, name) if i in chosen else name for i, name in enumerate(node.inputs)
            ),
            outputs=tuple(to.get(name, name) for name in node.outputs),
        )
        # Checked before any conversion: a refused node must not leave a Cast.
        if not self._stays_half(made) or not self._takes(self._view, made, place):
            return False
        for name in names:
            self._make_half(name, place)
        inputs = [self._get_single(name, place) if name else name for name in made.inputs]
        self._nodes.append(replace(made, inputs=tuple(inputs)))
        self.placed[node.name] = place
        self._made.update(outputs)
        self._written.update(outputs)
        for name in outputs:
            if name in self._graph.fetched:
                self._cast(to[name], name, place)
        return True

    def _is_single(self, name: str) -> bool:
        return name in self._graph.tensors and self._graph.tensors[name].dtype == SINGLE

    def _reserve_half(self, name: str) -> str:
        """Return the name of the float16 copy of tensor `name`; constants are converted."""
        if name not in self._half_of:
            held = self._half_of[name] = self._names.take(f"{name}.half")
            self._tensors[held] = TensorSpec(HALF, self._graph.tensors[name].shape)
            if name in self._constants:
                value = self._constants[name].astype(HALF)
                value.flags.writeable = False
                self._constants[held] = value
                self._made.add(name)
        return self._half_of[name]

    def _stays_half(self, node: Node) -> bool:
        try:
            specs = infer_node(node, self._view.call(node))
        except (OperatorError, ShapeError):
            return False
        named = zip(node.outputs, specs, strict=False)
        return all(self._tensors[name].dtype == spec.dtype for name, spec in named if name)

    def _make_half(self, name: str, place: str) -> None:
        """Convert tensor `name` to float16 once, at its writer's place or else at `place`."""
        if name not in self._made:
            self._made.add(name)
            writer = self._graph.producers.get(name)
            at = self._places.get(writer.name, place) if writer is not None else place
            self._cast(name, self._half_of[name], at, place)

    def _get_single(self, name: str, place: str) -> str:
        if name not in self._written or name in self._graph.fetched:
            return name
        known = self._single_of.get((name, place))
        if known is None:
            known = self._single_of[name, place] = self._names.take(f"{name}.single")
            self._tensors[known] = self._graph.tensors[name]
            writer = self._graph.producers[name]
            self._cast(self._half_of[name], known, place, self._places[writer.name])
        return known

    def _cast(self, source: str, target: str, *places: str) -> None:
        stem = self._node_names.take(f"{target}[cast]")
        to = self._tensors[target].dtype.name
        attributes = find_operator("Cast").complete({"to": to}, stem)
        node = Node(stem, "Cast", (source,), (target,), attributes)
        able = [place for place in places if place and self._takes(self._view, node, place)]
        self._nodes.append(node)
        self.placed[stem] = (able or places)[0]
