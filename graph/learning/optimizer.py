"""Optimizers: which slots they keep, and how a variable follows its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..gradients import Term
from .progress import Progress, Rate

Slots: TypeAlias = Mapping[str, Term]
"""What is kept for a variable from item to item: tensors of its shape, zeros to begin with."""

Update: TypeAlias = Callable[[Term, Term, Slots], tuple[Term, Slots]]
"""From a variable's value, its gradient and its slots to the next value and slots."""


class Optimizer(Protocol):
    """How variables follow their gradients; your own need these members alone."""

    @property
    def learning_rate(self) -> Rate:
        """How far to go: a number, the name of a tensor, or a schedule."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of what is kept for each variable."""

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        """Return the update of variables whose terms have a dtype.

        What is the same for all variables is computed here, once. Terms are at least as wide as
        float32, whatever the variables are.
        """
