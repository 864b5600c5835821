"""Optimizers: the slots that each keeps, a few numbers, and the formula of one update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..gradients.formula import Term
from ..values.errors import GraphError
from .parameters import check_above, check_fraction, check_not_below
from .schedules import Progress, Rate

Slots: TypeAlias = Mapping[str, Term]
"""Tensors kept for a variable from item to item, in its shape, initially zeros."""

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
        """Return the update of variables at `progress`, which computes with terms of `dtype`.

        Terms common to all variables are computed here, once. They are at least as wide as float32
        for any dtype of the variables.
        """


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent: x - rate · v, where v = momentum · v + g.

    Parameters
    ----------
    momentum : float, default 0
        The share of the last step in this one.
    nesterov : bool, default False
        Whether to step by momentum · v + g instead of v. Source: Sutskever et al. (2013), in the
        form that evaluates gradients where the variables are.
    weight_decay : float, default 0
        The share of x that is added to its gradient.
    """

    learning_rate: Rate
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_fraction("momentum", self.momentum)
        check_not_below("weight_decay", self.weight_decay)
        if self.nesterov and not self.momentum:
            raise GraphError("nesterov without momentum", fix="pass a momentum too, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum, where there is one."""
        return ("momentum",) if self.momentum else ()

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        rate = progress.scalar(progress.rate, dtype)

        def update(x: Term, g: Term, slots: Slots) -> tuple[Term, Slots]:
            g = g + x * self.weight_decay if self.weight_decay else g
            if not self.momentum:
                return x - g * rate, {}
            v = slots["momentum"] * self.momentum + g
            way = v * self.momentum + g if self.nesterov else v
            return x - way * rate, {"momentum": v}

        return update


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam: steps as long as the rate, shorter where gradients disagree.

    m and v are running means of g and g², divided by 1 - beta^t because they start at zero; the
    step is rate · m / (√v + epsilon). Source: Kingma and Ba (2015), algorithm 1.
    """

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_fraction("beta1", self.beta1)
        check_fraction("beta2", self.beta2)
        check_above("epsilon", self.epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        """The running means of gradients and of their squares."""
        return ("mean", "square")

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        # Both divisions are moved from the means to rate and epsilon.
        count = progress.count
        root = _measure_share(self.beta2, count).op("Sqrt")
        rate = (root / _measure_share(self.beta1, count) * progress.rate).cast(dtype)
        epsilon = (root * self.epsilon).cast(dtype)

        def update(x: Term, g: Term, slots: Slots) -> tuple[Term, Slots]:
            m = slots["mean"] * self.beta1 + g * (1 - self.beta1)
            v = slots["square"] * self.beta2 + g * g * (1 - self.beta2)
            return x - m / (v.op("Sqrt") + epsilon) * rate, {"mean": m, "square": v}

        return update


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: variables also shrink by rate · weight_decay at each step.

    Source: Loshchilov and Hutter (2019), algorithm 2, with the schedule within the rate.
    """

    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        Adam.__post_init__(self)
        check_not_below("weight_decay", self.weight_decay)

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        follow = Adam.updates(self, progress, dtype)
        kept = progress.scalar(1 - progress.rate * self.weight_decay, dtype)

        def update(x: Term, g: Term, slots: Slots) -> tuple[Term, Slots]:
            return follow(x * kept, g, slots)

        return update


@dataclass(frozen=True, slots=True)
class RMSProp:
    """Steps divided by the root of the running mean of g², plus epsilon; then as SGD.

    Source: Hinton, *Neural Networks for Machine Learning* (2012), lecture 6e.
    """

    learning_rate: Rate = 1e-2
    decay: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_fraction("decay", self.decay)
        check_fraction("momentum", self.momentum)
        check_above("epsilon", self.epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        """The running mean of squares, and the momentum where there is one."""
        return ("square", "momentum") if self.momentum else ("square",)

    def updates(self, progress: Progress, dtype: np.dtype[Any]) -> Update:
        rate = progress.scalar(progress.rate, dtype)

        def update(x: Term, g: Term, slots: Slots) -> tuple[Term, Slots]:
            square = slots["square"] * self.decay + g * g * (1 - self.decay)
            way = g / (square.op("Sqrt") + self.epsilon)
            if not self.momentum:
                return x - way * rate, {"square": square}
            v = slots["momentum"] * self.momentum + way
            return x - v * rate, {"square": square, "momentum": v}

        return update


def _measure_share(beta: float, count: Term) -> Term:
    """Return 1 - `beta`^`count`: the weight of real values in a running mean that began at 0."""
    return 1 - count.formula.constant(beta, count.dtype) ** count
