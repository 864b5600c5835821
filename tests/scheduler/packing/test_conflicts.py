from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_problems import conflicts, lifetimes
from plait.scheduler.packing import Conflicts, Intervals, PackingError
from plait.scheduler.packing.cliques import find_heavy_cliques, weigh_heavy_clique


def rows(relation: Conflicts) -> list[set[int]]:
    return [set(relation.near(block).tolist()) for block in range(len(relation))]


@given(conflicts(), st.data())
def test_some_of_the_blocks_keep_their_conflicts(relation: Conflicts, data: st.DataObject) -> None:
    chosen = (
        data.draw(st.lists(st.sampled_from(range(len(relation))), unique=True))
        if len(relation)
        else []
    )
    found = rows(relation.restrict(chosen))
    near = rows(relation)
    for place, block in enumerate(chosen):
        assert {chosen[other] for other in found[place]} == near[block] & set(chosen)


@given(lifetimes())
def test_conflicts_of_lifetimes_in_order_are_lifetimes_again(lives: Intervals) -> None:
    order = np.lexsort((-np.asarray(lives.upper), np.asarray(lives.lower)))
    pairs = lives.restrict(order.tolist()).conflicts
    found = pairs.in_time()
    empty = (np.asarray(lives.lower) == np.asarray(lives.upper)).any()
    assert found is not None or empty
    assert found is None or rows(found.conflicts) == rows(pairs)


@given(conflicts())
def test_lifetimes_are_found_only_if_they_conflict_the_same_way(relation: Conflicts) -> None:
    found = relation.in_time()
    assert found is None or rows(found.conflicts) == rows(relation)


def test_a_ring_of_conflicts_has_no_lifetimes() -> None:
    assert Conflicts.of_pairs(4, [0, 1, 2, 3], [1, 2, 3, 0]).in_time() is None


@given(conflicts(), st.lists(st.integers(1, 40), min_size=12, max_size=12))
def test_heavy_cliques_are_cliques_around_every_block(
    relation: Conflicts, sizes: list[int]
) -> None:
    near = rows(relation)
    found = find_heavy_cliques(relation, sizes[: len(relation)])
    assert all(b in near[a] for clique in found for a, b in combinations(clique, 2))
    assert {block for clique in found for block in clique} == set(range(len(relation)))


@given(conflicts(), st.lists(st.integers(1, 40), min_size=12, max_size=12))
def test_the_bytes_of_a_clique_are_never_more_than_those_of_the_heaviest(
    relation: Conflicts, sizes: list[int]
) -> None:
    near, sizes = rows(relation), sizes[: len(relation)]
    heaviest = 0
    for mask in range(1 << min(len(sizes), 12)):
        clique = [block for block in range(len(sizes)) if mask >> block & 1]
        if sum(sizes[block] for block in clique) > heaviest and all(
            b in near[a] for a, b in combinations(clique, 2)
        ):
            heaviest = sum(sizes[block] for block in clique)
    assert weigh_heavy_clique(relation, sizes) <= heaviest


def test_a_conflict_with_no_block_is_refused() -> None:
    with pytest.raises(PackingError, match="not there"):
        Conflicts.of_pairs(2, [0], [2])
