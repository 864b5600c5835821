"""Packing in order of time, and parts that are stacked: no pair of blocks is looked at."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packing_problems import lifetimes, network, problems
from patience import WAIT_S
from plait.scheduler.packing import Block, Conflicts, Intervals, PackingError, check, pack, problem
from plait.scheduler.packing.cliques import COMPARED, MOST_WORK, find_heavy_cliques
from plait.scheduler.packing.relation import Relation, Stacked

in_order_of_time = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pair of lifetimes is looked at."""
    monkeypatch.setattr(problem, "MOST_PAIRS", -1)
    monkeypatch.setattr(Intervals, "conflicts", None)


def alive_together(lives: Intervals) -> list[tuple[int, int]]:
    spans = list(zip(np.asarray(lives.lower), np.asarray(lives.upper), strict=True))
    return [
        (a, b)
        for a, b in combinations(range(len(spans)), 2)
        if max(spans[a][0], spans[b][0]) < min(spans[a][1], spans[b][1])
    ]


@given(lifetimes())
def test_pairs_are_counted_and_found_without_listing_them(lives: Intervals) -> None:
    pairs = alive_together(lives)
    assert lives.n_pairs == len(pairs)
    for block in range(len(lives)):
        near = {b if a == block else a for a, b in pairs if block in (a, b)}
        assert set(lives.near(block).tolist()) == near


@in_order_of_time
@given(problems(lifetimes(20)))
def test_a_packing_in_order_of_time_is_valid(
    crowded: None, one: tuple[list[Block], Relation]
) -> None:
    blocks, lives = one
    blocks = [block._replace(offset=None) for block in blocks]
    packing = pack(blocks, lives)
    check(blocks, lives, packing)
    assert packing.nbytes >= packing.lower_bound


@pytest.mark.parametrize("kind", ["unet", "dense"])
def test_nets_whose_tensors_live_long_are_packed_at_the_bound(crowded: None, kind: str) -> None:
    sizes, lives = network(kind, 1000)
    packing = pack(sizes, lives, effort=100_000, deadline_s=WAIT_S)
    check([Block(size) for size in sizes], lives, packing)
    assert packing.nbytes <= 1.001 * packing.lower_bound


def test_tens_of_thousands_of_blocks_are_packed_without_their_pairs(crowded: None) -> None:
    """Each is fed before everything and read by its turn, or made in its turn and fetched."""
    count, dice = 10_000, random.Random(0)
    turns = range(count)
    lives = Intervals(
        [*[0] * count, *[turn + 1 for turn in turns]],
        [*[turn + 2 for turn in turns], *[count + 2] * count],
    )
    sizes = [64 * dice.randint(1, 64) for _ in turns] * 2
    packing = pack(sizes, lives, effort=100_000, deadline_s=WAIT_S)
    assert packing.nbytes <= 1.01 * packing.lower_bound
    # The oracle: bytes of blocks that lie on others are checked a turn at a time.
    starts = np.array(packing.offsets)
    for turn in range(0, count, 997):
        alive = np.array([*range(turn, count), *range(count, count + turn)])
        order = alive[np.argsort(starts[alive])]
        assert (starts[order][1:] >= (starts + np.array(sizes))[order][:-1]).all()


@st.composite
def stacked(draw: st.DrawFn) -> Stacked:
    lives = draw(lifetimes())
    labels = draw(st.lists(st.integers(0, 2), min_size=len(lives), max_size=len(lives)))
    parts = []
    for label in sorted(set(labels)):
        mine = [index for index, one in enumerate(labels) if one == label]
        parts.append((np.array(mine, np.int64), lives.restrict(mine)))
    return Stacked(tuple(parts), lives)


@given(stacked(), st.data())
def test_parts_that_are_stacked_share_nothing(relation: Stacked, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(0, 40)) for _ in range(len(relation))]
    blocks = [Block(size, data.draw(st.sampled_from([1, 2, 8]))) for size in sizes]
    packing = pack(blocks, relation)
    check(blocks, relation, packing)
    assert packing.nbytes >= packing.lower_bound
    tops = {}
    for number, (indices, _) in enumerate(relation.parts):
        mine = [index for index in indices.tolist() if sizes[index]]
        if mine:
            low = min(packing.offsets[index] for index in mine)
            tops[low] = number, max(packing.offsets[index] + sizes[index] for index in mine)
    ends = [end for _, (_, end) in sorted(tops.items())]
    assert all(end <= low for end, low in zip(ends, sorted(tops)[1:], strict=False))


@given(stacked(), st.data())
def test_some_of_what_is_stacked_conflicts_as_it_did(
    relation: Stacked, data: st.DataObject
) -> None:
    kept = [index for index in range(len(relation)) if data.draw(st.booleans())]
    some = relation.restrict(kept)
    for place, index in enumerate(kept):
        expected = [kept.index(other) for other in relation.near(index).tolist() if other in kept]
        assert some.near(place).tolist() == expected


def test_what_is_stacked_has_no_fixed_blocks() -> None:
    lives = Intervals([0], [1])
    relation = Stacked(((np.zeros(1, np.int64), lives),), lives)
    with pytest.raises(PackingError, match="no fixed blocks"):
        pack([Block(8, offset=8)], relation)


def test_the_work_for_a_bound_does_not_grow_with_the_cube_of_the_blocks() -> None:
    count = 600
    first, second = np.triu_indices(count, 1)
    cliques = find_heavy_cliques(Conflicts.of_pairs(count, first, second), [64] * count)
    assert cliques == [tuple(range(count))], "all conflict with all"
    apart = (first + second) % 7 > 0
    relation = Conflicts.of_pairs(count, first[apart], second[apart])
    cliques = find_heavy_cliques(relation, range(count))
    work = sum(len(clique) for clique in cliques) * (1 + count / COMPARED)
    assert work <= 1.1 * MOST_WORK
