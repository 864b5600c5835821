from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations, count
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_problems import (
    KINDS,
    conflicts,
    conflicts_in,
    guillotine,
    lifetimes,
    network,
    problems,
    smallest_peak,
)
from patience import WAIT_S
from plait.graph.values.errors import InternalError
from plait.graph.values.extras import get_install_command
from plait.scheduler.packing import (
    Block,
    Conflicts,
    Intervals,
    Packing,
    PackingError,
    best,
    check,
    pack,
)
from plait.scheduler.packing.relation import Relation

Problem = tuple[list[Block], Relation]


@settings(max_examples=60, deadline=None)
@given(problems(st.one_of(lifetimes(), conflicts())))
def test_a_packing_is_valid_and_not_below_its_bound(problem: Problem) -> None:
    blocks, relation = problem
    packing = pack(blocks, relation, deadline_s=0.05)
    check(blocks, relation, packing)
    assert packing.nbytes >= packing.lower_bound


@settings(max_examples=60, deadline=None)
@given(problems(st.one_of(lifetimes(), conflicts()), plain=True))
def test_conflicting_blocks_never_share_a_byte(problem: Problem) -> None:
    """Looks at every pair, which `check` does not."""
    blocks, relation = problem
    packing = pack(blocks, relation, deadline_s=0.05)
    near = conflicts_in(relation)
    for a, b in combinations(range(len(blocks)), 2):
        if b in near.near(a):
            bytes_of_a = range(packing.offsets[a], packing.offsets[a] + blocks[a].nbytes)
            bytes_of_b = range(packing.offsets[b], packing.offsets[b] + blocks[b].nbytes)
            assert not set(bytes_of_a) & set(bytes_of_b)


@settings(max_examples=25, deadline=None)
@given(problems(lifetimes(6), plain=True))
def test_a_few_lifetimes_are_packed_as_well_as_can_be(problem: Problem) -> None:
    blocks, relation = problem
    packing = pack(blocks, relation, deadline_s=WAIT_S, solver="python")
    assert packing.nbytes == smallest_peak([block.nbytes for block in blocks], relation)
    assert packing.is_optimal


@settings(max_examples=25, deadline=None)
@given(problems(conflicts(5), plain=True))
def test_a_few_conflicts_are_packed_as_well_as_can_be(problem: Problem) -> None:
    blocks, relation = problem
    packing = pack(blocks, relation)
    assert packing.nbytes == smallest_peak([block.nbytes for block in blocks], relation)


@settings(max_examples=40, deadline=None)
@given(problems(conflicts(), plain=True), st.data())
def test_a_packing_is_never_above_one_arena_per_stack(
    problem: Problem, data: st.DataObject
) -> None:
    blocks, relation = problem
    assert isinstance(relation, Conflicts)
    stacks = [data.draw(st.integers(0, 2)) for _ in blocks]
    arenas = 0
    for label in set(stacks):
        mine = [index for index, stack in enumerate(stacks) if stack == label]
        arenas += pack([blocks[i] for i in mine], relation.restrict(mine)).nbytes
    assert pack(blocks, relation, stacks=stacks).nbytes <= arenas


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [50, 250])
def test_nets_are_packed_at_the_bound(kind: str, count: int) -> None:
    sizes, lives = network(kind, count)
    packing = pack(sizes, lives, deadline_s=WAIT_S, solver="python")
    check([Block(size) for size in sizes], lives, packing)
    assert packing.is_optimal


@pytest.mark.parametrize("seed", range(4))
def test_a_perfect_packing_is_found_again(seed: int) -> None:
    sizes, lives = guillotine(40, seed)
    packing = pack(sizes, lives, deadline_s=WAIT_S, solver="python")
    assert packing.nbytes == 4096
    assert packing.is_optimal


@pytest.mark.extended
def test_the_compiled_search_takes_the_same_steps_as_python() -> None:
    pytest.importorskip("numba", reason="needs numba: pip install '.[compiled]'")
    for seed in range(3):
        sizes, lives = guillotine(60, seed)
        ways = [pack(sizes, lives, deadline_s=WAIT_S, solver=s) for s in ("python", "compiled")]
        assert ways[0].offsets == ways[1].offsets


def test_a_solver_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.scheduler.packing.packing.find_spec", lambda name: None)
    with pytest.raises(PackingError, match="not installed") as caught:
        pack([1], Intervals([0], [1]), solver="compiled")
    assert caught.value.fix == get_install_command("compiled")


