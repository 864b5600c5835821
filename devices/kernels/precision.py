"""Computing float16 in float32: numpy has neither fast products nor safe sums in float16.

Products need copies of all their operands (`declare_wide_copies`, `widen`). Elementwise and line
kernels work in one buffer like their output (`declare_work`, `prepare_work`). `find_limits` and
`clamp` are for the bounds of any dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array, TensorSpec
from .registry import ArrayModule, Arrays, Step, run_in_order


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which to compute `dtype`: float32 for shorter floats, else itself."""
    return np.dtype(np.float32) if kind_of(dtype) in "fe" and dtype.itemsize < 4 else dtype


def declare_wide_copies(specs: Iterable[TensorSpec | None]) -> list[TensorSpec]:
    """Return the scratch for a float32 copy of each float16 tensor of `specs`; None is left out."""
    return [
        TensorSpec(np.float32, spec.shape)
        for spec in specs
        if spec is not None and compute_dtype(spec.dtype) != spec.dtype
    ]


class Widened(NamedTuple):
    """The arrays of the computation, the steps before and after, and the rest of the scratch."""

    inputs: list[Array | None]
    outputs: list[Array]
    before: list[Step]
    after: list[Step]
    scratch: Sequence[Array]

    def around(self, steps: Iterable[Step]) -> Step:
        """Return the step that runs `steps` between the conversions of inputs and of outputs."""
        return run_in_order((*self.before, *steps, *self.after))


def declare_wide_ends(call: Call, outputs: Specs) -> list[TensorSpec]:
    return declare_wide_copies((call.spec(0), outputs[0]))


def widen(xp: ArrayModule, inputs: Arrays, outputs: Arrays, scratch: Sequence[Array]) -> Widened:
    """Replace float16 arrays of `inputs` and `outputs` by copies, which steps in `xp` convert.

    `scratch` begins with the copies of `declare_wide_copies`.
    """
    left = list(scratch)
    wide = Widened([], [], [], [], left)
    for array in inputs:
        narrow = array is not None and compute_dtype(array.dtype) != array.dtype
        wide.inputs.append(left.pop(0) if narrow else array)
        if narrow:
            wide.before.append(partial(xp.copyto, wide.inputs[-1], array))
    for array in outputs:
        narrow = compute_dtype(array.dtype) != array.dtype
        wide.outputs.append(left.pop(0) if narrow else array)
        if narrow:
            wide.after.append(partial(xp.copyto, array, wide.outputs[-1], casting="same_kind"))
    return wide


def declare_work(x: TensorSpec, y: TensorSpec) -> tuple[TensorSpec, ...]:
    """Return the scratch: a buffer like `y` in the dtype to compute `x` in, if it differs."""
    wide = compute_dtype(x.dtype)
    return () if y.dtype == wide else (TensorSpec(wide, y.shape),)


def declare_wide_work(call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    x = call.spec(0)
    return (TensorSpec(compute_dtype(x.dtype), x.shape), *declare_work(x, outputs[0]))


def prepare_work(
    xp: ArrayModule, x: Array, y: Array, scratch: Iterable[Array]
) -> tuple[Array, Array, list[Step]]:
    """Return `x` in the dtype of the computation, a work array, and the steps in `xp` to widen x.

    `scratch` is that of `declare_work`; without it, the work array is `y`. Writing to it may
    overwrite x.
    """
    wide = compute_dtype(x.dtype)
    work = y if y.dtype == wide else next(iter(scratch))
    if x.dtype == wide:
        return x, work, []
    return work, work, [partial(xp.copyto, work, x)]


def find_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest value of `dtype`, infinities where it has them."""
    if kind_of(dtype) == "f":
        return -np.inf, np.inf
    if dtype.kind == "b":
        return False, True
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def clamp(xp: ArrayModule, x: Array, low: float | Array, high: float | Array, y: Array) -> None:
    # Maximum with a scalar is not vectorized in numpy (0.31 ns an element of float32, clip 0.09),
    # but a call of clip costs a microsecond more.
    if y.size < 1024:
        xp.maximum(x, low, out=y)
        xp.minimum(y, high, out=y)
    else:
        x.clip(low, high, y)
