"""Each optimizer's update against the same formula written apart, over some steps."""

from __future__ import annotations

from typing import Any

import learning_oracles as oracles
import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_oracles import AnyArray, updated
from plait.graph.learning import SGD, Adam, AdamW, Optimizer, RMSProp

seeds = st.integers(0, 1000)
fractions = st.sampled_from([0.0, 0.5, 0.9, 0.99])
rates = st.sampled_from([1.0, 0.1, 1e-3])
decays = st.sampled_from([0.0, 0.01, 0.1])
few = settings(max_examples=12)


def steps(seed: int) -> tuple[AnyArray, list[AnyArray]]:
    """Return where to begin, and gradients of very different sizes."""
    random = np.random.default_rng(seed)
    sizes = np.array([1e-4, 1.0, 100.0])
    return random.normal(size=3), [random.normal(size=3) * sizes for _ in range(4)]


@given(seeds, rates, fractions, st.booleans(), decays)
@few
def test_sgd(seed: int, rate: float, momentum: float, nesterov: bool, decay: float) -> None:
    nesterov = nesterov and momentum > 0
    x, gradients = steps(seed)
    wanted = oracles.sgd(
        x, gradients, lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )
    found = updated(SGD(rate, momentum, nesterov, decay), x, gradients)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@given(seeds, rates, fractions, fractions, st.sampled_from([1e-8, 1e-4]))
@few
def test_adam(seed: int, rate: float, beta1: float, beta2: float, epsilon: float) -> None:
    x, gradients = steps(seed)
    wanted = oracles.adam(x, gradients, lr=rate, betas=(beta1, beta2), eps=epsilon)
    found = updated(Adam(rate, beta1, beta2, epsilon), x, gradients)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


@given(seeds, rates, decays)
@few
def test_adamw(seed: int, rate: float, decay: float) -> None:
    x, gradients = steps(seed)
    wanted = oracles.adam(x, gradients, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    found = updated(AdamW(rate, weight_decay=decay), x, gradients)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


@given(seeds, rates, fractions, fractions)
@few
def test_rmsprop(seed: int, rate: float, decay: float, momentum: float) -> None:
    x, gradients = steps(seed)
    wanted = oracles.rmsprop(x, gradients, lr=rate, alpha=decay, eps=1e-8, momentum=momentum)
    found = updated(RMSProp(rate, decay, momentum=momentum), x, gradients)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_the_first_step_of_adam_is_as_long_as_the_rate_in_float32_too() -> None:
    """1 - beta2^1 computed in float32 is wrong in the fourth digit."""
    x = np.zeros(3, "float32")
    found = updated(Adam(0.1), x, [np.array([-1e-3, 1.0, 1e3], "float32")])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.1 * (1 - 1e-5), -0.1, -0.1], rtol=5e-7)


def test_a_gradient_of_zero_leaves_a_variable_as_it_is() -> None:
    x = np.array([1.0, -2.0, 0.0])
    optimizers: list[Optimizer] = [SGD(0.1, 0.9, True), Adam(), RMSProp(momentum=0.9)]
    for optimizer in optimizers:
        assert updated(optimizer, x, [np.zeros(3)] * 2).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: SGD(0.1, momentum=1.0), "momentum is 1"),
        (lambda: SGD(0.1, nesterov=True), "nesterov without momentum"),
        (lambda: SGD(0.1, weight_decay=-1), "weight_decay is -1"),
        (lambda: Adam(beta1=1.5), "beta1 is 1.5"),
        (lambda: Adam(beta2=-0.1), "beta2 is -0.1"),
        (lambda: Adam(epsilon=0), "epsilon is 0"),
        (lambda: AdamW(weight_decay=float("nan")), "weight_decay is nan"),
        (lambda: AdamW(epsilon=-1), "epsilon is -1"),
        (lambda: RMSProp(decay=1), "decay is 1"),
        (lambda: RMSProp(momentum=2), "momentum is 2"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any, wrong: str) -> None:
    with pytest.raises(pl.GraphError, match=wrong):
        make()


def test_a_negative_learning_rate_is_refused() -> None:
    with pytest.raises(pl.GraphError, match="learning rate is -1"):
        updated(SGD(-1), np.zeros(1), [])
