"""Packing: offsets for blocks of which some may not overlap. Knows nothing of graphs."""

from .check import check
from .packing import pack
from .partial_order import conflicts_of
from .relation import Block, Conflicts, Intervals, Packing, PackingError

__all__ = [
    "Block",
    "Conflicts",
    "Intervals",
    "Packing",
    "PackingError",
    "check",
    "conflicts_of",
    "pack",
]
