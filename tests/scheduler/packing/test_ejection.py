from __future__ import annotations

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packing_problems import conflicts, problems
from plait.scheduler.packing import Block, Conflicts, Packing, check
from plait.scheduler.packing.best import Budget
from plait.scheduler.packing.ejection import Ejection
from plait.scheduler.packing.problem import Problem
from plait.scheduler.packing.relation import Relation

PLENTY = 1e9


def end_to_end(problem: Problem) -> list[int]:
    offsets, top = [], 0
    for size, alignment in zip(problem.sizes, problem.alignments, strict=True):
        top = -(-top // alignment) * alignment
        offsets.append(top)
        top += size
    return offsets


def ring(count: int) -> Problem:
    """Return equal blocks of which each conflicts with the one before and the one after."""
    after = [(block + 1) % count for block in range(count)]
    return Problem([Block(8)] * count, Conflicts.of_pairs(count, range(count), after))


@settings(max_examples=60, deadline=None)
@given(problems(conflicts(), plain=True), st.randoms(use_true_random=False))
def test_what_ejection_finds_is_a_packing_inside_the_capacity(
    plain: tuple[list[Block], Relation], dice: random.Random
) -> None:
    blocks = [block._replace(alignment=dice.choice((1, 2, 3, 8))) for block in plain[0]]
    problem = Problem(blocks, plain[1])
    assume(len(problem) > 0)
    ejection, found = Ejection(problem), end_to_end(problem)
    for height in range(max(map(int.__add__, found, problem.sizes)) - 1, max(problem.sizes), -1):
        lower = ejection.below(found, height, 100, Budget(60, PLENTY))
        if lower is None:
            break
        found = lower
        packing = Packing(problem.offsets_of_blocks(found), problem.peak(found))
        check(blocks, plain[1], packing)
        assert packing.nbytes <= height


def test_a_ring_of_even_length_ends_up_on_two_levels() -> None:
    problem = ring(40)
    found = Ejection(problem).below(end_to_end(problem), 16, 100_000, Budget(60, PLENTY))
    assert found is not None
    assert all(found[block] != found[block - 1] for block in range(40))
    assert set(found) == {0, 8}


def test_a_ring_of_odd_length_does_not_fit_on_two_levels() -> None:
    problem = ring(9)
    assert Ejection(problem).below(end_to_end(problem), 16, 500, Budget(60, PLENTY)) is None


def test_ejection_ends_when_the_work_is_spent() -> None:
    problem, budget = ring(9), Budget(60, 1000)
    assert Ejection(problem).below(end_to_end(problem), 16, 10**9, budget) is None
    assert budget.is_over()


def test_ejection_is_the_same_every_time() -> None:
    problem = ring(41)
    found = [
        Ejection(problem).below(end_to_end(problem), 24, 10_000, Budget(60, PLENTY))
        for _ in range(2)
    ]
    assert found[0] == found[1] is not None
