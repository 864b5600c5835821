"""Only what nothing else leads to is given away of what a Python function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plait.devices.donation import check_unshared

KEPT: list[Any] = []


def keep(value: Any) -> Any:
    KEPT.append(value)
    return value


def fresh() -> Any:
    return np.arange(12.0).reshape(3, 4).copy()


def call(function: Callable[[], Any]) -> list[bool]:
    results = function()
    return check_unshared(results)


@pytest.mark.parametrize(
    "function",
    [
        fresh,
        lambda: fresh()[None],
        lambda: fresh()[:2],
        lambda: np.zeros(()),
        lambda: np.zeros((0, 4)),
        lambda: fresh().T.copy(),
        lambda: fresh().T,
        lambda: fresh()[:, 1:],
    ],
)
def test_arrays_that_only_the_caller_has_are_free(function: Callable[[], Any]) -> None:
    assert call(function) == [True]
    assert call(lambda: (function(), function())) == [True, True]


def _twice() -> Any:
    array = fresh()
    return array, array, array[:2]


@pytest.mark.parametrize(
    "function",
    [
        lambda: keep(fresh()),
        lambda: keep(fresh())[None],
        lambda: keep(fresh()[None]),
        lambda: keep((fresh(), fresh())),
        lambda: (keep(memoryview(fresh())), KEPT[-1].obj)[1],
        lambda: np.frombuffer(bytearray(32), "float64"),
        lambda: np.ma.masked_array(fresh()),
        lambda: [fresh()],
        lambda: None,
        _twice,
    ],
)
def test_what_somebody_else_may_hold_or_cannot_be_read_as_it_is_stays(
    function: Callable[[], Any],
) -> None:
    assert not any(call(function))


def test_an_argument_that_is_returned_is_not_free() -> None:
    argument = fresh()
    assert call(lambda: argument) == [False]
    assert call(lambda: (argument, fresh())) == [False, True]
