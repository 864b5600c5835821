"""Offsets for blocks, some of which may not overlap, in as few bytes as time allows.

Cheap orders first, then changes to the best of them, then an exact search, until a packing reaches
the lower bound or the requested capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import Literal, TypeAlias

from ...graph.values.extras import get_install_command
from . import exact
from .alternating import take_turns
from .best import Best, Budget
from .first_fit import list_orders, place
from .improve import order_by_offset, reorder, stack, sweep_both_sides
from .problem import Problem, find_lower_bound
from .relation import Block, Conflicts, Intervals, Packing, PackingError, Relation, Stacked
from .sweep import sweep

Solver: TypeAlias = Literal["auto", "python", "compiled"]

PATIENCE_S = 5.0
"""Time from which loading Numba pays, which takes seconds."""

HEAD_START_S = 1.0
"""Easy problems are solved in Python before Numba is loaded."""

FEW_TRIES, TRIES = 10, 60
"""Consecutive failures that end the improvement: few before the exact search, else more."""

MOST_STACKS = 64
"""Limit of labels: more are hardly lanes."""

STACKS_SHARE = 0.8
"""Share of the remaining budget for all stacks together."""


def pack(
    blocks: Sequence[Block | int],
    relation: Relation | Stacked | Sequence[Iterable[int]],
    *,
    capacity: int | None = None,
    deadline_s: float = 0.5,
    effort: float | None = None,
    lower_bound: int | None = None,
    stacks: Sequence[int] | None = None,
    solver: Solver = "auto",
) -> Packing:
    """Place blocks so that conflicting ones do not overlap.

    Parameters
    ----------
    blocks : sequence of Block or int
        The blocks to be placed; a number is a block of this many bytes.
    relation : Intervals, Conflicts, Stacked, or sequence of iterables of int
        The blocks that may not overlap; lists contain the conflicts of each block. Stacked parts
        have neither fixed offsets nor groups, and are packed one by one.
    capacity : int, optional
        Any packing of this size is good enough. By default only the smallest possible is.
    deadline_s : float
        Time limit in seconds. At least one packing is made. Compiling the search, once after
        installation, is not counted; it never happens below five seconds.
    effort : float, optional
        Limit of work in placements of a block, about five microseconds each. The same blocks are
        then packed the same way on any machine, unless the deadline comes first; "auto" means
        "python".
    lower_bound : int, optional
        A lower bound of all packings that the caller knows.
    stacks : sequence of int, optional
        A label for each block, such as its lane. The layout with one arena per label is tried too,
        for up to 64 labels. By default the chains that `find_conflicts` found.
    solver : {"auto", "python", "compiled"}
        The implementation of the exact search. "auto" uses the installed one that pays within the
        deadline.

    Returns
    -------
    Packing
        At most as large as the blocks end to end.

    Raises
    ------
    PackingError
        If blocks contradict each other, or the requested solver is not installed.

    Examples
    --------
    >>> packing = pack([Block(64), Block(32), Block(32)], Intervals([0, 0, 2], [2, 4, 4]))
    >>> packing.nbytes, packing.is_optimal
    (96, True)
    """
    started = perf_counter()
    solid = [Block(block) if isinstance(block, int) else block for block in blocks]
    if isinstance(relation, Stacked):
        return _pack_parts(solid, relation, deadline_s, effort, started)
    if not isinstance(relation, Intervals | Conflicts):
        relation = Conflicts.of_lists(relation)
    budget = Budget(deadline_s, effort)
    problem = Problem(solid, relation)
    best = Best(problem, max(problem.lower_bound, lower_bound or 0), capacity)
    # Installed software must not decide: equal effort makes equal packings everywhere.
    if effort is not None and solver == "auto":
        solver = "python"
    _Portfolio(problem, best, budget, solver, problem.labels(stacks)).run()
    offsets = problem.offsets_of_blocks(best.offsets)
    peak = max((a + block.nbytes for a, block in zip(offsets, solid, strict=True)), default=0)
    seconds = perf_counter() - started
    return Packing(offsets, peak, min(best.bound, peak), best.algorithm, seconds)


def _pack_parts(
    blocks: Sequence[Block],
    relation: Stacked,
    deadline_s: float,
    effort: float | None,
    started: float,
) -> Packing:
    """Pack and stack the parts of `relation`; each gets its share of `deadline_s` and `effort`."""
    if any(block.offset is not None or block.group is not None for block in blocks):
        raise PackingError(
            "parts that are stacked have no fixed blocks and no groups",
            fix="describe the relation by lifetimes or conflicts",
        )
    # Parts begin at a common multiple of all alignments, which keeps offsets aligned.
    whole = math.lcm(*(block.alignment for block in blocks))
    offsets, base, top = [0] * len(blocks), 0, 0
    algorithms: dict[str, None] = {}
    for indices, lives in relation.parts:
        share = len(indices) / len(blocks)
        mine = [blocks[index] for index in indices]
        part = pack(
            mine,
            lives,
            deadline_s=deadline_s * share,
            effort=None if effort is None else effort * share,
        )
        for index, offset in zip(indices.tolist(), part.offsets, strict=True):
            offsets[index] = base + offset
        top = base + part.nbytes
        base = -(-top // whole) * whole
        algorithms[part.algorithm] = None
    bound = find_lower_bound(blocks, relation)
    algorithm = f"stacked parts: {', '.join(algorithms)}"
    return Packing(tuple(offsets), top, bound, algorithm, perf_counter() - started)


class _Portfolio:
    def __init__(
        self,
        problem: Problem,
        best: Best,
        budget: Budget,
        solver: Solver,
        labels: Sequence[int] | None,
    ) -> None:
        self._problem, self._best, self._budget = problem, best, budget
        self._solver, self._labels, self._had_turns = solver, labels, False
        if solver == "compiled" and find_spec("numba") is None:
            raise PackingError("Numba is not installed", fix=get_install_command("compiled"))

    def run(self) -> None:
        """Apply the methods until the best is good enough, or the budget is spent."""
        if not len(self._problem):
            return
        # All methods except sweeps use pairs, of which there are too many.
        if self._problem.is_crowded:
            self._swept()
            return
        # A partial order comes from lanes: methods that use lanes are tried first. With lifetimes
        # the bound is close, and often reached at once.
        partial = (self._stacked, self._in_turns, self._at_the_bound, self._ordered)
        total = (self._at_the_bound, self._ordered, self._stacked)
        rest = (self._from_both_sides, self._change, self._exact, self._in_turns)
        name, order = next(list_orders(self._problem))
        self._place(name, order, tightest=False)  # one packing is made with any budget
        for step in (*(partial if self._problem.intervals is None else total), *rest):
            if self._is_done():
                return
            step()

    def _is_done(self) -> bool:
        return self._best.is_good or (bool(self._best.offsets) and self._budget.is_over())

    def _swept(self) -> None:
        for name, offsets in sweep(self._problem):
            self._budget.spend(len(self._problem))
            self._best.offer(name, offsets)
            if self._is_done():
                return

    def _ordered(self) -> None:
        for name, order in list_orders(self._problem):
            for tightest in (False, True):
                self._place(name, order, tightest=tightest)
                if self._is_done():
                    return

    def _place(self, name: str, order: Sequence[int], *, tightest: bool) -> None:
        problem, best = self._problem, self._best
        self._budget.spend(problem.work)
        found = place(problem, order, best.height, tightest=tightest)
        best.offer(f"{'best' if tightest else 'first'} fit by {name}", found)

    def _stacked(self) -> None:
        if self._labels is None or not 1 < len(set(self._labels)) <= MOST_STACKS:
            return
        part = self._budget.part(STACKS_SHARE)
        left = len(set(self._labels))

        def pack_alone(problem: Problem) -> list[int]:
            nonlocal left
            mine = part.part(1 / left)
            left -= 1
            best = Best(problem, problem.lower_bound, None)
            _Portfolio(problem, best, mine, "python", None).run()
            return best.offsets

        # A label's work is charged to its part; this is for settling the whole once.
        self._budget.spend(self._problem.work)
        self._best.offer("stacked", stack(self._problem, self._labels, pack_alone))

    def _in_turns(self) -> None:
        if not self._had_turns and max(self._problem.fixed) < 0:
            self._had_turns = True
            take_turns(self._problem, self._best, self._budget)

    def _at_the_bound(self) -> None:
        self._sweep(0)

    def _from_both_sides(self) -> None:
        # Tighter capacities give better packings, but blocks are less likely to fit.
        for percent in (1, 2, 3, 5, 7, 10, 15):
            self._sweep(percent)
            if self._is_done():
                return

    def _sweep(self, percent: int) -> None:
        problem, best = self._problem, self._best
        capacity = -(-best.target * (100 + percent) // 100 // problem.unit) * problem.unit
        if capacity < best.height:
            self._budget.spend(problem.work)
            best.offer("sweep from both sides", sweep_both_sides(problem, capacity))

    def _change(self) -> None:
        problem, best, budget = self._problem, self._best, self._budget

        def is_enough(found: Sequence[int]) -> bool:
            budget.spend(problem.work)
            return problem.peak(found) <= best.target or budget.is_over()

        offsets = reorder(
            problem,
            order_by_offset(problem, best.offsets),
            best.offsets,
            tries=FEW_TRIES if exact.is_searchable(problem) else TRIES + 4 * len(problem),
            is_enough=is_enough,
        )
        best.offer(f"{best.algorithm}, reordered", offsets)

    def _exact(self) -> None:
        problem, best, budget = self._problem, self._best, self._budget
        if not exact.is_searchable(problem):
            return
        # Most often the target can be reached. If not, that is soon proved, and the capacity grows
        # by doubling strides until a packing is found or the search does not end.
        low, unit = best.target, problem.unit
        stride = unit
        while low < best.peak and not budget.is_over():
            capacity = -(-low // unit) * unit
            found = self._search(capacity, share=0.7)
            if found.offsets is not None:
                best.offer("exact search", found.offsets)
            if not found.is_impossible:
                break
            best.bound = max(best.bound, capacity + 1)
            low, stride = capacity + stride, 2 * stride
        if best.peak <= best.target:
            return
        # Then bisect between impossible and found sizes, treating undecided ones as impossible.
        low = best.bound - 1
        high = best.peak
        while low + unit < high and not budget.is_over():
            capacity = (low + high) // 2 // unit * unit
            found = self._search(capacity, share=0.5)
            if found.offsets is not None:
                best.offer("exact search", found.offsets)
            elif found.is_impossible:
                best.bound = max(best.bound, capacity + 1)
            low, high = (low, best.peak) if found.offsets is not None else (capacity, best.peak)

    def _search(self, capacity: int, share: float) -> exact.SearchOutcome:
        # A requested capacity is the only question; otherwise time is kept for the next.
        whole = self._budget.part(1.0 if self._best.capacity is not None else share)
        found = exact.SearchOutcome(None, False)
        for solver, seconds in self._turns(whole.left_s()):
            engine = exact.PYTHON if solver == "python" else self._compiled()
            budget = whole if whole.is_counted else Budget(seconds)
            found = exact.find(self._problem, capacity, engine, budget)
            if found.offsets is not None or found.is_impossible:
                break
        return found

    def _turns(self, seconds: float) -> list[tuple[Solver, float]]:
        if self._solver != "auto":
            return [(self._solver, seconds)]
        if seconds >= PATIENCE_S and find_spec("numba") is not None:
            return [("python", HEAD_START_S), ("compiled", seconds - HEAD_START_S)]
        return [("python", seconds)]

    def _compiled(self) -> exact.SearchEngine:
        """Return the machine code; the time of compiling is not charged to the search."""
        started = perf_counter()
        from .compiled import load_engine

        made = load_engine()
        self._budget.deadline += perf_counter() - started
        return made
