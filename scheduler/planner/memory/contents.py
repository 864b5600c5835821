"""The origin of the bytes of a plan's tensors that nodes find in place.

A view has its base's bytes, a concatenation in place those of its inputs. Locations decide whether
a byte is in place, not the planner's intention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ....graph.core.aliasing import find_runs
from ....graph.core.ir import Graph, Node
from ...plans.placement import Placement
from ...plans.regions import Location, PlacedTensor


class TensorPiece(NamedTuple):
    """Bytes `begin` to `end` of a placed tensor, which are those of `origin` from `start` on."""

    begin: int
    end: int
    origin: PlacedTensor
    start: int


@dataclass(slots=True, eq=False)
class Contents:
    """The pieces of every placed tensor, computed on demand.

    `makers` has the node that writes a tensor and its device, except for fed and copied tensors and
    results of atomic programs.
    """

    _graph: Graph
    _placement: Placement
    _locations: Mapping[PlacedTensor, Location]
    _makers: Mapping[PlacedTensor, tuple[Node, str]]
    _pieces: dict[PlacedTensor, list[TensorPiece]] = field(default_factory=dict)

    def agree(self, a: PlacedTensor, b: PlacedTensor) -> bool:
        """Return whether `a` and `b` want equal values of every byte that they share."""
        shift = self._locations[b].offset - self._locations[a].offset
        for begin, end, origin, start in self._of(a):
            for other_begin, other_end, other_origin, other_start in self._of(b):
                low = max(begin, other_begin + shift)
                if low >= min(end, other_end + shift):
                    continue
                same = start + low - begin == other_start + low - shift - other_begin
                if origin != other_origin or not same:
                    return False
        return True

    def _of(self, placed: PlacedTensor) -> list[TensorPiece]:
        if placed not in self._pieces:
            self._pieces[placed] = self._find(placed)
        return self._pieces[placed]

    def _find(self, placed: PlacedTensor) -> list[TensorPiece]:
        if placed not in self._makers:
            spec = self._graph.tensors.get(placed[0])  # scratch has none
            return [TensorPiece(0, 1 << 62 if spec is None else spec.nbytes, placed, 0)]
        found: list[TensorPiece] = []
        node, device = self._makers[placed]
        for run in find_runs(self._graph, node):
            if run.target != placed[0] or run.source in self._graph.constants:
                continue
            base = run.source, self._placement.local[run.source, device]
            if self._lies(base, placed, run.begin - run.start):
                shift = run.begin - run.start
                for begin, end, origin, start in self._of(base):
                    low = max(begin + shift, run.begin)
                    high = min(end + shift, run.begin + run.nbytes)
                    if low < high:
                        found.append(TensorPiece(low, high, origin, start + low - shift - begin))
        return _fill_gaps(found, placed, self._graph.tensors[placed[0]].nbytes)

    def _lies(self, base: PlacedTensor, placed: PlacedTensor, shift: int) -> bool:
        there, here = self._locations[base], self._locations[placed]
        if (there.memory, there.region) != (here.memory, here.region):
            return False
        return there.offset == here.offset + shift


def _fill_gaps(found: list[TensorPiece], placed: PlacedTensor, nbytes: int) -> list[TensorPiece]:
    pieces, place = list[TensorPiece](), 0
    for piece in sorted(found):
        if place < piece.begin:
            pieces.append(TensorPiece(place, piece.begin, placed, place))
        pieces.append(piece)
        place = piece.end
    if place < nbytes:
        pieces.append(TensorPiece(place, nbytes, placed, place))
    return pieces
