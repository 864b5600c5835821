"""Computing float16 in float32: numpy has neither fast products nor safe sums in float16."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.tensor import Array, TensorSpec
from .registry import ArrayModule, Arrays
from .windows import Step


def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to compute in."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def wider(specs: Sequence[TensorSpec | None]) -> list[TensorSpec]:
    """Return specs of the float32 copies that float16 inputs and outputs need, absent left out."""
    return [
        TensorSpec(np.float32, spec.shape)
        for spec in specs
        if spec is not None and spec.dtype == np.float16
    ]


def widen(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, scratch: Sequence[Array]
) -> tuple[list[Array | None], list[Array], list[Step], list[Step], Sequence[Array]]:
    """Return arrays to compute in, steps to run before and after, and the scratch that is left.

    `scratch` begins with the buffers that `wider` asked for; other dtypes than float16 pass.
    """
    left = list(scratch)
    before: list[Step] = []
    after: list[Step] = []
    wide: list[Array | None] = []
    for array in inputs:
        if array is None or array.dtype != np.float16:
            wide.append(array)
            continue
        wide.append(left.pop(0))
        before.append(partial(xp.copyto, wide[-1], array))
    results = []
    for array in outputs:
        results.append(left.pop(0) if array.dtype == np.float16 else array)
        if results[-1] is not array:
            after.append(partial(xp.copyto, array, results[-1], casting="same_kind"))
    return wide, results, before, after, left
