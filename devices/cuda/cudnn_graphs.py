"""Graphs of operations in the form of cuDNN: a convolution, or attention.

cuDNN recognizes attention by its form: two products, and between them the steps of a softmax with
its statistics, though they are unused. Scores are virtual, so they are never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_float
from itertools import accumulate, count
from operator import mul
from typing import Any, NamedTuple, TypeAlias

from .attention import StaticAttention
from .convolutions import StaticConvolution
from .descriptors import Descriptor, DescriptorKind, Name, Type

Computable: TypeAlias = StaticConvolution | StaticAttention
"""Computations for cuDNN."""

DATA_TYPES = {"float32": 0, "float16": 2, "int32": 4, "bfloat16": 9, "bool": 11}
"""cudnnDataType_t."""
CROSS_CORRELATION = 1
"""cudnnConvolutionMode_t: windows are not mirrored."""
ADD, MUL, DIV, SUB, EXP, LOG, AT_LEAST, INDEX, SELECT = 0, 1, 6, 9, 13, 15, 303, 501, 601
"""cudnnPointwiseMode_t."""
TOTAL, PEAK = 0, 3
"""cudnnReduceTensorOp_t."""
ALIGNMENT = 16
"""Promised alignment of tensors in memory, in bytes."""
QUANTUM = 8
"""cuDNN requires rows of queries, keys and values of a multiple of this many elements."""


class Operations(NamedTuple):
    descriptors: list[Descriptor]
    tensors: list[int]
    """Numbers of the tensors in memory, in the order of their addresses: inputs, then the
    output."""
    values: dict[int, c_float]
    """Numbers of values that are passed by reference, with their storage, which must live as long
    as its readers."""


def is_attention_for_cudnn(attention: StaticAttention) -> bool:
    """Return whether cuDNN computes `attention`.

    Boolean masks are excluded: a graph with one ends the process (cuDNN 9.19).
    """
    left, right = attention.window
    if left is not None or right not in (None, 0) or attention.softcap:
        return False
    s, mask = attention.shape, attention.mask
    if s.depth % QUANTUM or s.width % QUANTUM:
        return False
    return mask is None or (mask.dtype.name == attention.dtype and mask.static_shape[-1] == s.keys)


def describe_operations(library: Any, work: Computable) -> Operations:
    writer = _Writer(library)
    if isinstance(work, StaticConvolution):
        _append_convolution(writer, work)
    else:
        _append_attention(writer, work)
    return Operations(writer.operations, writer.tensors, writer.values)


def _append_convolution(writer: _Writer, convolution: StaticConvolution) -> None:
    window = writer.new(DescriptorKind.CONVOLUTION)
    window.set(Name.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, DATA_TYPES["float32"])
    window.set(Name.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, CROSS_CORRELATION)
    window.set(Name.CONVOLUTION_SPATIAL_DIMS, Type.INT64, len(convolution.strides))
    window.set(Name.CONVOLUTION_PRE_PADDINGS, Type.INT64, *convolution.begins)
    window.set(Name.CONVOLUTION_POST_PADDINGS, Type.INT64, *convolution.ends)
    window.set(Name.CONVOLUTION_FILTER_STRIDES, Type.INT64, *convolution.strides)
    window.set(Name.CONVOLUTION_DILATIONS, Type.INT64, *convolution.dilations).finalize()
    given = {
        Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC: window,
        Name.OPERATION_CONVOLUTION_FORWARD_X: writer.tensor(convolution.dtype, convolution.x),
        Name.OPERATION_CONVOLUTION_FORWARD_W: writer.tensor(convolution.dtype, convolution.w),
        Name.OPERATION_CONVOLUTION_FORWARD_Y: writer.tensor(convolution.dtype, convolution.y),
    }
    scales = Name.OPERATION_CONVOLUTION_FORWARD_ALPHA, Name.OPERATION_CONVOLUTION_FORWARD_BETA
    writer.append(
        DescriptorKind.OPERATION_CONVOLUTION_FORWARD, given, *zip(scales, (1.0, 0.0), strict=True)
    )


def _append_attention(writer: _Writer, attention: StaticAttention) -> None:
    s, dtype, mask = attention.shape, attention.dtype, attention.mask
    shared = s.heads // s.group
    scored, rows = (s.batch, s.heads, s.queries, s.keys), (s.batch, s.heads, s.queries, 1)
    q = writer.tensor(dtype, (*scored[:3], s.depth), (*s.q, 1))
    # Keys are given transposed: as columns.
    k = writer.tensor(dtype, (s.batch, shared, s.depth, s.keys), (*s.k[:2], 1, s.k[2]))
    v = writer.tensor(dtype, (s.batch, shared, s.keys, s.width), (*s.v, 1))
    score = writer.product(q, k, writer.virtual(scored))
    score = writer.pointwise(MUL, scored, score, writer.value(attention.scale))
    if mask is not None:
        lengths = (1,) * (len(scored) - len(mask.static_shape)) + mask.static_shape
        score = writer.pointwise(ADD, scored, score, writer.tensor(dtype, lengths))
    if attention.window.right is not None:
        query, key = (
            writer.pointwise(INDEX, scored, score, axis=axis, dtype="int32") for axis in (2, 3)
        )
        seen = writer.pointwise(AT_LEAST, scored, query, key, dtype="bool", computed="bool")
        hidden = writer.value(-math.inf)
        score = writer.pointwise(SELECT, scored, score, hidden, chosen=seen)
    peak = writer.reduced(PEAK, rows, score)
    power = writer.pointwise(EXP, scored, writer.pointwise(SUB, scored, score, peak))
    total = writer.reduced(TOTAL, rows, power)
    writer.pointwise(ADD, rows, peak, writer.pointwise(LOG, rows, total))  # the statistics
    weight = writer.pointwise(DIV, scored, power, total, dtype=dtype)
    writer.product(weight, v, writer.tensor(dtype, (*scored[:3], s.width), (*s.y, 1)))


class _Writer:
    """Creates descriptors of tensors and operations, in order."""

    def __init__(self, library: Any) -> None:
        self.operations: list[Descriptor] = []
        self.tensors: list[int] = []
        self.values: dict[int, c_float] = {}
        self._library = library
        self._numbers = count(1)

    def new(self, kind: DescriptorKind) -> Descriptor:
        return Descriptor(self._library, kind)

    def tensor(self, dtype: str, shape: Sequence[int], strides: Sequence[int] = ()) -> Descriptor:
        """Describe a tensor of `dtype` and `shape` in memory; without `strides`, it has no gaps."""
        number, made = self._tensor(dtype, shape, strides, ALIGNMENT)
        self.tensors.append(number)
        return made.finalize()

    def value(self, value: float) -> Descriptor:
        number, made = self._tensor("float32", (1, 1, 1, 1), (), 4)
        self.values[number] = c_float(value)
        return made.set(Name.TENSOR_IS_BY_VALUE, Type.BOOLEAN, True).finalize()

    def virtual(self, shape: Sequence[int], dtype: str = "float32") -> Descriptor:
        """Describe a tensor of `shape` and `dtype` that is never in memory."""
        _, made = self._tensor(dtype, shape, (), ALIGNMENT)
        return made.set(Name.TENSOR_IS_VIRTUAL, Type.BOOLEAN, True).finalize()

    def pointwise(
        self,
        mode: int,
        shape: Sequence[int],
        x: Descriptor,
        other: Descriptor | None = None,
        *,
        chosen: Descriptor | None = None,
        axis: int | None = None,
        dtype: str = "float32",
        computed: str = "float32",
    ) -> Descriptor:
        """Return the result of operation `mode` on the elements of `x` and perhaps `other`.

        It has `shape` and `dtype`; `computed` is the dtype between, `chosen` the condition of a
        selection, `axis` that of indices.
        """
        how = self.new(DescriptorKind.POINTWISE)
        how.set(Name.POINTWISE_MODE, Type.POINTWISE_MODE, mode)
        how.set(Name.POINTWISE_MATH_PREC, Type.DATA_TYPE, DATA_TYPES[computed])
        if axis is not None:
            how.set(Name.POINTWISE_AXIS, Type.INT64, axis)
        y = self.virtual(shape, dtype)
        given = {
            Name.OPERATION_POINTWISE_PW_DESCRIPTOR: how.finalize(),
            Name.OPERATION_POINTWISE_XDESC: x,
            Name.OPERATION_POINTWISE_YDESC: y,
        }
        if other is not None:
            given[Name.OPERATION_POINTWISE_BDESC] = other
        if chosen is not None:
            given[Name.OPERATION_POINTWISE_TDESC] = chosen
        self.append(DescriptorKind.OPERATION_POINTWISE, given)
        return y

    def reduced(self, operator: int, shape: Sequence[int], x: Descriptor) -> Descriptor:
        how = self.new(DescriptorKind.REDUCTION)
        how.set(Name.REDUCTION_OPERATOR, Type.REDUCTION_OPERATOR_TYPE, operator)
        how.set(Name.REDUCTION_COMP_TYPE, Type.DATA_TYPE, DATA_TYPES["float32"])
        y = self.virtual(shape)
        given = {
            Name.OPERATION_REDUCTION_DESC: how.finalize(),
            Name.OPERATION_REDUCTION_XDESC: x,
            Name.OPERATION_REDUCTION_YDESC: y,
        }
        self.append(DescriptorKind.OPERATION_REDUCTION, given)
        return y

    def product(self, a: Descriptor, b: Descriptor, y: Descriptor) -> Descriptor:
        how = self.new(DescriptorKind.MATMUL)
        how.set(Name.MATMUL_COMP_TYPE, Type.DATA_TYPE, DATA_TYPES["float32"])
        given = {
            Name.OPERATION_MATMUL_DESC: how.finalize(),
            Name.OPERATION_MATMUL_ADESC: a,
            Name.OPERATION_MATMUL_BDESC: b,
            Name.OPERATION_MATMUL_CDESC: y,
        }
        self.append(DescriptorKind.OPERATION_MATMUL, given)
        return y

    def append(
        self, kind: DescriptorKind, given: dict[Name, Descriptor], *scales: tuple[Name, float]
    ) -> None:
        operation = self.new(kind)
        for name, scale in scales:
            operation.set(name, Type.FLOAT, scale)
        for name, value in given.items():
            operation.set(name, Type.BACKEND_DESCRIPTOR, value)
        self.operations.append(operation.finalize())

    def _tensor(
        self, dtype: str, shape: Sequence[int], strides: Sequence[int], alignment: int
    ) -> tuple[int, Descriptor]:
        number, made = next(self._numbers), self.new(DescriptorKind.TENSOR)
        strides = strides or tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
        made.set(Name.TENSOR_DATA_TYPE, Type.DATA_TYPE, DATA_TYPES[dtype])
        made.set(Name.TENSOR_DIMENSIONS, Type.INT64, *shape)
        made.set(Name.TENSOR_STRIDES, Type.INT64, *strides)
        made.set(Name.TENSOR_UNIQUE_ID, Type.INT64, number)
        return number, made.set(Name.TENSOR_BYTE_ALIGNMENT, Type.INT64, alignment)
