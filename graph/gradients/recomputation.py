"""Recomputation: tensors are computed again in the backward pass instead of kept for it.

Some tensors are kept, the checkpoints. Tensors between them are recomputed from the nearest ones
when the first gradient needs them, and freed after the last one.
Source: Chen, Xu, Zhang, Guestrin, *Training Deep Nets with Sublinear Memory Cost* (2016).

The copies start from an After that waits for a gradient of the backward pass: so no device begins
with them early, and no pass merges them with their originals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ..building.builder import GraphBuilder
from ..core.ir import Node, find_needed
from ..core.nested import draws, list_graphs, walk_nodes
from ..operators.state import AFTER
from ..values.tensor import TensorSpec
from .formula import Formula, Term

AGAIN = "again/"
"""Prefix of the names of nodes that recompute."""


class Recomputation:
    """The copies of nodes in one sweep.

    `nodes` are those between xs and ys, in order; `xs` and `checkpoints` are kept. So are tensors
    after the last checkpoint, since their gradients are the first ones.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        nodes: Sequence[Node],
        xs: Collection[str],
        checkpoints: Collection[str],
    ) -> None:
        self._builder, self._xs = builder, xs
        named = [place for place, node in enumerate(nodes) if _writes(node, checkpoints)]
        before = nodes[: named[-1]] if named else ()
        kept = {*xs, *checkpoints}
        self._nodes = [node for node in before if may_repeat(node) and not _writes(node, kept)]
        self._place = {t: i for i, node in enumerate(self._nodes) for t in node.outputs if t}
        self._made: dict[str, str] = {}
        self._copies: dict[str, str] = {}
        self._started: dict[tuple[str, str], str] = {}

    def term(self, formula: Formula, tensor: str, gradient: str) -> Term:
        """Return `tensor` as a term of `formula`; its first use recomputes it, after `gradient`."""
        if tensor in self._place:
            return _Again(formula, tensor, lambda: self.tensor(tensor, gradient))
        return formula.term(tensor)

    def tensor(self, tensor: str, gradient: str) -> str:
        if tensor in self._place and tensor not in self._made:
            fresh: set[str] = set()  # what waits for the gradient already
            for place in self._needed(self._place[tensor]):
                node = self._nodes[place]
                self._repeat(node, None if fresh.intersection(node.inputs) else gradient)
                fresh.update(filter(None, node.outputs))
        return self._made.get(tensor, tensor)

    def node(self, node: Node, gradient: str) -> str:
        for tensor in node.outputs:
            self.tensor(tensor, gradient)
        return self._copies.get(node.name, node.name)

    def _needed(self, place: int) -> list[int]:
        """Return the node at `place` and its predecessors that are not recomputed yet, in order."""
        found, waiting = {place}, [place]
        while waiting:
            for tensor in self._nodes[waiting.pop()].inputs:
                source = self._place.get(tensor)
                if source is not None and source not in found and tensor not in self._made:
                    found.add(source)
                    waiting.append(source)
        return sorted(found)

    def _repeat(self, node: Node, gradient: str | None) -> None:
        """Copy `node`; the copy waits for `gradient`, if given."""
        inputs = [self._made.get(tensor, tensor) for tensor in node.inputs]
        if gradient is not None:
            self._delay(inputs, gradient)
        outputs = [
            tensor and _find_free_name(AGAIN + tensor, self._is_tensor) for tensor in node.outputs
        ]
        self._copies[node.name] = name = _find_free_name(AGAIN + node.name, self._builder.has_node)
        given = (tensor or None for tensor in inputs)
        self._builder.op(node.op, *given, name=name, outputs=outputs, **node.attributes)
        self._made.update({old: new for old, new in zip(node.outputs, outputs, strict=True) if old})

    def _delay(self, inputs: list[str], gradient: str) -> None:
        """Let the first of `inputs` that is not a constant, or is an x, wait for `gradient`."""
        index = next(i for i, tensor in enumerate(inputs) if tensor and self._may_wait(tensor))
        key = inputs[index], gradient
        if key not in self._started:
            name = _find_free_name(f"{AGAIN}{inputs[index]}/after", self._builder.has_node)
            self._started[key] = str(self._builder.after(*key, name=name))
        inputs[index] = self._started[key]

    def _may_wait(self, tensor: str) -> bool:
        return tensor in self._xs or self._builder.value(tensor) is None

    def _is_tensor(self, name: str) -> bool:
        return name in self._builder or name in self._builder.outputs


class _Again(Term):
    """A tensor that is recomputed as soon as a formula needs more than its spec."""

    __slots__ = ("_make",)

    def __init__(self, formula: Formula, original: str, make: Callable[[], str]) -> None:
        super().__init__(formula, original)
        self._make = make

    @property
    def name(self) -> str:
        return self._make()

    @property
    def spec(self) -> TensorSpec:
        return self.formula.builder.spec(self.original)


def find_between(nodes: Iterable[Node], xs: Iterable[str], ys: Iterable[str]) -> list[Node]:
    """Return the `nodes` that depend on `xs`, and on which `ys` depend, in order."""
    reached = set(xs)
    behind: list[Node] = []
    for node in nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(filter(None, node.outputs))
            behind.append(node)
    return list(find_needed(ys, behind))[::-1]


def is_again(node: Node) -> bool:
    return node.name.startswith(AGAIN) and node.op != AFTER


def may_repeat(node: Node) -> bool:
    """Return whether `node` is deterministic: without functions, random numbers, effects."""
    if draws(node):
        return False
    nested = (inner for graph in list_graphs(node) for _, _, inner in walk_nodes(graph))
    operators = [node.operator, *(inner.operator for inner in nested)]
    return not any(one.effects or one.function is not None for one in operators)


def _writes(node: Node, tensors: Collection[str]) -> bool:
    return any(tensor in tensors for tensor in node.outputs if tensor)


def _find_free_name(stem: str, is_taken: Callable[[str], bool]) -> str:
    name, number = stem, 1
    while is_taken(name):
        number += 1
        name = f"{stem}.{number}"
    return name
