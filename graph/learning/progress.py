"""Progress of training: the step, and the learning rate there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ..errors import ShapeError
from ..gradients import Formula, Term
from ..gradients.formula import Number
from .parameters import check_not_below
from .schedules import Schedule

Rate: TypeAlias = "float | str | Schedule"
"""A learning rate: a number, the name of a tensor that holds one, or a function of the step."""

SCALAR = "float64"
"""1 - 0.999^t would lose four digits in float32; numbers that are single cost nothing."""


class Progress:
    """What an optimizer may know besides a variable and its gradient.

    Attributes
    ----------
    formula : Formula
        Where nodes are written.
    """

    def __init__(self, formula: Formula, rate: Rate, steps: Callable[[], Term]) -> None:
        self.formula = formula
        self._rate = rate
        self._steps = steps

    @cached_property
    def step(self) -> Term:
        """How many items went before, as float64; only who asks for it has it counted."""
        return self._steps().cast(SCALAR)

    @cached_property
    def count(self) -> Term:
        """Which item this is, from 1 on, as float64."""
        return self.step + 1

    @cached_property
    def rate(self) -> Number | Term:
        """The learning rate: a number, or a term that holds one float64."""
        if isinstance(self._rate, str):
            return self._checked(self.formula.term(self._rate))
        if callable(self._rate):
            return self._checked(self._rate(self.step))
        check_not_below("the learning rate", self._rate)
        return self._rate

    def scalar(self, value: Number | Term, dtype: np.dtype[np.floating]) -> Number | Term:
        """Return a number or float64 to compute with in another dtype."""
        return value.cast(dtype) if isinstance(value, Term) else value

    def _checked(self, rate: Term) -> Term:
        spec = rate.spec
        if spec.dtype.kind != "f" or spec.shape not in ((), None):
            raise ShapeError(
                f"the learning rate {rate.name!r} is {spec}",
                at=self.formula.builder.name,
                fix="pass a tensor that holds one float, of shape ()",
            )
        return rate.cast(SCALAR)
