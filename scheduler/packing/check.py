"""An independent check of packings."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.values.errors import InternalError
from .relation import Block, Intervals, Packing, Relation, Stacked


def check(blocks: Sequence[Block], relation: Relation | Stacked, packing: Packing) -> None:
    """Raise InternalError unless `packing` has a valid place for each of `blocks`.

    Lifetimes in `relation` are swept in order, so that only blocks alive together are compared.
    """
    if len(packing.offsets) != len(blocks):
        raise InternalError(f"{len(packing.offsets)} offsets for {len(blocks)} blocks")
    homes: dict[object, int] = {}
    for index, (block, offset) in enumerate(zip(blocks, packing.offsets, strict=True)):
        if block.group is not None and homes.setdefault(block.group, offset) != offset:
            raise InternalError("a group is torn apart", at=f"block {index}")
        _check_one(index, block, offset, packing.nbytes)
    pairs = _list_overlaps(relation) if isinstance(relation, Intervals) else _list_pairs(relation)
    for a, b in pairs:
        same = blocks[a].group is not None and blocks[a].group == blocks[b].group
        start = max(packing.offsets[a], packing.offsets[b])
        end = min(packing.offsets[a] + blocks[a].nbytes, packing.offsets[b] + blocks[b].nbytes)
        if start < end and not same:
            raise InternalError(f"blocks overlap in {end - start} bytes", at=f"blocks {a}, {b}")


def _check_one(index: int, block: Block, offset: int, nbytes: int) -> None:
    if offset < 0 or offset % block.alignment or offset + block.nbytes > nbytes:
        raise InternalError(f"a block lies at {offset}", at=f"block {index}")
    if block.offset is not None and block.offset != offset:
        raise InternalError(f"a block lies at {offset}, not {block.offset}", at=f"block {index}")


def _list_pairs(relation: Relation | Stacked) -> list[tuple[int, int]]:
    assert not isinstance(relation, Intervals)
    return [(a, b) for a in range(len(relation)) for b in relation.near(a).tolist() if a < b]


def _list_overlaps(lives: Intervals) -> list[tuple[int, int]]:
    events = sorted(
        (time, starts, block)
        for block, (lower, upper) in enumerate(zip(lives.lower, lives.upper, strict=True))
        if lower < upper
        for time, starts in ((int(lower), True), (int(upper), False))
    )
    alive: set[int] = set()
    pairs = []
    for _, starts, block in events:
        if starts:
            pairs += [(block, other) for other in alive]
            alive.add(block)
        else:
            alive.discard(block)
    return pairs
