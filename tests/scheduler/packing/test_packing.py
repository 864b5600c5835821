from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.packing.packing import pack


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    sizes = draw(st.lists(st.integers(0, 40), max_size=12))
    pairs = list(combinations(range(len(sizes)), 2))
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    conflicts = [[b for a, b in chosen if a == i] + [a for a, b in chosen if b == i]
                 for i in range(len(sizes))]  # fmt: skip
    return sizes, conflicts


@given(problems())
def test_conflicting_buffers_never_overlap(problem: tuple[list[int], list[list[int]]]) -> None:
    sizes, conflicts = problem
    offsets, nbytes = pack(sizes, conflicts)
    for a, others in enumerate(conflicts):
        assert 0 <= offsets[a] <= nbytes - sizes[a]
        for b in others:
            apart = offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
            assert apart or 0 in (sizes[a], sizes[b])


@given(problems())
def test_no_packing_is_larger_than_laying_end_to_end(
    problem: tuple[list[int], list[list[int]]],
) -> None:
    sizes, conflicts = problem
    assert max(sizes, default=0) <= pack(sizes, conflicts).nbytes <= sum(sizes)


def test_buffers_without_conflicts_share_everything() -> None:
    assert pack([8, 64, 16], [[], [], []]).nbytes == 64


def test_nothing_packs_into_nothing() -> None:
    assert pack([], []).nbytes == 0
