"""Minimum cuts, against all cuts there are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.passes.flow import Flow

COUNT = 6
Edges = Sequence[tuple[int, int, int]]
vertices = st.integers(0, COUNT - 1)
edges_of = st.lists(st.tuples(vertices, vertices, st.integers(0, 9)), max_size=14)


def price(edges: Edges, side: Sequence[bool]) -> int:
    return sum(capacity for a, b, capacity in edges if side[a] and not side[b])


def all_cuts() -> list[tuple[bool, ...]]:
    return [(True, False, *rest) for rest in itertools.product((False, True), repeat=COUNT - 2)]


@given(edges=edges_of)
@settings(max_examples=40, deadline=None)
def test_no_cut_is_cheaper_and_of_equals_the_smallest_side_is_taken(edges: Edges) -> None:
    flow = Flow(COUNT)
    for edge in edges:
        flow.edge(*edge)
    found = tuple(flow.source_side())
    least = min(price(edges, side) for side in all_cuts())
    best = [side for side in all_cuts() if price(edges, side) == least]
    assert found == tuple(map(all, zip(*best, strict=True)))


@given(
    edges=edges_of,
    producer=vertices,
    readers=st.lists(vertices, min_size=1, max_size=4, unique=True),
    there=st.integers(0, 20),
    back=st.integers(0, 20),
)
@settings(max_examples=40, deadline=None)
def test_readers_on_the_other_side_are_charged_for_once(
    edges: Edges, producer: int, readers: list[int], there: int, back: int
) -> None:
    flow = Flow(COUNT)
    for edge in edges:
        flow.edge(*edge)
    flow.some_across(producer, readers, there, back)

    def total(side: Sequence[bool]) -> int:
        away = side[producer] and not all(side[reader] for reader in readers)
        home = not side[producer] and any(side[reader] for reader in readers)
        return price(edges, side) + there * away + back * home

    assert total(flow.source_side()) == min(map(total, all_cuts()))
