"""Learning rates that change with the step, the number of items that went before.

A schedule is any function of the step, a float64 term, that returns the rate as such a term;
optimizers get the rate from `Progress`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ..gradients.formula import Formula, Number, Term
from ..values.errors import ShapeError
from .parameters import check_above, check_not_below

Schedule: TypeAlias = Callable[[Term], Term]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant rate."""

    rate: float

    def __post_init__(self) -> None:
        check_not_below("the learning rate", self.rate)

    def __call__(self, step: Term) -> Term:
        return step.formula.constant(self.rate, step.dtype)


@dataclass(frozen=True, slots=True)
class StepDecay:
    """rate · factor^floor(step / every)."""

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_decay(self.rate, self.every, self.factor)

    def __call__(self, step: Term) -> Term:
        return self.rate * _raise(self.factor, (step / self.every).op("Floor"))


@dataclass(frozen=True, slots=True)
class ExponentialDecay:
    """rate · factor^(step / every)."""

    rate: float
    every: int
    factor: float

    def __post_init__(self) -> None:
        _check_decay(self.rate, self.every, self.factor)

    def __call__(self, step: Term) -> Term:
        return self.rate * _raise(self.factor, step / self.every)


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """Half a cosine period from `rate` down to `final`, constant after `steps`.

    Source: Loshchilov and Hutter, *SGDR* (2017), equation 5, without restarts.
    """

    rate: float
    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        check_not_below("the learning rate", self.rate)
        check_not_below("the final learning rate", self.final)
        check_above("the number of steps", self.steps)

    def __call__(self, step: Term) -> Term:
        end = step.formula.constant(self.steps, step.dtype)
        wave = (step.op("Min", end) * (math.pi / self.steps)).op("Cos")
        return (1 + wave) * ((self.rate - self.final) / 2) + self.final


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A linear increase to the first rate of another schedule, which starts after `steps`.

    The rate is then(0) · (step + 1) / (steps + 1) before. Source: Goyal et al. (2017), section 2.2.
    """

    steps: int
    then: Schedule

    def __post_init__(self) -> None:
        check_above("the number of steps", self.steps)

    def __call__(self, step: Term) -> Term:
        zero, one = (step.formula.constant(number, step.dtype) for number in (0, 1))
        rise = ((step + 1) / (self.steps + 1)).op("Min", one)
        return self.then((step - self.steps).op("Max", zero)) * rise


def _raise(base: float, exponent: Term) -> Term:
    return exponent.formula.constant(base, exponent.dtype) ** exponent


def _check_decay(rate: float, every: int, factor: float) -> None:
    check_not_below("the learning rate", rate)
    check_above("the number of steps between two rates", every)
    check_above("the factor of the learning rate", factor)


Rate: TypeAlias = "float | str | Schedule"
"""A learning rate: a number, the name of a tensor that holds one, or a function of the step."""

SCALAR = "float64"
"""1 - 0.999^t would lose four digits in float32; numbers that are single cost nothing."""


class Progress:
    """The step and rate of an optimizer, besides a variable and its gradient.

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
        """The number of earlier items, as float64; counted only if it is used."""
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
        """Return `value` for computing in `dtype`: a tensor is cast, a number stays as it is."""
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
