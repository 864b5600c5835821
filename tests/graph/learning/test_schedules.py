"""Learning rates over the steps, against the formulas in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from learning_oracles import on_cpu
from plait.graph.gradients.formula import Formula, Term
from plait.graph.learning import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    Schedule,
    StepDecay,
    WarmUp,
)

STEPS = np.array([0.0, 1, 4, 5, 9, 10, 11, 25, 1000])


def rates(schedule: Schedule) -> list[float]:
    """Return the rates at all steps, which one vector stands for."""
    b = pl.GraphBuilder("rates")
    step = Formula(b).term(b.input("step", "float64", STEPS.shape))
    b.output("rate", schedule(step).name)
    found = on_cpu(b.build(), {"step": STEPS})["rate"]
    return [float(rate) for rate in np.broadcast_to(found, STEPS.shape)]


def cosine(step: float) -> float:
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(step, 10) / 10)) / 2


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Constant(0.3), lambda s: 0.3),
        (StepDecay(2.0, 5, 0.5), lambda s: 2 * 0.5 ** (s // 5)),
        (ExponentialDecay(2.0, 5, 0.5), lambda s: 2 * 0.5 ** (s / 5)),
        (CosineDecay(1.0, 10, 0.1), cosine),
        (WarmUp(4, Constant(2.0)), lambda s: 2 * min(s + 1, 5) / 5),
        (
            WarmUp(10, CosineDecay(1.0, 10, 0.1)),
            lambda s: cosine(0) * (s + 1) / 11 if s < 10 else cosine(s - 10),
        ),
        (lambda step: 1 / (step + 1), lambda s: 1 / (s + 1)),
    ],
)
def test_a_schedule_is_its_formula(schedule: Schedule, wanted: Callable[[float], float]) -> None:
    np.testing.assert_allclose(rates(schedule), [wanted(step) for step in STEPS], rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: Constant(-1), "learning rate is -1"),
        (lambda: StepDecay(0.1, 0), "steps between two rates is 0"),
        (lambda: ExponentialDecay(0.1, 5, 0), "factor of the learning rate is 0"),
        (lambda: CosineDecay(0.1, 0), "number of steps is 0"),
        (lambda: CosineDecay(0.1, 5, -1), "final learning rate is -1"),
        (lambda: WarmUp(0, Constant(1)), "number of steps is 0"),
    ],
)
def test_numbers_that_make_no_schedule_are_refused(make: Any, wrong: str) -> None:
    with pytest.raises(pl.GraphError, match=wrong):
        make()


def test_a_rate_that_is_no_single_float_is_refused() -> None:
    b = pl.GraphBuilder("rates")
    w, rate = b.variable("w", 1.0), b.input("rate", "float32", (2,))
    with pytest.raises(pl.ShapeError, match="learning rate 'rate'"):
        pl.learning.minimize(b, b.op("Mul", w, w), pl.learning.SGD(rate))

    def integer(step: Term) -> Term:
        return step.cast("int64")

    with pytest.raises(pl.ShapeError, match="learning rate"):
        pl.learning.minimize(b, b.op("Mul", w, w), pl.learning.SGD(integer))
