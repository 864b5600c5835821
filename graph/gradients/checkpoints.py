"""Checkpoints: the tensors that are kept for the backward pass, by name or chosen here.

The automatic choice cuts the graph into segments at places that few bytes cross: best a single
tensor on all paths. It minimizes the largest sum of a segment and of the checkpoints up to it,
since later ones are freed when the segment is recomputed. So of a chain of n equal nodes the first
segment is the longest, and there are about √(2n) of them; Chen et al. 2016, with √n segments of one
length, keep 1.4 times as much.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from ..building.builder import GraphBuilder
from ..core.ir import Node
from ..values.errors import GraphError
from .recomputation import Recomputation, find_between, may_repeat

Checkpoints: TypeAlias = Sequence[str] | Literal["auto"] | None
"""The tensors to keep: names, ``"auto"``, or None for all of them."""

FINEST = 1 << 10
"""The least memory is found up to this fraction of all bytes."""


def plan_recomputation(
    builder: GraphBuilder, ys: Iterable[str], xs: Collection[str], checkpoints: Checkpoints
) -> Recomputation | None:
    if checkpoints is None:
        return None
    nodes = find_between(builder.nodes, xs, ys)
    if checkpoints == "auto":
        return Recomputation(builder, nodes, xs, choose_checkpoints(builder, ys, xs))
    if isinstance(checkpoints, str) or not isinstance(checkpoints, Iterable):
        raise GraphError(
            f"checkpoint is {checkpoints!r}",
            at=builder.name,
            fix="pass a list of the tensors to keep, or 'auto'",
        )
    kept = dict.fromkeys(map(builder.own_name, checkpoints))
    return Recomputation(builder, nodes, xs, kept)


def choose_checkpoints(
    builder: GraphBuilder, ys: Iterable[str], xs: Collection[str]
) -> frozenset[str]:
    return _Cutting(builder, find_between(builder.nodes, xs, ys), xs, ys).best()


class _Cutting:
    """Nodes in order and their cuts into segments: a cut is after the node at a place."""

    def __init__(
        self, builder: GraphBuilder, nodes: Sequence[Node], xs: Collection[str], ys: Iterable[str]
    ) -> None:
        kept = {*xs, *(t for node in nodes if not may_repeat(node) for t in node.outputs)}
        self._sizes = {
            tensor: 0 if tensor in kept else _measure_nbytes(builder, node, index)
            for node in nodes
            for index, tensor in enumerate(node.outputs)
            if tensor
        }
        self._held = [sum(self._sizes[t] for t in node.outputs if t) for node in nodes]
        self._crossing = _find_crossing(nodes, self._sizes, ys)
        self._costs = [sum(map(self._sizes.__getitem__, names)) for names in self._crossing]

    def best(self) -> frozenset[str]:
        """Return the tensors that cross the best places."""
        low, high = 0.0, float(sum(self._held))
        places: list[int] = []
        # By bisection: testing a limit is fast, and if it can be kept, so can any larger one.
        while high - low > high / FINEST:
            middle = (low + high) / 2
            found = self._cuts(middle)
            if found is None:
                low = middle
            else:
                high, places = middle, found
        return frozenset(tensor for place in places for tensor in self._crossing[place])

    def _cuts(self, limit: float) -> list[int] | None:
        """Return places with no more than `limit` bytes at once, or None.

        Among these it keeps the fewest bytes of checkpoints up to each place.
        """
        before, end = [0, *accumulate(self._held)], len(self._held) - 1
        kept, previous = {-1: 0}, dict[int, int]()
        choices = deque([-1])  # of places to cut before, those that none behind is better than
        for place, cost in enumerate(self._costs):
            while choices and kept[choices[0]] + before[place + 1] - before[choices[0] + 1] > limit:
                choices.popleft()
            if not choices:
                return None
            if cost and place < end:
                previous[place] = choices[0]
                kept[place] = kept[choices[0]] + cost
                # A later cut that keeps no more is never worse, since its segment is shorter. So
                # the kept bytes grow along the choices, and each place is discarded once.
                while choices and kept[choices[-1]] >= kept[place]:
                    choices.pop()
                choices.append(place)
        places = [choices[0]]
        while places[-1] >= 0:
            places.append(previous[places[-1]])
        return places[-2::-1]


def _find_crossing(
    nodes: Sequence[Node], sizes: Collection[str], ys: Iterable[str]
) -> list[frozenset[str]]:
    """Return, for each place in `nodes`, the tensors in `sizes` read later or among `ys`."""
    crossing: list[frozenset[str]] = []
    read = {tensor for tensor in ys if tensor in sizes}
    for node in reversed(nodes):
        crossing.append(frozenset(read))
        read.difference_update(node.outputs)
        read.update(tensor for tensor in node.inputs if tensor in sizes)
    return crossing[::-1]


def _measure_nbytes(builder: GraphBuilder, node: Node, index: int) -> int:
    """Return the bytes of output `index` of `node` in `builder`: unknown lengths are 1, views 0."""
    if any(output == index for output, _ in node.operator.views):
        return 0
    spec = builder.spec(node.outputs[index])
    lengths = [dim for dim in spec.shape or () if isinstance(dim, int)]
    return spec.dtype.itemsize * math.prod(lengths)
