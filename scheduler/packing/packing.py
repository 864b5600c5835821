"""Offsets for blocks, some of which may not overlap, in as few bytes as time allows.

Cheap orders first, then changes to the best of them, then an exact search; as soon as a packing is
as small as the lower bound, or fits the capacity asked for, it is returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal, TypeAlias

from . import cpsat, exact
from .blocks import Block, Packing, PackingError
from .first_fit import orders, place
from .improve import order_of, reorder, stack, sweep_both_sides
from .problem import Problem
from .relation import Conflicts, Intervals, Relation

Solver: TypeAlias = Literal["auto", "python", "compiled", "cpsat"]

PATIENCE_S = 5.0
"""With at least so much time, what takes seconds to load is worth it: Numba and OR-Tools."""

HEAD_START_S = 1.0
"""What is easy is found in Python before Numba is loaded."""

PYTHON_SHARE = 0.4
"""The part of the time that our search gets where CP-SAT can take over."""

FEW_TRIES, TRIES = 10, 60
"""So many changes in a row without success end the improving: few where the exact search follows,
else some more per block."""


def pack(
    blocks: Sequence[Block | int],
    relation: Relation | Sequence[Iterable[int]],
    *,
    capacity: int | None = None,
    deadline_s: float = 0.5,
    lower_bound: int | None = None,
    stacks: Sequence[int] | None = None,
    solver: Solver = "auto",
) -> Packing:
    """Place blocks so that conflicting ones do not overlap.

    Parameters
    ----------
    blocks : sequence of Block or int
        What wants a place; a number is a block of so many bytes.
    relation : Intervals, Conflicts, or sequence of iterables of int
        Which blocks may not overlap; lists name for each block those it conflicts with.
    capacity : int, optional
        Any packing of so many bytes is good enough. Without it, only the smallest possible is.
    deadline_s : float
        Return the best found after so many seconds. One packing is always made. Compiling the
        search, once after installation, comes on top; it never happens below five seconds.
    lower_bound : int, optional
        What the caller knows: no packing takes fewer bytes.
    stacks : sequence of int, optional
        A label for each block, such as its lane. The layout with one arena per label is tried too.
        By default the chains that `conflicts_of` found.
    solver : {"auto", "python", "compiled", "cpsat"}
        Who searches when nothing cheap is good enough. "auto" takes what is installed, and only
        what pays within the deadline.

    Returns
    -------
    Packing
        Never more than the blocks laid end to end. The same for the same blocks, unless the
        deadline ends it.

    Raises
    ------
    PackingError
        If blocks contradict each other, or the solver asked for is not installed.

    Examples
    --------
    >>> packing = pack([Block(64), Block(32), Block(32)], Intervals([0, 0, 2], [2, 4, 4]))
    >>> packing.nbytes, packing.is_optimal
    (96, True)
    """
    started = time.perf_counter()
    solid = [Block(block) if isinstance(block, int) else block for block in blocks]
    if not isinstance(relation, Intervals | Conflicts):
        relation = Conflicts.of_lists(relation)
    problem = Problem(solid, relation)
    bound = max(problem.lower_bound, lower_bound or 0)
    best = _Best(problem, bound, capacity, started + deadline_s)
    _Portfolio(problem, best, solver, problem.labels(stacks)).run()
    seconds = time.perf_counter() - started
    offsets = problem.offsets_of_blocks(best.offsets)
    peak = max((a + block.nbytes for a, block in zip(offsets, solid, strict=True)), default=0)
    return Packing(offsets, peak, min(best.bound, peak), best.algorithm, seconds)


class _Best:
    """The best packing so far, and whether it is time to stop."""

    def __init__(self, problem: Problem, bound: int, capacity: int | None, deadline: float) -> None:
        self._problem, self.deadline = problem, deadline
        self.bound, self.capacity = bound, capacity
        self.offsets: list[int] = []
        self.peak = self.height = (
            sum(problem.sizes)
            + sum(problem.alignments)
            + max([0, *map(int.__add__, problem.fixed, problem.sizes)])
        )
        self.algorithm = ""

    @property
    def target(self) -> int:
        """How small is small enough."""
        return self.bound if self.capacity is None else max(self.bound, self.capacity)

    def is_over(self) -> bool:
        return time.perf_counter() >= self.deadline

    def is_done(self) -> bool:
        return bool(self.offsets) and (self.peak <= self.target or self.is_over())

    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def offer(self, algorithm: str, offsets: list[int] | None) -> None:
        if offsets is None:
            return
        peak = self._problem.peak(offsets)
        if peak < self.peak or not self.offsets:
            self.offsets, self.peak, self.algorithm = offsets, peak, algorithm
            self.height = max(map(int.__add__, offsets, self._problem.sizes), default=0)


class _Portfolio:
    """What is tried, in what order."""

    def __init__(
        self, problem: Problem, best: _Best, solver: Solver, labels: Sequence[int] | None
    ) -> None:
        self._problem, self._best = problem, best
        self._solver, self._labels = solver, labels
        self._orders: list[tuple[str, list[int]]] = []
        if solver == "cpsat":
            cpsat.demand()
        if solver == "compiled" and find_spec("numba") is None:
            raise PackingError("Numba is not installed", fix="pip install 'plait[compiled]'")

    def run(self) -> None:
        if not len(self._problem):
            return
        steps = (self._cheap, self._stacked, self._from_both_sides, self._change, self._exact)
        for step in steps:
            step()
            if self._best.is_done():
                return

    def _cheap(self) -> None:
        problem, best = self._problem, self._best
        for name, order in orders(problem):
            best.offer(f"first fit by {name}", place(problem, order, best.height))
            if best.is_done():
                return
            best.offer(f"best fit by {name}", place(problem, order, best.height, tightest=True))
            if best.is_done():
                return

    def _stacked(self) -> None:
        if self._labels is not None and len(set(self._labels)) > 1:
            self._best.offer("stacked", stack(self._problem, self._labels, self._pack_alone))

    def _pack_alone(self, problem: Problem) -> list[int]:
        best = _Best(problem, problem.lower_bound, None, self._best.deadline)
        inner = _Portfolio(problem, best, "python", None)
        for step in (inner._cheap, inner._from_both_sides, inner._change):
            if not best.is_done():
                step()
        return best.offsets

    def _from_both_sides(self) -> None:
        problem, best = self._problem, self._best
        unit = problem.unit
        for percent in (0, 1, 2, 3, 5, 7, 10, 15):
            capacity = -(-best.target * (100 + percent) // 100 // unit) * unit
            if capacity < best.height:
                best.offer("sweep from both sides", sweep_both_sides(problem, capacity))
            if best.is_done():
                return

    def _change(self) -> None:
        """Improve by small changes; where the exact search can follow, only for a short while."""
        problem, best = self._problem, self._best
        exactly = exact.suits(problem)
        offsets = reorder(
            problem,
            order_of(problem, best.offsets),
            best.offsets,
            tries=FEW_TRIES if exactly else TRIES + 4 * len(problem),
            is_enough=lambda found: problem.peak(found) <= best.target or best.is_over(),
        )
        best.offer(f"{best.algorithm}, reordered", offsets)

    def _exact(self) -> None:
        """Search for a packing at the target, then, with the time left, between it and the best."""
        problem, best = self._problem, self._best
        if not exact.suits(problem):
            return
        low, unit = best.target, problem.unit
        while low < best.peak and not best.is_over():
            capacity = -(-low // unit) * unit
            found = self._search(capacity, share=0.7)
            if found.offsets is not None:
                best.offer("exact search", found.offsets)
                return
            if not found.is_impossible:
                break
            best.bound = max(best.bound, low + 1)
            low = max(low + 1, best.target)
        high = best.peak
        while low + unit < high and not best.is_over():
            capacity = (low + high) // 2 // unit * unit
            found = self._search(capacity, share=0.5)
            if found.offsets is not None:
                best.offer("exact search", found.offsets)
            elif found.is_impossible:
                best.bound = max(best.bound, capacity + 1)
            low, high = (low, best.peak) if found.offsets is not None else (capacity, best.peak)

    def _search(self, capacity: int, share: float) -> exact.Outcome:
        """Search at a capacity for a part of the time left, all of it if that is what was asked."""
        seconds = self._best.left_s() * (1.0 if self._best.capacity is not None else share)
        found = exact.Outcome(None, False)
        for solver, limit in self._turns(max(seconds, 0.0)):
            if solver == "cpsat":
                found = exact.Outcome(cpsat.solve(self._problem, capacity, limit), False)
            else:
                engine = exact.PYTHON if solver == "python" else self._compiled()
                end = time.perf_counter() + limit
                found = exact.find(self._problem, capacity, engine, partial(_is_past, end))
            if found.offsets is not None or found.is_impossible:
                break
        return found

    def _turns(self, seconds: float) -> list[tuple[Solver, float]]:
        """Return who searches, and how long."""
        if self._solver != "auto":
            return [(self._solver, seconds)]
        if seconds >= PATIENCE_S and find_spec("numba") is not None:
            return [("python", HEAD_START_S), ("compiled", seconds - HEAD_START_S)]
        if seconds >= PATIENCE_S and cpsat.is_installed():
            return [
                ("python", seconds * PYTHON_SHARE),
                ("cpsat", seconds * (1 - PYTHON_SHARE)),
            ]
        return [("python", seconds)]

    def _compiled(self) -> exact.Engine:
        """Return the machine code; making it, once in a while, is not held against the search."""
        started = time.perf_counter()
        from .compiled import engine

        made = engine()
        self._best.deadline += time.perf_counter() - started
        return made


def _is_past(end: float) -> bool:
    return time.perf_counter() >= end
