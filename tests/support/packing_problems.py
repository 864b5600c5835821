"""Random packing problems, shapes of real networks, and peaks found by trying everything."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import permutations

from hypothesis import strategies as st
from plait.scheduler.packing import Block, Conflicts, Intervals
from plait.scheduler.packing.relation import Relation


@st.composite
def lifetimes(draw: st.DrawFn, most: int = 12) -> Intervals:
    spans = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=most))
    return Intervals([a for a, _ in spans], [a + length for a, length in spans])


@st.composite
def conflicts(draw: st.DrawFn, most: int = 12) -> Conflicts:
    count = draw(st.integers(0, most))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []
    return Conflicts.of_pairs(count, [a for a, _ in chosen], [b for _, b in chosen])


@st.composite
def problems(
    draw: st.DrawFn, relations: st.SearchStrategy[Relation], *, plain: bool = False
) -> tuple[list[Block], Relation]:
    """Blocks and their relation; unless plain, some aligned, some in groups, one in its place."""
    relation = draw(relations)
    sizes = draw(st.lists(st.integers(0, 40), min_size=len(relation), max_size=len(relation)))
    if plain:
        return [Block(size) for size in sizes], relation
    blocks = [
        Block(size, draw(st.sampled_from([1, 2, 3, 4, 8])), group=draw(st.sampled_from("abc")))
        if draw(st.integers(0, 3)) == 0
        else Block(size, draw(st.sampled_from([1, 4, 6])))
        for size in sizes
    ]
    if blocks and blocks[0].group is None:
        blocks[0] = blocks[0]._replace(offset=draw(st.integers(0, 5)) * blocks[0].alignment)
    return blocks, relation


def conflicts_in(relation: Relation) -> Conflicts:
    """Return a relation as pairs."""
    return relation.conflicts if isinstance(relation, Intervals) else relation


def smallest_peak(sizes: Sequence[int], relation: Relation) -> int:
    """Return the smallest peak of all packings: first fit in some order finds one."""
    near = conflicts_in(relation).near
    best = sum(sizes)
    for order in permutations(range(len(sizes))):
        offsets: dict[int, int] = {}
        for block in order:
            taken = sorted((offsets[o], offsets[o] + sizes[o]) for o in near(block) if o in offsets)
            offset = 0
            for start, end in taken:
                if start - offset >= sizes[block]:
                    break
                offset = max(offset, end)
            offsets[block] = offset
        best = min(best, max((offsets[b] + sizes[b] for b in offsets), default=0))
    return best


def guillotine(
    count: int, seed: int, length: int = 64, height: int = 4096
) -> tuple[list[int], Intervals]:
    """Cut a rectangle of time and bytes into so many: they can be packed without a gap."""
    dice = random.Random(seed)
    pieces = [(0, length, height)]
    while len(pieces) < count:
        place = dice.randrange(len(pieces))
        start, end, size = pieces[place]
        along, across = end - start > 1, size > 1
        if not (along or across):
            continue
        if along and (not across or dice.random() < 0.5):
            cut = dice.randrange(start + 1, end)
            parts = [(start, cut, size), (cut, end, size)]
        else:
            cut = dice.randrange(1, size)
            parts = [(start, end, cut), (start, end, size - cut)]
        pieces[place : place + 1] = parts
    dice.shuffle(pieces)
    lives = Intervals([a for a, _, _ in pieces], [b for _, b, _ in pieces])
    return [size for _, _, size in pieces], lives


def network(kind: str, count: int, seed: int = 0) -> tuple[list[int], Intervals]:
    """Return sizes and lifetimes of a net's tensors, run node after node.

    A tensor is alive from the node that makes it to its last reader, both included.
    """
    dice = random.Random(seed)
    sizes, last = [], list(range(count))
    for tensor in range(count):
        sizes.append(64 * _SIZES[kind](tensor, count, dice))
        for source in _SOURCES[kind](tensor, count, dice):
            last[source] = max(last[source], tensor)
    return sizes, Intervals(range(count), [end + 1 for end in last])


def _block_of(tensor: int, width: int) -> list[int]:
    """The sources in blocks of `width` tensors, the first of which is read by the last too."""
    before = [tensor - 1] if tensor else []
    return [*before, tensor - width + 1] if tensor % width == width - 1 else before


def _halving(tensor: int, count: int) -> int:
    return max(1, 4096 >> (8 * tensor // count))


_SIZES: dict[str, Callable[[int, int, random.Random], int]] = {
    "chain": lambda t, n, d: d.randint(1, 4096),
    "resnet": lambda t, n, d: _halving(t, n),
    "unet": lambda t, n, d: _halving(min(t, n - 1 - t) * 2, n),
    "inception": lambda t, n, d: _halving(t, n) * d.choice([1, 2, 3]),
    "transformer": lambda t, n, d: (64, 64, 64, 64, 256, 64, 64, 256)[t % 8],
    "wired": lambda t, n, d: d.choice([16, 32, 64, 128]),
    "dense": lambda t, n, d: d.randint(8, 64),
}
_SOURCES: dict[str, Callable[[int, int, random.Random], list[int]]] = {
    "chain": lambda t, n, d: [t - 1] if t else [],
    "resnet": lambda t, n, d: _block_of(t, 4),
    "unet": lambda t, n, d: ([t - 1] if t else []) + ([n - 1 - t] if 2 * t > n else []),
    "inception": lambda t, n, d: (
        [max(0, t - 1 - t % 5)] if t % 5 else list(range(max(0, t - 4), t))
    ),
    "transformer": lambda t, n, d: _block_of(t, 8) + ([t - 2] if t > 2 else []),
    "wired": lambda t, n, d: [max(0, t - d.randint(1, 30)) for _ in range(2)] if t else [],
    "dense": lambda t, n, d: ([t - 1] if t else []) + ([n - 1 - t] if 2 * t > n else []),
}
KINDS = tuple(_SIZES)
