"""The keys of random numbers, which a session feeds to graphs that draw."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from ....graph.operators.randomness import RANDOM_KEY
from ...errors import SessionError
from ...plans.plan import Plan
from ..opened.feeds import ItemFeeds


class Keys:
    """Numbers items in the order in which they are asked for, or come from their source.

    `are_read` is true when the graph draws random numbers. Raises SessionError if the `seed` is not
    a number from 0 on, below 2⁶⁴.
    """

    def __init__(self, plan: Plan, seed: int) -> None:
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
            raise SessionError(f"the seed is {seed!r}", fix="pass an integer from 0 on, below 2⁶⁴")
        self._seed = int(seed)
        self.are_read = RANDOM_KEY in plan.fed.inputs
        self._numbers = count()

    def added(self, inputs: Any) -> Any:
        """Return `inputs`, with a key of random numbers if the graph reads one that they lack."""
        number = next(self._numbers)
        if not self.are_read or not isinstance(inputs, Mapping) or RANDOM_KEY in inputs:
            return inputs
        return ItemFeeds({**inputs, RANDOM_KEY: np.array([self._seed, number], np.uint64)})
