"""Packing: offsets for blocks of which some may not overlap. Independent of graphs."""

from .check import check
from .packing import pack
from .partial_order import find_conflicts
from .relation import Block, Conflicts, Intervals, Packing, PackingError

__all__ = [
    "Block",
    "Conflicts",
    "Intervals",
    "Packing",
    "PackingError",
    "check",
    "find_conflicts",
    "pack",
]
