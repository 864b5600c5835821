"""The layout of a drawing's nodes: in layers, so that every edge leads downward.

Layers by longest path, orders by barycentres (Sugiyama, Tagawa and Toda, "Methods for visual
understanding of hierarchical system structures", IEEE SMC-11, 1981), positions by isotonic
regression towards the neighbours' mean (pool adjacent violators: Barlow et al., 1972). An edge over
several layers gets way points, one chain for all edges of a vertex, as long as there are not many.

All of it is near linear and depends on nothing but the graph: the same plan gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

Edge = tuple[int, int]

ORDER_SWEEPS = 6
POSITION_SWEEPS = 8
CHAIN_LIMIT = 24
"""Most layers that an edge is led around vertices; longer edges are straight."""
CHAINED_SHARE = 3
"""Way points per vertex, at most: keeps dense graphs linear."""
CHAIN_WIDTH = 0.35
"""Width of a passing edge, relative to a vertex."""


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """Positions in units: 1 is the distance of two neighbours in a layer."""

    layers: tuple[int, ...]
    """Layer of each vertex, from 0 at the top."""
    xs: tuple[float, ...]
    """Middle of each vertex; the leftmost is at 0."""
    chains: tuple[tuple[float, ...], ...]
    """For each vertex the way points of its edges, in the layers that follow it."""


def place_vertices(count: int, edges: Sequence[Edge]) -> DrawingLayout:
    """Place `count` vertices of a graph; `edges` lead from lower to higher numbers."""
    return _Drawing(count, edges).lay_out()


class _Drawing:
    def __init__(self, count: int, edges: Sequence[Edge]) -> None:
        self._count = count
        self._above: list[list[int]] = [[] for _ in range(count)]
        self._below: list[list[int]] = [[] for _ in range(count)]
        for source, target in dict.fromkeys(edges):
            assert source < target, "vertices are numbered in a topological order"
            self._above[target].append(source)
            self._below[source].append(target)
        self._layers = self._choose_layers()
        self._chains = self._lead_edges()
        self._rows: list[list[int]] = [[] for _ in range(max(self._layers, default=-1) + 1)]
        for vertex, layer in enumerate(self._layers):
            self._rows[layer].append(vertex)
        self._widths = [1.0] * count + [CHAIN_WIDTH] * (len(self._layers) - count)

    def lay_out(self) -> DrawingLayout:
        places = self._order()
        is_line = all(len(row) == 1 for row in self._rows)
        xs = places if is_line else self._position(places)
        left = min((xs[vertex] for vertex in range(self._count)), default=0.0)
        return DrawingLayout(
            tuple(self._layers[: self._count]),
            tuple(xs[vertex] - left for vertex in range(self._count)),
            tuple(tuple(xs[point] - left for point in chain) for chain in self._chains),
        )

    def _choose_layers(self) -> list[int]:
        layers = [0] * self._count
        for vertex, sources in enumerate(self._above):
            layers[vertex] = 1 + max((layers[source] for source in sources), default=-1)
        for vertex, targets in enumerate(self._below):
            if targets and not self._above[vertex]:  # inputs stand just above their first reader
                layers[vertex] = min(layers[target] for target in targets) - 1
        return layers

    def _lead_edges(self) -> list[list[int]]:
        """Put way points between the ends of edges that skip layers; return those per vertex."""
        chains: list[list[int]] = [[] for _ in range(self._count)]
        budget = CHAINED_SHARE * self._count
        spans = {
            vertex: max(self._layers[target] for target in targets) - self._layers[vertex] - 1
            for vertex, targets in enumerate(self._below)
            if targets
        }
        for vertex, span in sorted(spans.items(), key=lambda entry: (entry[1], entry[0])):
            if not 0 < span <= CHAIN_LIMIT or (budget := budget - span) < 0:
                continue
            self._chain(vertex, span, chains[vertex])
        return chains

    def _chain(self, vertex: int, span: int, chain: list[int]) -> None:
        by_layer: dict[int, list[int]] = {}
        for target in self._below[vertex]:
            by_layer.setdefault(self._layers[target], []).append(target)
        self._below[vertex] = by_layer.pop(self._layers[vertex] + 1, [])
        previous = vertex
        for offset in range(1, span + 1):
            point = len(self._layers)
            layer = self._layers[vertex] + offset
            self._layers.append(layer)
            self._above.append([previous])
            self._below.append(by_layer.get(layer + 1, []))
            self._below[previous].append(point)
            for target in by_layer.get(layer + 1, []):
                self._above[target] = [
                    point if one == vertex else one for one in self._above[target]
                ]
            chain.append(point)
            previous = point

    def _order(self) -> list[float]:
        """Order each row so that neighbours stand near each other; return places in the rows."""
        places = [0.0] * len(self._layers)
        for row in self._rows:
            _center_row(row, places)
        for sweep in range(ORDER_SWEEPS):
            for row, beside in self._sweep(down=sweep % 2 == 0):
                wanted = {
                    vertex: fmean([places[other] for other in beside[vertex]])
                    if beside[vertex]
                    else places[vertex]
                    for vertex in row
                }
                row.sort(key=wanted.__getitem__)
                _center_row(row, places)
        return places

    def _position(self, places: list[float]) -> list[float]:
        xs = list(places)
        for sweep in range(POSITION_SWEEPS):
            for row, beside in self._sweep(down=sweep % 2 == 0):
                wanted = [
                    fmean([xs[other] for other in beside[vertex]]) if beside[vertex] else xs[vertex]
                    for vertex in row
                ]
                widths = [self._widths[vertex] for vertex in row]
                for vertex, x in zip(row, spread_out(wanted, widths), strict=True):
                    xs[vertex] = x
        return xs

    def _sweep(self, *, down: bool) -> Iterator[tuple[list[int], list[list[int]]]]:
        beside = self._above if down else self._below
        for row in self._rows if down else reversed(self._rows):
            yield row, beside


def spread_out(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the middles of items that do not overlap, nearest to `wanted` by least squares.

    The items have these `widths`, and stay in order.
    """
    starts: list[float] = []
    reach = 0.0
    for width in widths:
        starts.append(reach + width / 2)
        reach += width
    blocks: list[tuple[float, int]] = []  # mean and size of groups that move together
    for want, start in zip(wanted, starts, strict=True):
        mean, size = want - start, 1
        while blocks and blocks[-1][0] >= mean:
            other, more = blocks.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        blocks.append((mean, size))
    shifts = (mean for mean, size in blocks for _ in range(size))
    return [start + shift for start, shift in zip(starts, shifts, strict=True)]


def _center_row(row: Sequence[int], places: list[float]) -> None:
    for place, vertex in enumerate(row):
        places[vertex] = place - (len(row) - 1) / 2
