"""A pool of addresses that are allocated and freed at run time, without a plan.

It holds no bytes: an address is an offset from 1 on, so that 0 can mean "nowhere". Blocks are
placed by best fit: the hole with least room after its first aligned address, the lowest of equals.
Adjacent holes are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from ...graph.core.printing import format_count
from ..errors import DoesNotFitError, PlanError


class PoolBlock(NamedTuple):
    """Addresses from `start` to `end`, both included."""

    start: int
    end: int
    is_hole: bool

    @property
    def nbytes(self) -> int:
        return self.end - self.start + 1


class VirtualPool:
    """Addresses 1 to `nbytes`, of which blocks are allocated and freed.

    Parameters
    ----------
    alignment : int, default 1
        Every block starts at a multiple of it.

    Raises
    ------
    PlanError
        If either is below 1.

    Examples
    --------
    >>> pool = VirtualPool(64)
    >>> pool.allocate(10), pool.allocate(8), pool.allocate(2)
    (1, 11, 19)
    >>> pool.free(11)
    >>> pool.allocate(9), pool.allocate(8)
    (21, 11)
    """

    def __init__(self, nbytes: int, alignment: int = 1) -> None:
        if nbytes < 1 or alignment < 1:
            raise PlanError(
                f"a pool of {nbytes} bytes with alignment {alignment}", fix="use 1 or more of each"
            )
        self.nbytes, self.alignment = nbytes, alignment
        self._blocks = [PoolBlock(1, nbytes, is_hole=True)]

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block.

        Raises
        ------
        DoesNotFitError
            If no hole has room for it.
        PlanError
            If it has no bytes.
        """
        if nbytes < 1:
            raise PlanError(f"a block of {nbytes} bytes", fix="allocate 1 byte or more")
        fitting = [
            (hole.end - self._aligned(hole), index)
            for index, hole in enumerate(self._blocks)
            if hole.is_hole and self._aligned(hole) + nbytes - 1 <= hole.end
        ]
        if not fitting:
            raise self._full_error(nbytes)
        _, index = min(fitting)
        hole = self._blocks[index]
        start = self._aligned(hole)
        parts = (
            PoolBlock(hole.start, start - 1, is_hole=True),
            PoolBlock(start, start + nbytes - 1, is_hole=False),
            PoolBlock(start + nbytes, hole.end, is_hole=True),
        )
        self._blocks[index : index + 1] = [part for part in parts if part.nbytes]
        return start

    def free(self, address: int) -> None:
        """Free the block at an address.

        Raises
        ------
        PlanError
            If no block starts there.
        """
        index = self._find(address)
        if index is None:
            raise PlanError(
                f"no block starts at address {address!r}",
                at=f"a pool with {format_count(sum(1 for _ in self), 'block')}",
                fix="free what allocate returned, and once",
            )
        first = last = index
        if last + 1 < len(self._blocks) and self._blocks[last + 1].is_hole:
            last += 1
        if first > 0 and self._blocks[first - 1].is_hole:
            first -= 1
        merged = PoolBlock(self._blocks[first].start, self._blocks[last].end, is_hole=True)
        self._blocks[first : last + 1] = [merged]

    def __contains__(self, address: int) -> bool:
        return self._find(address) is not None

    def __iter__(self) -> Iterator[PoolBlock]:
        """Yield the blocks that are allocated, by address."""
        return (block for block in self._blocks if not block.is_hole)

    @property
    def holes(self) -> tuple[PoolBlock, ...]:
        return tuple(block for block in self._blocks if block.is_hole)

    def dump(self) -> str:
        """Return a line per block: its addresses, and H for a hole or S for a used block."""
        return "\n".join(
            f"{block.start}-{block.end} {'H' if block.is_hole else 'S'}" for block in self._blocks
        )

    def _aligned(self, hole: PoolBlock) -> int:
        return -(-hole.start // self.alignment) * self.alignment

    def _find(self, address: int) -> int | None:
        index = bisect_right(self._blocks, address, key=lambda block: block.start) - 1
        if index < 0:
            return None
        block = self._blocks[index]
        return index if block.start == address and not block.is_hole else None

    def _full_error(self, nbytes: int) -> DoesNotFitError:
        holes = [hole.nbytes for hole in self.holes]
        return DoesNotFitError(
            f"a block of {nbytes:,} bytes does not fit into a pool of {self.nbytes:,}",
            at=f"{sum(holes):,} bytes are free, {max(holes, default=0):,} of them in one piece, "
            f"alignment {self.alignment}",
            fix="free blocks, or use a larger pool",
        )
