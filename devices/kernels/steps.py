"""Kernels as sequences of array operations, bound to their arguments when a plan is opened.

Statistics of half-precision tensors are computed in single precision: such kernels work in a
scratch buffer that is wide enough, others work in their output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.tensor import Array, TensorSpec
from .registry import ArrayModule

Step: TypeAlias = Callable[[], object]


def in_order(steps: Iterable[Step]) -> Step:
    """Return a step that takes all steps, one after the other."""
    listed = tuple(steps)
    if len(listed) == 1:
        return listed[0]

    def run() -> None:
        for step in listed:
            step()

    return run


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for sums over a tensor: at least single precision."""
    return np.result_type(dtype, np.float32)


def work_scratch(x: TensorSpec, y: TensorSpec) -> tuple[TensorSpec, ...]:
    """Scratch: a buffer like y to work in, unless y itself is precise enough."""
    wide = working_dtype(x.dtype)
    return () if y.dtype == wide else (TensorSpec(wide, y.shape),)


def widen(
    xp: ArrayModule, x: Array, y: Array, scratch: Iterable[Array]
) -> tuple[Array, Array, list[Step]]:
    """Return x in the working dtype, an array to work in, and the steps that widen x.

    `scratch` is what `work_scratch` asked for. Writing to the work array may overwrite x.
    """
    wide = working_dtype(x.dtype)
    work = y if y.dtype == wide else next(iter(scratch))
    if x.dtype == wide:
        return x, work, []
    return work, work, [partial(xp.copyto, work, x)]
