"""DeformConv: the cells under the taps, side by side as columns, and one product.

Source: ONNX DeformConv; Zhu et al., "Deformable ConvNets v2" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.convolution import BIAS, MASK, OFFSET, resolve_deformed_window
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .geometry import add_bias
from .precision import compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .sampling import Sampler, declare_sampler, write_linear_taps


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    _, channels, *spatial = call.spec(0).static_shape
    kernel_shape, sizes = call.spec(1).static_shape[2:], outputs[0].static_shape[2:]
    dtype = compute_dtype(outputs[0].dtype)
    points = math.prod(kernel_shape) * math.prod(sizes)
    depth = channels // call.attributes["offset_group"]
    return [
        *declare_wide_copies((*call.inputs, *outputs)),
        *declare_sampler(dtype, dtype, depth, spatial, 2, points),
        TensorSpec(dtype, (points,)),
        TensorSpec(np.bool_, (points,)),
        TensorSpec(dtype, (channels, points)),
    ]


@kernel("DeformConv", scratch=_declare_scratch, binds=True)
def deform_conv(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs, outputs, scratch)
    x, w = wide.inputs[:2]
    assert x is not None
    assert w is not None
    (y,), columns = wide.outputs, wide.scratch[-1]
    if not y.size:
        return run_in_order(())
    group, features = attributes["group"], y.shape[1]
    weights = w.reshape(group, features // group, -1)
    cells = columns.reshape(group, weights.shape[-1], -1)
    steps: list[Step] = []
    for sample in range(len(x)):
        steps += _lay_out(xp, sample, wide.inputs, attributes, y.shape[2:], wide.scratch)
        target = y[sample].reshape(group, features // group, -1)
        steps.append(partial(xp.matmul, weights, cells, out=target))
    return wide.around([*steps, *add_bias(xp, y, get_optional(wide.inputs, BIAS))])


def _lay_out(
    xp: ArrayModule,
    sample: int,
    inputs: Arrays,
    attributes: Attributes,
    sizes: Sequence[int],
    scratch: Arrays,
) -> Iterator[Step]:
    """Yield the steps in `xp` that read cells of `sample` into columns, (channels, taps · outputs).

    `inputs` and `attributes` are those of the node, `sizes` the output's lengths. `scratch` has the
    buffers of a Sampler, a place, a buffer and the columns.
    """
    x, w = inputs[:2]
    *buffers, place, beyond, columns = scratch
    sampler = Sampler(xp, *buffers)
    spatial, kernel_shape, groups = x.shape[2:], w.shape[2:], attributes["offset_group"]
    offsets = inputs[OFFSET][sample].reshape(groups, *kernel_shape, len(spatial), *sizes)
    mask = get_optional(inputs, MASK)
    origins = _make_origins(xp, spatial, attributes, kernel_shape, sizes, place.dtype)
    images = x[sample].reshape(groups, -1, math.prod(spatial))
    for index, target in enumerate(columns.reshape(groups, -1, columns.shape[-1])):
        for axis, (length, origin) in enumerate(zip(spatial, origins, strict=True)):
            asked = place.reshape(*kernel_shape, *sizes)
            yield partial(xp.add, offsets[index, :, :, axis], origin, out=asked)
            stride = math.prod(spatial[axis + 1 :])
            taps = sampler.indices[axis], sampler.weights[axis]
            yield partial(
                write_linear_taps, xp, place, length, stride, sampler.outside, *taps, beyond
            )
        yield partial(sampler.load, images[index])
        yield partial(sampler.read, target)
        if mask is not None:
            factors = mask[sample].reshape(groups, -1)[index]
            yield partial(xp.multiply, target, factors, out=target)


def _make_origins(
    xp: ArrayModule,
    spatial: Sequence[int],
    attributes: Attributes,
    kernel_shape: Sequence[int],
    sizes: Sequence[int],
    dtype: np.dtype[Any],
) -> list[Array]:
    """Return where taps read without an offset, for each axis: (*kernel, *outputs) or ones.

    `spatial`, `kernel_shape` and `sizes` are the lengths of input, kernel and output, `attributes`
    those of the node. The arrays are made by `xp`, in `dtype`.
    """
    window, _ = resolve_deformed_window(spatial, attributes, kernel_shape)
    assert window is not None
    origins = []
    for axis, (size, taps) in enumerate(zip(sizes, kernel_shape, strict=True)):
        starts = np.arange(size) * window.strides[axis] - window.pads_begin[axis]
        reads = np.arange(taps)[:, None] * window.dilations[axis] + starts
        shape = [1] * (2 * len(sizes))
        shape[axis], shape[len(sizes) + axis] = taps, size
        origins.append(xp.asarray(reads.astype(dtype).reshape(shape)))
    return origins
