"""The exact search as machine code. It needs Numba, and is imported only if it pays.

Compiling takes ten seconds once, and is kept on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ...devices.compiled.jit import inline, machine_code
from . import search
from .best import Budget
from .exact import SearchEngine, find
from .problem import Problem
from .relation import Block, Indices, Intervals


@cache
def load_engine() -> SearchEngine:
    for helper in search.HELPERS:
        inline(helper)
    made = SearchEngine("compiled", machine_code()(search.search), 2000, _to_array)
    find(Problem([Block(1)], Intervals([0], [1])), 1, made, Budget(seconds=600))
    return made


def _to_array(values: Sequence[int]) -> Indices:
    return np.array(values, np.int64)
