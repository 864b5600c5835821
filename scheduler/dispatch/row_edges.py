"""Edges on which rows go to batches one by one, as generator functions yield them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...graph.core.ir import Node
from ...graph.functions.generators import is_generator
from ...graph.operators.bounded_call import BOUNDED_CALL
from ...graph.operators.each import EACH
from ..plans.placement import Placement, Step, Transfer
from ..plans.plan import Plan
from ..plans.regions import PlacedTensor


@dataclass(frozen=True, slots=True, eq=False)
class RowEdge:
    """A generator function's node, and an `Each` node that is for its rows."""

    source: int
    target: int
    """Their steps."""
    generator: Node
    each: Node
    picks: tuple[int, ...]
    """Which of the generator's results are the values of the other."""
    placed: PlacedTensor
    """The first of these, where both steps find it."""


def find_row_edges(plan: Plan) -> Iterator[RowEdge]:
    """Yield the row edges of `plan`, which must have known shapes.

    All values must come from one generator, since rows of others are not known one by one. Nothing
    may have to be copied between the two steps.
    """
    assert plan.placement is not None, "shapes are known"
    eaches = [step for step in plan.steps if any(node.op == EACH for node in _list_nodes(step))]
    if not eaches:
        return
    makers = {
        name: (step, node)
        for step in plan.steps
        for node in _list_nodes(step)
        for name in node.outputs
        if name and _is_generator(node)
    }
    for target in eaches:
        (each,) = _list_nodes(target)  # an awaited node is a subgraph of its own
        if not all(name in makers for name in each.inputs):
            continue
        (source, generator), *others = (makers[name] for name in each.inputs)
        if any(node is not generator for _, node in others):
            continue
        if all(_is_shared(plan.placement, name, source, target) for name in each.inputs):
            first = each.inputs[0]
            picks = tuple(map(generator.outputs.index, each.inputs))
            placed = first, plan.placement.local[first, target.device]
            yield RowEdge(source.index, target.index, generator, each, picks, placed)


def _list_nodes(step: Step) -> tuple[Node, ...]:
    return () if isinstance(step.work, Transfer) else step.work.graph.nodes


def _is_generator(node: Node) -> bool:
    inner = node.attributes["body"].nodes[0] if node.op == BOUNDED_CALL else node
    return is_generator(inner.operator.function)


def _is_shared(placement: Placement, name: str, source: Step, target: Step) -> bool:
    home = placement.home[name]
    return home == placement.local.get((name, target.device)) and home == placement.local.get(
        (name, source.device), home
    )