def test_small_problems_load_no_solver() -> None:
    code = (
        "import sys; from plait.scheduler.packing import *;"
        "pack([3, 5, 7, 2, 4, 6], Intervals([0, 1, 2, 3, 1, 0], [3, 4, 5, 6, 2, 5]));"
        "print('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr


def test_the_search_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves on by a millisecond with each look."""
    sizes, lives = guillotine(300, 5, 400, 1 << 20)
    looks = count()
    monkeypatch.setattr(best, "perf_counter", lambda: next(looks) / 1000)
    packing = pack(sizes, lives, deadline_s=0.05)
    check([Block(size) for size in sizes], lives, packing)
    assert not packing.is_optimal
    assert next(looks) < 100


def test_a_capacity_is_good_enough() -> None:
    sizes, lives = network("chain", 200)
    loose = pack(sizes, lives, capacity=sum(sizes))
    assert loose.nbytes <= sum(sizes)
    assert "first fit" in loose.algorithm


def test_the_same_blocks_are_packed_the_same_way() -> None:
    sizes, lives = network("wired", 100)
    pairs = lives.conflicts
    once, again = (pack(sizes, pairs, deadline_s=WAIT_S) for _ in range(2))
    assert once.offsets == again.offsets


@pytest.mark.parametrize("pace", [0.0, 3.0])
def test_counted_work_gives_the_same_packing_on_a_slow_and_a_fast_machine(
    monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    sizes, lives = network("wired", 150)
    for relation in (lives, lives.conflicts):
        expected = pack(sizes, relation, effort=30_000, deadline_s=1e9)
        with monkeypatch.context() as patched:
            patched.setattr(
                "plait.scheduler.packing.best.perf_counter", lambda: pace * perf_counter()
            )
            found = pack(sizes, relation, effort=30_000, deadline_s=1e9)
        assert found.offsets == expected.offsets


def test_little_work_still_gives_a_packing() -> None:
    sizes, lives = guillotine(300, 5, 400, 1 << 20)
    packing = pack(sizes, lives, effort=0, deadline_s=WAIT_S)
    check([Block(size) for size in sizes], lives, packing)
    assert packing.algorithm == "first fit by size"


@pytest.mark.parametrize("count", [200, 5000])
def test_a_chain_of_random_sizes_is_packed_at_the_bound(count: int) -> None:
    sizes, lives = network("chain", count)
    assert pack(sizes, lives, effort=60_000, deadline_s=WAIT_S).is_optimal


def test_twenty_thousand_lifetimes_are_packed_at_the_bound() -> None:
    sizes, lives = network("resnet", 20_000)
    assert pack(sizes, lives, deadline_s=WAIT_S).is_optimal


def test_numbers_and_lists_are_blocks_and_conflicts() -> None:
    assert pack([8, 64, 16], [[], [2], [1]]).nbytes == 80


def test_nothing_packs_into_nothing() -> None:
    packing = pack([], [])
    assert (packing.offsets, packing.nbytes, packing.is_optimal) == ((), 0, True)


def test_a_fixed_block_stays_and_others_move() -> None:
    blocks = [Block(10, offset=5), Block(5), Block(6)]
    packing = pack(blocks, Intervals([0, 0, 0], [1, 1, 1]))
    assert packing.offsets == (5, 0, 15)
    assert packing.nbytes == 21


def test_alignments_are_kept_one_by_one() -> None:
    blocks = [Block(1), Block(8, 8), Block(16, 16)]
    packing = pack(blocks, Intervals([0, 0, 0], [1, 1, 1]))
    assert [
        offset % block.alignment for offset, block in zip(packing.offsets, blocks, strict=True)
    ] == [0, 0, 0]
    assert packing.nbytes == 25


def test_a_group_counts_as_one_block_alive_all_the_time() -> None:
    blocks = [Block(8, group="a"), Block(4, group="a"), Block(8)]
    packing = pack(blocks, Intervals([0, 6, 3], [1, 7, 4]))
    assert packing.offsets[0] == packing.offsets[1]
    assert packing.nbytes == 16


def test_blocks_that_are_never_alive_are_in_nobodys_way() -> None:
    assert pack([4, 4, 4], Intervals([0, 3, 3], [5, 3, 3])).nbytes == 4


@pytest.mark.parametrize(
    "blocks",
    [
        [Block(-1), Block(1)],
        [Block(1, 0), Block(1)],
        [Block(1, 8, 4), Block(1)],
        [Block(8, offset=0), Block(8, offset=4)],
        [Block(8, offset=0, group=1), Block(8, offset=4, group=1)],
        [Block(8)],
    ],
)
def test_blocks_that_contradict_each_other_are_refused(blocks: list[Block]) -> None:
    with pytest.raises(PackingError) as caught:
        pack(blocks, Intervals([0, 0], [1, 1]))
    assert caught.value.fix


def test_a_life_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(PackingError, match="ends before it starts"):
        Intervals([0, 3], [1, 2])


@given(lifetimes())
def test_lifetimes_conflict_where_they_overlap(lives: Intervals) -> None:
    spans = list(zip(np.asarray(lives.lower), np.asarray(lives.upper), strict=True))
    for a, (low, high) in enumerate(spans):
        for b, (other_low, other_high) in enumerate(spans):
            together = max(low, other_low) < min(high, other_high)
            assert (b in lives.conflicts.near(a)) == (together and a != b)


@pytest.mark.parametrize(
    "offsets",
    [(0, 4), (0, -8), (0, 5), (0,), (1, 8)],
    ids=["overlap", "negative", "misaligned", "too few", "not where it is fixed"],
)
def test_check_refuses_what_is_no_packing(offsets: tuple[int, ...]) -> None:
    blocks = [Block(8, offset=0), Block(4, 4)]
    with pytest.raises(InternalError):
        check(blocks, Intervals([0, 0], [2, 2]), Packing(offsets, 12))


def test_check_refuses_a_peak_that_is_too_low() -> None:
    with pytest.raises(InternalError):
        check([Block(8)], Intervals([0], [1]), Packing((0,), 7))


def test_omnimalloc_is_not_better() -> None:
    omnimalloc = pytest.importorskip("omnimalloc", reason="needs omnimalloc")
    for seed in range(4):
        dice = random.Random(seed)
        lower = [dice.randrange(40) for _ in range(60)]
        upper = [start + dice.randint(1, 12) for start in lower]
        sizes = [dice.randint(1, 400) for _ in lower]
        allocations = tuple(
            omnimalloc.Allocation(id=i, size=size, start=start, end=end)
            for i, (size, start, end) in enumerate(zip(sizes, lower, upper, strict=True))
        )
        theirs = omnimalloc.allocate(omnimalloc.Pool(id="pool", allocations=allocations), "omni")
        ours = pack(
            sizes, Intervals(lower, upper), effort=100_000, deadline_s=WAIT_S, solver="python"
        )
        assert ours.nbytes <= max(each.offset + each.size for each in theirs.allocations)
