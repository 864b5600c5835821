"""Blocks that want a place, and the places they got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import PlanError


class PackingError(PlanError):
    """The blocks contradict each other, or are no blocks."""


class Block(NamedTuple):
    """Bytes that want a place.

    Parameters
    ----------
    nbytes : int
        Zero is allowed: such a block is in nobody's way.
    alignment : int
        The offset is to be a multiple of it.
    offset : int, optional
        Where the block has to lie.
    group : hashable, optional
        Blocks of a group share their bytes: they start at the same offset, and count as one.
    """

    nbytes: int
    alignment: int = 1
    offset: int | None = None
    group: object = None


@dataclass(frozen=True, slots=True)
class Packing:
    """Where every block lies.

    Parameters
    ----------
    offsets : tuple of int
        Bytes from the start, one per block.
    nbytes : int
        Where the last block ends: the peak.
    lower_bound : int
        No packing takes fewer bytes.
    algorithm : str
        What found it.
    seconds : float
        How long that took.
    """

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int = 0
    algorithm: str = ""
    seconds: float = 0.0

    @property
    def is_optimal(self) -> bool:
        """True when no packing can be smaller."""
        return self.nbytes <= self.lower_bound


def check_blocks(blocks: Sequence[Block]) -> None:
    """Raise PackingError for a block that no offset suits."""
    for index, block in enumerate(blocks):
        what = ""
        if block.nbytes < 0:
            what = f"{block.nbytes} bytes"
        elif block.alignment < 1:
            what = f"an alignment of {block.alignment}"
        elif block.offset is not None and (block.offset < 0 or block.offset % block.alignment):
            what = f"the offset {block.offset}, which is not a multiple of {block.alignment}"
        if what:
            raise PackingError(
                f"a block cannot have {what}", at=f"block {index}", fix="correct the block"
            )
