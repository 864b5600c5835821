"""Exact kernels of layers: conv2d and dense, maxima over windows, cells made larger.

conv2d and dense are sums of products modulo 2³², on BLAS if that is exact: floats represent all
integers up to 2²⁴ or 2⁵³. Partial sums, in any order, are bounded by max |x| times the largest Σ|w|
of an output. Each run computes that bound and chooses float32, float64, or int64, which numpy
multiplies without BLAS. Operands of 8 bits get floats. If the host cannot read the operands, it is
int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ....devices.kernels.arguments import get_optional
from ....devices.kernels.convolution import ConvolutionMethod, choose
from ....devices.kernels.dense import Columns, Shifted
from ....devices.kernels.geometry import Geometry, Operands, add_bias
from ....devices.kernels.packed import pack_weights
from ....devices.kernels.registry import ArrayModule, Arrays, Step, kernel, run_in_order
from ....devices.kernels.sliding import AxisWindow, slide
from ....devices.kernels.winograd import Winograd
from ....graph.core.attribute import Attributes
from ....graph.core.operator import Call, Specs
from ....graph.values.tensor import Array, TensorSpec
from ..operators.neural import list_pooling_steps, make_window
from ..precision import find_magnitude

DType: TypeAlias = np.dtype[Any]

WIDE: DType = np.dtype(np.int64)
"""Exact modulo 2⁶⁴, so modulo 2³² too, for any operands."""

LIMITS: tuple[tuple[DType, int], ...] = (
    (np.dtype(np.float32), 1 << 24),
    (np.dtype(np.float64), 1 << 31),
)
"""Bounds below which a float dtype is exact; results must also fit in int32 for conversion."""


class ExactProduct:
    """The step that computes in the fastest dtype that is exact for the operands of a run.

    `bind` returns the step that computes in a dtype, and is called once for each, on first use. If
    w never changes, it `is_constant`.
    """

    def __init__(
        self, x: Array, w: Array, bind: Callable[[DType], Step], is_constant: bool
    ) -> None:
        self._x, self._w, self._bind = x, w, bind
        self._norm = _compute_norm(w) if is_constant else None
        self._bound: dict[DType, Step] = {}

    def __call__(self) -> None:
        dtype = self._exact_dtype()
        # The dtype changes between runs; each is bound once, in the same buffers.
        if dtype not in self._bound:
            self._bound[dtype] = self._bind(dtype)
        self._bound[dtype]()

    def _exact_dtype(self) -> DType:
        norm = _compute_norm(self._w) if self._norm is None else self._norm
        bound = find_magnitude(self._x) * norm
        return next((dtype for dtype, limit in LIMITS if bound < limit), WIDE)


def _compute_norm(w: Array) -> int:
    """Return the largest Σ|`w`| over the weights of an output."""
    rows = w.reshape(len(w), -1)
    # In 64 bits: |-2³¹| does not fit in 32.
    return int(np.abs(rows, dtype=np.int64).sum(axis=1).max())


def _make_step(
    xp: ArrayModule, x: Array, w: Array, bind: Callable[[DType], Step], is_constant: bool
) -> Step:
    """Return the step that `bind` makes for a dtype wide enough for the product of `x` and `w`.

    On the host each run chooses the dtype by the values, those of `w` once if `is_constant`; other
    array modules `xp` always use the widest dtype.
    """
    return ExactProduct(x, w, bind, is_constant) if xp is np else bind(WIDE)


def _widen(*specs: TensorSpec) -> list[TensorSpec]:
    return [TensorSpec(WIDE, spec.shape) for spec in specs]


def _slice_buffer(buffer: Array, dtype: DType) -> Array:
    return buffer.reshape(-1).view(dtype)[: buffer.size].reshape(buffer.shape)


def _list_dense_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    computed = () if call.value(1) is not None else (call.spec(1),)
    return _widen(call.spec(0), outputs[0], *computed)


@kernel("cvm.dense", scratch=_list_dense_scratch, binds=True)
def dense(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x, w), (y,), bias = inputs[:2], outputs, get_optional(inputs, 2)
    is_constant = len(scratch) == 2

    def bind(dtype: DType) -> Step:
        rows, sums, *others = (_slice_buffer(buffer, dtype) for buffer in scratch)
        weights, steps = _convert(xp, w, dtype, others)
        steps += (
            partial(xp.copyto, rows, x),
            partial(xp.matmul, rows, weights.T, out=sums),
            partial(xp.copyto, y, sums, casting="unsafe"),
            *add_bias(xp, y, bias),
        )
        return run_in_order(steps)

    return _make_step(xp, x, w, bind, is_constant)


def _convert(
    xp: ArrayModule, w: Array, dtype: DType, buffers: Sequence[Array]
) -> tuple[Array, list[Step]]:
    """Return `w` in `dtype` on array module `xp`, and the steps that convert it in each run.

    Constant weights are converted at once: they have no `buffers`.
    """
    if buffers:
        return buffers[0], [partial(xp.copyto, buffers[0], w)]
    return w.astype(dtype), []


def _choose_convolution(
    x: Sequence[int], y: Sequence[int], attributes: Attributes, dtype: DType
) -> ConvolutionMethod:
    """Return the fastest convolution in `dtype` that only adds and multiplies integers.

    `x` and `y` are the shapes of input and output, `attributes` the operator's.
    """
    window, groups = make_window(attributes), attributes["groups"]
    conv = Geometry(x[0], x[1], y[1], groups, tuple(x[2:]), tuple(y[2:]), window, dtype)
    found = choose(conv)
    if not isinstance(found, Winograd):  # which divides
        return found
    return Shifted(conv) if conv.features * 2 <= conv.channels else Columns(conv)


def _list_convolution_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, w, y = call.spec(0), call.spec(1), outputs[0]
    method = _choose_convolution(x.static_shape, y.static_shape, call.attributes, WIDE)
    computed = [w] if call.value(1) is None else []
    packed = [method.packing.spec] if computed and method.packing is not None else []
    return _widen(x, y, *method.scratch, *computed, *packed)


@kernel("cvm.conv2d", scratch=_list_convolution_scratch, binds=True)
def conv2d(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x, w), (y,), bias = inputs[:2], outputs, get_optional(inputs, 2)
    # Buffers after these are for weights that each run converts.
    used = 2 + len(_choose_convolution(x.shape, y.shape, attributes, WIDE).scratch)

    def bind(dtype: DType) -> Step:
        method = _choose_convolution(x.shape, y.shape, attributes, dtype)
        cells, sums, *buffers = (_slice_buffer(buffer, dtype) for buffer in scratch)
        mine, others = buffers[: used - 2], buffers[used - 2 :]
        weights, steps = _convert(xp, w, dtype, others)
        if method.packing is not None:
            weights, pack = pack_weights(xp, method.packing, weights, others[1:])
            steps += pack
        steps += (
            partial(xp.copyto, cells, x),
            *method.bind(xp, Operands(cells, weights, None, sums, mine)),
            partial(xp.copyto, y, sums, casting="unsafe"),
            *add_bias(xp, y, bias),
        )
        return run_in_order(steps)

    return _make_step(xp, x, w, bind, is_constant=len(scratch) == used)


_LEAST = int(np.iinfo(np.int32).min)
"""The value of a cell of padding."""


def _make_windows(shape: Sequence[int], attributes: Attributes) -> tuple[AxisWindow, AxisWindow]:
    rows, columns = (
        AxisWindow(length, outputs, pool, stride, begin=pad)
        for length, outputs, pool, stride, pad in list_pooling_steps(shape[2:], attributes)
    )
    return rows, columns


def _list_pooling_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    batch, channels, height, _ = call.spec(0).static_shape
    return [TensorSpec("int32", (batch, channels, height, outputs[0].static_shape[3]))]


@kernel("cvm.max_pool2d", scratch=_list_pooling_scratch, binds=True)
def max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x,), (y,), (between,) = inputs, outputs, scratch
    rows, columns = _make_windows(x.shape, attributes)
    return run_in_order(
        (
            *slide(xp, xp.maximum, x, between, 3, columns, _LEAST),
            *slide(xp, xp.maximum, between, y, 2, rows, _LEAST),
        )
    )


@kernel("cvm.upsampling", binds=True)
def upsample(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, scale = inputs[0], attributes["scale"]
    batch, channels, height, width = x.shape
    squares = outputs[0].reshape(batch, channels, height, scale, width, scale)
    return partial(xp.copyto, squares, x[:, :, :, None, :, None])
