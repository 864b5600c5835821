"""Gradients clipped one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plait as pl
import pytest
from learning_oracles import on_cpu
from numpy.typing import NDArray
from plait.graph.learning import clip_by_norm, clip_by_value

A, B = np.array([3.0, -4.0], "float32"), np.array([[0.0, 0.5]], "float64")


def clipped(
    clip: Callable[[pl.GraphBuilder, Sequence[str], float], Sequence[str]], bound: float
) -> list[NDArray[np.floating]]:
    b = pl.GraphBuilder("clipped")
    names = [b.input("a", A.dtype, A.shape), b.input("b", B.dtype, B.shape)]
    for number, made in enumerate(clip(b, names, bound)):
        b.output(f"y{number}", made)
    found = on_cpu(b.build(), {"a": A, "b": B})
    assert [found["y0"].dtype, found["y1"].dtype] == [A.dtype, B.dtype]
    return [found["y0"], found["y1"]]


def test_each_element_is_bounded_by_value() -> None:
    a, b = clipped(clip_by_value, 3.5)
    assert (a.tolist(), b.tolist()) == ([3, -3.5], [[0, 0.5]])


def test_only_gradients_longer_than_the_norm_are_scaled() -> None:
    a, b = clipped(clip_by_norm, 1)
    np.testing.assert_allclose(a, [0.6, -0.8], rtol=1e-6)
    assert b.tolist() == [[0, 0.5]]


def test_a_gradient_of_zeros_stays_so() -> None:
    b = pl.GraphBuilder("clipped")
    b.output("y", clip_by_norm(b, [b.input("a", "float32", (2,))], 1)[0])
    assert on_cpu(b.build(), {"a": np.zeros(2, "float32")})["y"].tolist() == [0, 0]


def test_bounds_are_above_zero() -> None:
    b = pl.GraphBuilder("clipped")
    with pytest.raises(pl.GraphError, match="limit of gradients is 0"):
        clip_by_value(b, [], 0)
    with pytest.raises(pl.GraphError, match="longest norm is -1"):
        clip_by_norm(b, [], -1)
