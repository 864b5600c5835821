"""Ranges of a tensor's elements: of all of them, or of all but rare ones.

`observe` runs items through a graph to find those of inner tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from ...devices.device import Device
from ...graph.core.ir import Graph
from ...graph.values.tensor import Array
from ..bridges.blocking_session import BlockingSession
from ..planner.api import plan

Method: TypeAlias = Literal["minmax", "percentile", "mse"]

BINS = 4096
LEVELS = 256
KEPT = 0.9999
"""The share of elements that ``"percentile"`` keeps; half of the others are cut off at each end."""

_SHARES = np.geomspace(0.02, 1, 48)[::-1]
"""The fractions of the whole range that are tried, at each end."""

_ROUNDS = 3


class Range(NamedTuple):
    """The smallest and the largest number that are represented."""

    low: float
    high: float


class Observer(Protocol):
    def see(self, array: Array) -> None: ...

    def range(self) -> Range: ...


class MinMax:
    """The range of all elements."""

    def __init__(self) -> None:
        self._low, self._high = 0.0, 0.0

    def see(self, array: Array) -> None:
        if array.size:
            low, high = float(array.min()), float(array.max())
            self._low = float(np.minimum(self._low, low))  # a NaN stays one
            self._high = float(np.maximum(self._high, high))

    def range(self) -> Range:
        return Range(self._low, self._high)


class Histogram:
    """Counts elements in bins of one width, which doubles when elements lie beyond them.

    `choose` returns the range, given the counts and the edges of the bins.
    """

    def __init__(self, choose: Callable[[Array, Array], Range]) -> None:
        self._choose = choose
        self._extremes = MinMax()
        self._counts: Array = np.zeros(BINS, np.int64)
        self._limit = 0.0

    def see(self, array: Array) -> None:
        self._extremes.see(array)
        largest = max(abs(edge) for edge in self._extremes.range())
        if not array.size or not np.isfinite(largest) or largest == 0:
            return
        if self._limit == 0:
            self._limit = largest
        while self._limit < largest:
            self._double()
        self._counts += np.histogram(array, BINS, (-self._limit, self._limit))[0]

    def range(self) -> Range:
        whole = self._extremes.range()
        if not np.isfinite(whole).all() or not self._counts.any():
            return whole
        edges = np.linspace(-self._limit, self._limit, BINS + 1)
        low, high = self._choose(self._counts, edges)
        return Range(max(min(low, 0.0), whole.low), min(max(high, 0.0), whole.high))

    def _double(self) -> None:
        pairs = self._counts.reshape(-1, 2).sum(1)
        self._counts = np.zeros(BINS, np.int64)
        self._counts[BINS // 4 : BINS // 4 + BINS // 2] = pairs
        self._limit *= 2


def keep_most(counts: Array, edges: Array) -> Range:
    """Return the range of `counts` between `edges` without the few elements at both ends."""
    shares = np.cumsum(counts) / counts.sum()
    cut = (1 - KEPT) / 2
    first, last = np.searchsorted(shares, [cut, 1 - cut])
    return Range(float(edges[first]), float(edges[last + 1]))


def minimize_squares(counts: Array, edges: Array) -> Range:
    """Return the range for `counts` between `edges` with the least squared rounding error.

    The two ends are chosen in turn, among fractions of the whole range.
    """
    seen = np.flatnonzero(counts)
    low, high = min(edges[seen[0]], 0.0), max(edges[seen[-1] + 1], 0.0)
    centres = (edges[:-1] + edges[1:]) / 2
    best = Range(float(low), float(high))
    for _ in range(_ROUNDS):
        before = best
        for tried in (
            [Range(float(low * share), best.high) for share in _SHARES],
            [Range(best.low, float(high * share)) for share in _SHARES],
        ):
            best = min(tried, key=lambda one: _sum_squared_errors(counts, centres, one))
        if best == before:
            break
    return best


METHODS: Mapping[Method, Callable[[], Observer]] = {
    "minmax": MinMax,
    "percentile": lambda: Histogram(keep_most),
    "mse": lambda: Histogram(minimize_squares),
}


def _sum_squared_errors(counts: Array, centres: Array, tried: Range) -> float:
    step = (tried.high - tried.low) / (LEVELS - 1)
    cut = np.clip(centres, *tried) - centres
    return float((counts * np.where(cut == 0, step**2 / 12, cut**2)).sum())


Devices: TypeAlias = str | Device | Iterable[str | Device]
Items: TypeAlias = Sequence[Mapping[str, Any]]


def iterate_results(graph: Graph, items: Items, devices: Devices) -> Iterator[Mapping[str, Array]]:
    with BlockingSession(plan(graph, devices)) as session:
        for item in items:
            yield session.run(item)


def observe(
    graph: Graph, tensors: Sequence[str], items: Items, devices: Devices, method: Method
) -> dict[str, Range]:
    observers = {name: METHODS[method]() for name in tensors}
    fed = [name for name in tensors if name in graph.inputs]
    computed = [name for name in tensors if name not in fed and name not in graph.outputs]
    tapped = replace(graph, outputs=(*graph.outputs, *computed))
    for item, outputs in zip(items, iterate_results(tapped, items, devices), strict=True):
        for name, observer in observers.items():
            observer.see(np.asarray(item[name]) if name in fed else outputs[name])
    return {name: observer.range() for name, observer in observers.items()}
