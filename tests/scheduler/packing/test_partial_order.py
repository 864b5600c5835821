from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from antichain import find_heaviest_antichain
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_problems import conflicts_in
from patience import WAIT_S
from plait.scheduler.packing import Block, Conflicts, Intervals, PackingError, check, pack
from plait.scheduler.packing.partial_order import find_conflicts


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Points with predecessors, and blocks with writers and accesses."""
    points = draw(st.integers(1, 9))
    before = [
        sorted(draw(st.sets(st.integers(0, point - 1), max_size=3))) if point else []
        for point in range(points)
    ]
    some = st.sets(st.integers(0, points - 1), min_size=1, max_size=3)
    writers = [sorted(found) for found in draw(st.lists(some, max_size=8))]
    accesses = [sorted({*w, *(x for x in draw(some) if x > min(w))}) for w in writers]
    return before, writers, accesses


def closure(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return for every point all that come before it."""
    earlier: list[set[int]] = []
    for direct in before:
        earlier.append({*direct, *(far for near in direct for far in earlier[near])})
    return earlier


@settings(max_examples=150)
@given(orders())
def test_bytes_are_reused_only_if_every_access_is_over_before_every_writer(
    order: tuple[list[list[int]], list[list[int]], list[list[int]]],
) -> None:
    before, writers, accesses = order
    earlier = closure(before)
    found = conflicts_in(find_conflicts(before, writers, accesses))

    def over(a: int, b: int) -> bool:
        return all(x in earlier[w] for x in accesses[a] for w in writers[b])

    for a in range(len(writers)):
        expected = {b for b in range(len(writers)) if b != a and not over(a, b) and not over(b, a)}
        assert set(found.near(a).tolist()) == expected


def test_a_chain_gives_lifetimes() -> None:
    lives = find_conflicts([[], [0], [1], [0, 2]], [[0], [2]], [[1], [3]])
    assert isinstance(lives, Intervals)
    assert (list(lives.lower), list(lives.upper)) == ([0, 2], [2, 4])


def test_points_out_of_order_are_refused() -> None:
    with pytest.raises(PackingError, match="predecessors"):
        find_conflicts([[1], []], [], [])


def test_a_block_that_nothing_writes_is_refused() -> None:
    with pytest.raises(PackingError, match="nothing writes"):
        find_conflicts([[]], [[]], [[0]])


def test_a_point_that_is_not_there_is_refused() -> None:
    with pytest.raises(PackingError, match="not there"):
        find_conflicts([[]], [[0]], [[1]])


def lanes(
    blocks: int, count: int, seed: int, crossing: float = 0.2
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Lanes that each run their points in order, and now and then read what another made."""
    dice = random.Random(seed)
    before: list[list[int]] = []
    accesses: list[list[int]] = []
    latest = [-1] * count
    for point in range(blocks):
        lane = dice.randrange(count)
        sources = [latest[lane]] if latest[lane] >= 0 else []
        if dice.random() < crossing:
            sources += [other for other in [latest[dice.randrange(count)]] if other >= 0]
        for source in sources:
            accesses[source].append(point)
        before.append(sorted(set(sources)))
        accesses.append([point])
        latest[lane] = point
    return before, accesses, [dice.randint(1, 64) * 64 for _ in range(blocks)]


@pytest.mark.extended
def test_no_dense_matrix_is_made() -> None:
    before, accesses, sizes = lanes(10_000, 8, 0)
    tracemalloc.start()
    relation = find_conflicts(before, [[point] for point in range(len(before))], accesses)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(relation, Conflicts)
    assert peak < 80e6  # a matrix of bytes would take 100e6 alone
    check([Block(size) for size in sizes], relation, pack(sizes, relation, deadline_s=0.1))


@settings(max_examples=60, deadline=None)
@given(orders(), st.lists(st.integers(1, 20), min_size=8, max_size=8))
def test_the_heaviest_antichain_is_the_heaviest_clique_of_conflicts(
    order: tuple[list[list[int]], list[list[int]], list[list[int]]], sizes: list[int]
) -> None:
    before, writers, accesses = order
    relation = conflicts_in(find_conflicts(before, writers, accesses))
    sizes = sizes[: len(writers)]
    near = [set(relation.near(a).tolist()) for a in range(len(writers))]
    cliques = (
        [b for b in range(len(writers)) if mask >> b & 1] for mask in range(1 << len(writers))
    )
    heaviest = max(
        sum(sizes[b] for b in clique)
        for clique in cliques
        if all(b in near[a] for a in clique for b in clique if a < b)
    )
    starts = [min(found) for found in writers]
    assert find_heaviest_antichain(sizes, relation, starts) == heaviest


@pytest.mark.parametrize("seed", range(3))
def test_loose_lanes_are_packed_near_their_antichain(seed: int) -> None:
    before, accesses, sizes = lanes(200, 4, seed, crossing=0.01)
    points = [[point] for point in range(len(before))]
    relation = find_conflicts(before, points, accesses)
    assert isinstance(relation, Conflicts)
    bound = find_heaviest_antichain(sizes, relation, range(len(before)))
    packing = pack(sizes, relation, lower_bound=bound, effort=100_000, deadline_s=WAIT_S)
    check([Block(size) for size in sizes], relation, packing)
    assert bound <= packing.nbytes <= 1.15 * bound


@pytest.mark.parametrize(("crossing", "most"), [(0.0, 1.0), (0.02, 1.01), (0.2, 1.05)])
def test_lanes_are_packed_near_their_antichain_and_never_above_one_arena_each(
    crossing: float, most: float
) -> None:
    before, accesses, sizes = lanes(300, 4, 1, crossing=crossing)
    relation = find_conflicts(before, [[point] for point in range(len(before))], accesses)
    assert isinstance(relation, Conflicts)
    bound = find_heaviest_antichain(sizes, relation, range(len(before)))
    packing = pack(sizes, relation, lower_bound=bound, effort=100_000, deadline_s=WAIT_S)
    check([Block(size) for size in sizes], relation, packing)
    assert packing.nbytes <= most * bound


def test_blocks_filled_from_the_bottom_keep_their_alignments_and_groups() -> None:
    before, accesses, sizes = lanes(60, 3, 2)
    relation = find_conflicts(before, [[point] for point in range(len(before))], accesses)
    blocks = [
        Block(size - index % 7, (8, 24, 64)[index % 3], group=index % 20 if index < 40 else None)
        for index, size in enumerate(sizes)
    ]
    packing = pack(blocks, relation, effort=50_000, deadline_s=WAIT_S)
    check(blocks, relation, packing)
