"""Runs the exact search: several orders and rules take turns of increasing length.

Structured orders matter, and their times differ widely, so none runs alone. A turn continues the
last one. The orders are those of MiniMalloc.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, product
from typing import Any, NamedTuple

import numpy as np

from . import search
from .best import Budget
from .first_fit import measure_breadths
from .problem import Problem
from .search import IMPOSSIBLE, SOLVED, SearchBlocks, SearchState

MAX_CELLS = 12_000_000
"""Limit of blocks times sections, over all members: each cell takes up to 24 bytes."""

MAX_BLOCKS = 6000

MEMBERS = 24
"""Three orders, four rules, and both directions of time."""

SPARE_STEPS = 100
"""Steps beyond one per block in a member's first turn, for a few mistakes."""

STEP_WORK = 0.04
"""Cost of a step in the units of a budget, per section and root of the number of blocks. Measured
2026-11, in Python: 30 microseconds (80 blocks, 20 sections) to 4500 (1000 and 719)."""

FAILURES_KEPT = 1 << 16

Search = Callable[[SearchBlocks, SearchState, int, int, int], int]


class SearchEngine(NamedTuple):
    """An implementation of the search, and its steps between two looks at the clock."""

    name: str
    run: Search
    steps: int
    as_array: Callable[[Sequence[int]], Any]


PYTHON = SearchEngine("python", search.search, 20, list)


class SearchOutcome(NamedTuple):
    """The offsets of a packing if found, and whether it is proven that there is none."""

    offsets: list[int] | None
    is_impossible: bool


def is_searchable(problem: Problem) -> bool:
    return problem.intervals is not None and 0 < len(problem) <= MAX_BLOCKS


def find(problem: Problem, capacity: int, engine: SearchEngine, budget: Budget) -> SearchOutcome:
    undecided = SearchOutcome(None, False)
    frame = _Frame(problem)
    most = min(frame.most_members, MEMBERS)
    budget.spend(most * (len(problem) + frame.n_sections))
    if budget.is_over():
        return undecided
    step_work = STEP_WORK * frame.n_sections * math.sqrt(len(problem))
    members = list(islice(frame.members(engine), most))
    for turn in count() if members else ():
        # Turns double: a member that would succeed alone does so within a constant factor.
        steps = (len(problem) + SPARE_STEPS) << turn
        for blocks, state, rule in members:
            for done in range(0, steps, engine.steps):
                if budget.is_over():
                    return undecided
                chunk = min(engine.steps, steps - done)
                budget.spend(chunk * step_work)
                found = engine.run(blocks, state, capacity, rule, chunk)
                if found == SOLVED:
                    return SearchOutcome(frame.offsets(state), False)
                # One proof is enough: every member searches all packings.
                if found == IMPOSSIBLE:
                    return SearchOutcome(None, True)
    return undecided


class _Frame:
    """The lifetimes as sections, and the common data of the portfolio's members."""

    def __init__(self, problem: Problem) -> None:
        assert problem.intervals is not None
        self._problem = problem
        lower, upper = np.asarray(problem.intervals.lower), np.asarray(problem.intervals.upper)
        # A block that is never alive conflicts with nothing, and is not searched for.
        self._alive = np.flatnonzero(lower < upper)
        lower, upper = lower[self._alive], upper[self._alive]
        first, last = _find_sections(lower, upper)
        self._first, self._last = first.tolist(), last.tolist()
        self._sizes = [problem.sizes[block] for block in self._alive.tolist()]
        sections = max(self._last, default=-1) + 1
        change = np.zeros(sections + 1, np.int64)
        np.add.at(change, first, self._sizes)
        np.add.at(change, last + 1, np.negative(self._sizes))
        self._loads: list[int] = np.cumsum(change)[:-1].tolist()
        self._breadths = measure_breadths(problem.intervals, problem.sizes)[self._alive]
        self._widths = upper - lower

    def members(self, engine: SearchEngine) -> Iterator[tuple[SearchBlocks, SearchState, int]]:
        sizes = np.array(self._sizes, np.int64)
        width, breadth, area = self._widths, self._breadths, self._widths * sizes
        orders = [
            np.lexsort((-breadth, -area, -width)),
            np.lexsort((-width, -area, -breadth)),
            np.lexsort((-area, -width, -breadth)),
        ]
        # Later ones reverse time: among equals, sections at the end come first.
        for backwards, order, rule in product((False, True), orders, search.RULES):
            blocks = self._blocks(order.tolist(), engine, backwards)
            state = self._state(engine, backwards)
            search.start(blocks, state)
            yield blocks, state, rule

    @property
    def n_sections(self) -> int:
        return len(self._loads)

    @property
    def most_members(self) -> int:
        return MAX_CELLS // max(len(self._first) * len(self._loads), 1)

    def offsets(self, state: SearchState) -> list[int]:
        offsets = [max(fixed, 0) for fixed in self._problem.fixed]
        for block, offset in zip(self._alive.tolist(), state.offset, strict=True):
            offsets[block] = int(offset)
        return offsets

    def _blocks(self, order: list[int], engine: SearchEngine, backwards: bool) -> SearchBlocks:
        array, count = engine.as_array, len(order)
        dice = random.Random(0)
        alive = self._alive.tolist()
        first, last = self._first, self._last
        if backwards:
            end = len(self._loads) - 1
            first, last = [end - section for section in last], [end - section for section in first]
        return SearchBlocks(
            array(first),
            array(last),
            array(self._sizes),
            array([self._problem.alignments[block] for block in alive]),
            array([self._problem.fixed[block] for block in alive]),
            array(order),
            array(sorted(range(count), key=first.__getitem__)),
            array([dice.getrandbits(60) for _ in range(count)]),
        )

    def _state(self, engine: SearchEngine, backwards: bool) -> SearchState:
        array, blocks, sections = engine.as_array, len(self._first), len(self._loads)
        # A depth places a block or lifts a floor. If these do not suffice, it stays undecided.
        depths = 2 * blocks + sections + 8

        def zeros(length: int) -> Any:
            return array([0] * length)

        def rows(first: list[int]) -> Any:
            if array is list:
                return [list(first), *([] for _ in range(depths))]
            table = np.zeros((depths, sections), np.int64)
            table[0] = first
            return table

        loads = self._loads[::-1] if backwards else self._loads
        by_block = [zeros(blocks) for _ in range(3)]
        by_section = [zeros(sections) for _ in range(2)]
        tables = [rows([0] * sections), rows([0] * sections), rows(loads)]
        by_depth = [zeros(depths) for _ in range(11)]
        lists = [zeros(8 * depths) for _ in range(5)]
        rest = [zeros(FAILURES_KEPT), zeros(2)]
        return SearchState(*(by_block + by_section + tables + by_depth + lists + rest))


def _find_sections(lower: np.ndarray[Any, Any], upper: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return the first and last section of every block, alive from `lower` to `upper`.

    A section is a run of starts without an end between them: the blocks alive after its last start
    are a maximal set of blocks that are alive together.
    """
    starts = np.unique(lower)
    ends = np.unique(upper)
    # A start opens a new section if a block ended since the previous start.
    ended = np.searchsorted(ends, starts, side="right")
    opens = np.ones(len(starts), np.int64)
    opens[1:] = ended[1:] > ended[:-1]
    number = np.cumsum(opens) - 1
    first = number[np.searchsorted(starts, lower)]
    last = number[np.searchsorted(starts, upper) - 1]
    return first, last
