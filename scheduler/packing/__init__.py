"""Packing: offsets for blocks of which some may not overlap. Independent of graphs.

Examples
--------
>>> from plait import packing
>>> lives = packing.Intervals(lower=[0, 0, 2], upper=[2, 4, 4])
>>> packing.pack([64, 32, 64], lives).nbytes
96
"""

from .check import check
from .packing import pack
from .partial_order import find_conflicts
from .relation import Block, Conflicts, Intervals, Packing, PackingError, Stacked

__all__ = [
    "Block",
    "Conflicts",
    "Intervals",
    "Packing",
    "PackingError",
    "Stacked",
    "check",
    "find_conflicts",
    "pack",
]
