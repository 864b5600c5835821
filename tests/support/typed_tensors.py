"""A user's module: mypy knows what it calls, and refuses what is marked; tests run all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_type

import numpy as np
import plait as pl


def compute(x: pl.Tensor) -> dict[str, pl.Tensor]:
    """Return what methods make of a tensor of shape (n, 4): their types are known."""
    hidden = (x @ np.ones((4, 4), "float32") + 0.5).relu(name="hidden")
    assert_type(hidden, pl.Tensor)
    largest, places = assert_type(hidden.topk(2), tuple[pl.Tensor, pl.Tensor])
    left, right = assert_type(hidden.split(2, axis=1), tuple[pl.Tensor, ...])
    assert_type(x.split("/"), list[str])
    return {
        "arithmetic": np.float32(2) * left - 1 / right,
        "reduction": assert_type(x.sum(axis=1, keepdims=True), pl.Tensor),
        "inputs": assert_type(x.clip(0, max=np.float32(6)), pl.Tensor),
        "axes": x.unsqueeze(axis=[0, -1]).reduce_mean(axis=0, keepdims=False),
        "choices": x.gelu(approximate="tanh"),
        "others": x.concat(hidden, left, axis=-1),
        "sequences": x[:, None, :].reshape("n", 1, 2, 2).max_pool(kernel_shape=(2, 2)),
        "largest": largest + places.cast(to="float32"),
    }


def mistakes(x: pl.Tensor) -> Iterator[Callable[[], Any]]:
    """Yield calls that mypy refuses, each for the reason that is named beside it."""
    yield lambda: x.rellu()  # type: ignore[attr-defined]
    yield lambda: x.softmax(axes=1)  # type: ignore[call-arg]
    yield lambda: x.softmax(axis="last")  # type: ignore[arg-type]
    yield lambda: x.gelu(approximate="exact")  # type: ignore[arg-type]
    yield lambda: x.max_pool(strides=[2, 2])  # type: ignore[call-arg]
    yield lambda: x.conv()  # type: ignore[call-arg]
    yield lambda: x.relu(alpha=0.1)  # type: ignore[call-arg]
    yield lambda: x.sum(axis=1, keep=True)  # type: ignore[call-arg]
