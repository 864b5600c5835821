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
    """The protocol of optimizers; your own need only these members."""

    @property
    def learning_rate(self) -> Rate:
        """The learning rate: a number, the name of a tensor, or a schedule."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots of each variable."""

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        """Return the update of variables whose terms have a dtype.

        Terms common to all variables are computed here, once. Terms are at least as wide as
        float32, whatever the variables' dtype.
        """
