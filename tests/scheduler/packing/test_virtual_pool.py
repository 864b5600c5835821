from __future__ import annotations

import plait as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from plait.scheduler.packing import VirtualPool


def test_blocks_lie_where_lightnet_puts_them() -> None:
    """The vectors of LightNet's memory pool: best fit, from address 1 on."""
    pool = VirtualPool(1000)
    assert [pool.allocate(n) for n in (10, 8, 2, 4, 6)] == [1, 11, 19, 21, 25]
    pool.free(11)
    pool.free(21)
    assert pool.allocate(2) == 21
    pool.free(19)
    assert pool.allocate(9) == 11
    pool.free(21)
    assert pool.allocate(5) == 20


def test_of_two_holes_the_tighter_is_taken_and_of_equals_the_lower() -> None:
    pool = VirtualPool(100)
    first, _, second, _, third, _ = (pool.allocate(n) for n in (8, 1, 4, 1, 4, 1))
    for address in (first, second, third):
        pool.free(address)
    assert pool.allocate(3) == second


def test_room_is_counted_from_the_first_aligned_address() -> None:
    """The hole at 1 has 7 bytes, but none at a multiple of 8."""
    pool = VirtualPool(64, alignment=8)
    assert pool.allocate(3) == 8
    assert pool.dump() == "1-7 H\n8-10 S\n11-64 H"
    assert pool.allocate(8) == 16


def test_holes_that_meet_become_one() -> None:
    pool = VirtualPool(30)
    a, b, c = (pool.allocate(10) for _ in range(3))
    pool.free(a)
    pool.free(c)
    pool.free(b)
    assert pool.dump() == "1-30 H"


def test_a_block_starts_where_it_was_allocated_and_nowhere_else() -> None:
    pool = VirtualPool(30)
    address = pool.allocate(4)
    assert address in pool
    assert address + 1 not in pool
    assert 0 not in pool
    pool.free(address)
    assert address not in pool


def test_what_does_not_fit_is_refused_with_the_sizes() -> None:
    pool = VirtualPool(30)
    a, _ = pool.allocate(10), pool.allocate(10)
    pool.free(a)
    with pytest.raises(pl.DoesNotFitError, match=r"(?s)11 bytes.*20 bytes are free, 10 of them"):
        pool.allocate(11)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_block_without_bytes_is_refused(nbytes: int) -> None:
    with pytest.raises(pl.PlanError, match="1 byte or more"):
        VirtualPool(30).allocate(nbytes)


def test_an_address_is_freed_once() -> None:
    pool = VirtualPool(30)
    address = pool.allocate(4)
    pool.free(address)
    with pytest.raises(pl.PlanError, match="no block starts at address 1"):
        pool.free(address)


@pytest.mark.parametrize(("nbytes", "alignment"), [(0, 1), (8, 0)])
def test_an_empty_pool_is_refused(nbytes: int, alignment: int) -> None:
    with pytest.raises(pl.PlanError, match="1 or more of each"):
        VirtualPool(nbytes, alignment)


class AgainstMarkedBytes(RuleBasedStateMachine):
    """The same pool as one mark per address, searched from end to end."""

    SIZE, ALIGNMENT = 60, 4

    def __init__(self) -> None:
        super().__init__()
        self.pool = VirtualPool(self.SIZE, self.ALIGNMENT)
        self.owner = [0] * (self.SIZE + 1)
        self.owner[0] = -1

    def expected(self, nbytes: int) -> int | None:
        best: tuple[int, int] | None = None
        start = 1
        while start <= self.SIZE:
            if self.owner[start]:
                start += 1
                continue
            end = start
            while end < self.SIZE and not self.owner[end + 1]:
                end += 1
            aligned = start
            while aligned % self.ALIGNMENT:
                aligned += 1
            room = end - aligned + 1
            if room >= nbytes and (best is None or room < best[0]):
                best = room, aligned
            start = end + 1
        return None if best is None else best[1]

    @rule(nbytes=st.integers(1, 20))
    def allocate(self, nbytes: int) -> None:
        wanted = self.expected(nbytes)
        if wanted is None:
            with pytest.raises(pl.DoesNotFitError):
                self.pool.allocate(nbytes)
            return
        assert self.pool.allocate(nbytes) == wanted
        self.owner[wanted : wanted + nbytes] = [wanted] * nbytes

    @precondition(lambda self: any(mark > 0 for mark in self.owner))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted({mark for mark in self.owner if mark > 0})))
        self.pool.free(address)
        self.owner = [0 if mark == address else mark for mark in self.owner]

    @invariant()
    def blocks_and_holes_are_the_marked_and_the_free(self) -> None:
        live = {(block.start, block.nbytes) for block in self.pool}
        assert live == {(m, self.owner.count(m)) for m in self.owner if m > 0}
        assert sum(hole.nbytes for hole in self.pool.holes) == self.owner.count(0)


TestAgainstMarkedBytes = AgainstMarkedBytes.TestCase
TestAgainstMarkedBytes.settings = settings(max_examples=40, stateful_step_count=30)
