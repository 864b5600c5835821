"""The tightest bound of a partial order: the heaviest set of blocks of which none precedes another.

By Dilworth's theorem for weights it equals the least flow that covers all blocks with chains: the
sum of all bytes, less the bytes that blocks can pass to successors. That is a maximum flow between
two copies of the blocks. It is only for bounds on request, as it is slow for thousands of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.scheduler.packing.relation import Conflicts


def find_heaviest_antichain(
    sizes: Sequence[int], conflicts: Conflicts, starts: Sequence[int]
) -> int:
    """Return the most bytes of blocks that all conflict with each other.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each block.
    conflicts : Conflicts
        From a partial order by `find_conflicts`.
    starts : sequence of int
        The point where each block is first written, in the topological order: of two blocks without
        a conflict, the one with the smaller start precedes the other.
    """
    flow = _Flow(sizes, conflicts, starts)
    while flow.augment():
        pass
    return sum(sizes) - flow.value


class _Flow:
    """Bytes passed from left copies to right ones; sets of blocks are bits of integers."""

    def __init__(self, sizes: Sequence[int], conflicts: Conflicts, starts: Sequence[int]) -> None:
        order = sorted(
            (index for index in range(len(sizes)) if sizes[index]), key=starts.__getitem__
        )
        place = {index: bit for bit, index in enumerate(order)}
        everything = (1 << len(order)) - 1
        self._next = []
        for bit, index in enumerate(order):
            near = sum(1 << place[o] for o in conflicts.near(index).tolist() if o in place)
            self._next.append(everything & ~near & ~((2 << bit) - 1))
        self._left = [sizes[index] for index in order]
        self._right = list(self._left)
        self._sent: list[dict[int, int]] = [{} for _ in order]
        self.value = 0

    def augment(self) -> bool:
        """Send more along a shortest path, if there is one, from left copies with bytes."""
        came: dict[int, int] = {}
        back: dict[int, int] = {}
        queue = [index for index, rest in enumerate(self._left) if rest]
        roots = set(queue)
        fresh = (1 << len(self._left)) - 1
        for left in queue:
            found = self._next[left] & fresh
            fresh &= ~found
            while found:
                bit = found & -found
                found ^= bit
                right = bit.bit_length() - 1
                came[right] = left
                if self._right[right]:
                    self._send(right, came, back, roots)
                    return True
                for other in self._sent[right]:
                    if other not in back and other not in roots:
                        back[other] = right
                        queue.append(other)
        return False

    def _send(
        self, right: int, came: dict[int, int], back: dict[int, int], roots: set[int]
    ) -> None:
        way = [(came[right], right)]
        amount = self._right[right]
        while way[-1][0] not in roots:
            left = way[-1][0]
            middle = back[left]
            amount = min(amount, self._sent[middle][left])
            way.append((came[middle], middle))
        amount = min(amount, self._left[way[-1][0]])
        self._right[right] -= amount
        self._left[way[-1][0]] -= amount
        self.value += amount
        for place, (left, target) in enumerate(way):
            self._sent[target][left] = self._sent[target].get(left, 0) + amount
            if place + 1 < len(way):
                middle = way[place + 1][1]
                self._sent[middle][left] -= amount
                if not self._sent[middle][left]:
                    del self._sent[middle][left]
