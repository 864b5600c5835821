"""Of what the bytes of a plan's tensors consist, where nodes find them in place.

A view has its base's bytes; what is concatenated in place has those of its inputs. Whether a byte
is in place is read from the locations, not from what the planner meant to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ....graph.aliasing import runs_of
from ....graph.ir import Graph, Node
from ...plans.placement import Placement
from ...plans.regions import Location, Replica


class Piece(NamedTuple):
    """Bytes `begin` to `end` of a replica, which are those of another from `start` on."""

    begin: int
    end: int
    origin: Replica
    start: int


class Contents:
    """The pieces of every replica, found when asked for.

    Parameters
    ----------
    graph : Graph
    placement : Placement
    locations : Mapping of Replica to Location
    makers : Mapping of Replica to (Node, str)
        The node that writes a replica, and its device; none for what is fed, copied, or written by
        an atomic program.
    """

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        locations: Mapping[Replica, Location],
        makers: Mapping[Replica, tuple[Node, str]],
    ) -> None:
        self._graph, self._placement = graph, placement
        self._locations, self._makers = locations, makers
        self._pieces: dict[Replica, list[Piece]] = {}

    def agree(self, a: Replica, b: Replica) -> bool:
        """True when two replicas want the same of each byte that both have."""
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

    def _of(self, replica: Replica) -> list[Piece]:
        if replica not in self._pieces:
            self._pieces[replica] = self._find(replica)
        return self._pieces[replica]

    def _find(self, replica: Replica) -> list[Piece]:
        if replica not in self._makers:
            spec = self._graph.tensors.get(replica[0])  # scratch has none
            return [Piece(0, 1 << 62 if spec is None else spec.nbytes, replica, 0)]
        found: list[Piece] = []
        node, device = self._makers[replica]
        for run in runs_of(self._graph, node):
            if run.target != replica[0] or run.source in self._graph.constants:
                continue
            base = run.source, self._placement.local[run.source, device]
            if self._lies(base, replica, run.begin - run.start):
                shift = run.begin - run.start
                for begin, end, origin, start in self._of(base):
                    low = max(begin + shift, run.begin)
                    high = min(end + shift, run.begin + run.nbytes)
                    if low < high:
                        found.append(Piece(low, high, origin, start + low - shift - begin))
        return _completed(found, replica, self._graph.tensors[replica[0]].nbytes)

    def _lies(self, base: Replica, replica: Replica, shift: int) -> bool:
        there, here = self._locations[base], self._locations[replica]
        if (there.memory, there.region) != (here.memory, here.region):
            return False
        return there.offset == here.offset + shift


def _completed(found: list[Piece], replica: Replica, nbytes: int) -> list[Piece]:
    """Return the pieces, and between them what the replica's own node writes."""
    pieces, place = list[Piece](), 0
    for piece in sorted(found):
        if place < piece.begin:
            pieces.append(Piece(place, piece.begin, replica, place))
        pieces.append(piece)
        place = piece.end
    if place < nbytes:
        pieces.append(Piece(place, nbytes, replica, place))
    return pieces
