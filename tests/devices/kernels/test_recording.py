from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plait.devices.kernels.blocks import Recording
from plait.devices.kernels.registry import run_in_order


def recorded(xp: Any = np, dtype: str = "float32") -> Recording:
    return Recording(xp, np.dtype(dtype))


def test_nothing_is_computed_while_a_formula_is_noted() -> None:
    y = np.zeros(3, np.float32)
    recording = recorded()
    recording.add(np.ones(3, np.float32), 1, out=y)
    assert not y.any()
    run_in_order(recording.steps)()
    assert y.tolist() == [2, 2, 2]


def test_steps_see_what_the_operands_hold_when_they_run() -> None:
    x, y = np.zeros(2, np.float32), np.empty(2, np.float32)
    recording = recorded()
    recording.multiply(x, 3, out=y)
    recording.subtract(1, y, out=y)
    for value in (1, 2):
        x.fill(value)
        run_in_order(recording.steps)()
        assert y.tolist() == [1 - 3 * value] * 2


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extrema_take_their_output_as_numpy_wants_it(name: str) -> None:
    x, y = np.array([-1, 5], np.float32), np.empty(2, np.float32)
    recording = recorded()
    getattr(recording, name)(x, 2, out=y)
    run_in_order(recording.steps)()
    assert y.tolist() == getattr(np, name)(x, 2).tolist()


def test_clip_bounds_both_sides() -> None:
    x, y = np.array([-1, 0.5, 5], np.float32), np.empty(3, np.float32)
    recording = recorded()
    recording.clip(x, 0, 1, out=y)
    run_in_order(recording.steps)()
    assert y.tolist() == [0, 0.5, 1]


def test_copies_may_be_masked() -> None:
    y, mask = np.ones(2, np.float32), np.array([True, False])
    recording = recorded()
    recording.copyto(y, 0, where=mask)
    run_in_order(recording.steps)()
    assert y.tolist() == [0, 1]


def test_numbers_become_arrays_of_the_dtype_for_numpy_alone() -> None:
    other = SimpleNamespace(**vars(np))
    x = np.ones(1, np.float64)
    for module, kind in ((np, np.ndarray), (other, float)):
        recording = recorded(module, "float64")
        recording.add(x, 0.1, out=x)
        (step,) = recording.steps
        assert isinstance(step, partial)
        assert isinstance(step.args[1], kind)
        assert step.args[1] == 0.1
