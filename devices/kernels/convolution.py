"""Conv: ``conv(xp, inputs, outputs, attributes, scratch) -> Step`` chooses the method by shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import resolve_window
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import TensorSpec
from .dense import Columns, Pointwise, Shifted
from .depthwise import Taps
from .geometry import Geometry, Operands, WeightPacking, add_bias
from .packed import pack_weights
from .precision import compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .special_values import repair_convolution
from .toeplitz import Toeplitz, choose_tiling
from .winograd import Winograd, fits


class ConvolutionMethod(Protocol):
    @property
    def scratch(self) -> Sequence[TensorSpec]:
        """The buffers it needs."""

    @property
    def packing(self) -> WeightPacking | None:
        """How it wants the weights reordered; None: as they are."""

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]: ...


@lru_cache(maxsize=1024)
def choose(conv: Geometry, *, exact: bool = False) -> ConvolutionMethod:
    """Return the method that was the fastest for shapes as in `conv` where it was measured.

    With `exact`, it does nothing but multiply inputs by weights, and add.
    """
    if conv.taps == 1 and conv.moves_by_one and not conv.padded:
        return Pointwise(conv)
    if conv.depth == 1 and conv.features == conv.channels:
        tiling = choose_tiling(conv)
        if conv.moves_by_one and len(conv.spatial) <= 2:
            taps = Taps(conv)
            if tiling is None or taps.cost_ns < tiling.cost_ns:
                return taps
        if tiling is not None:
            return Toeplitz(conv)
    large = min(conv.channels, conv.features) >= 64 and math.prod(conv.outputs) >= 196
    if not exact and large and fits(conv):
        return Winograd(conv)
    if conv.group == 1 and conv.moves_by_one and conv.features * 2 <= conv.channels:
        return Shifted(conv)
    return Columns(conv)


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, w, y = call.spec(0), call.spec(1), outputs[0]
    conv = make_geometry(x.static_shape, w.static_shape, y.static_shape, call.attributes, x.dtype)
    method, wide = choose(conv), declare_wide_copies((*call.inputs, *outputs))
    computed = bool(wide) or call.value(1) is None
    packed = [method.packing.spec] if method.packing is not None and computed else []
    return (*wide, *method.scratch, *packed)


@kernel("Conv", scratch=_declare_scratch, binds=True)
def conv(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs, outputs, scratch)
    on = Operands.of(wide)
    if not on.y.size:
        return run_in_order(())
    if not on.x.size:
        return wide.around([partial(on.y.fill, 0), *add_bias(xp, on.y, on.bias)])
    numbers = make_geometry(on.x.shape, on.w.shape, on.y.shape, attributes, on.x.dtype)
    method = choose(numbers)
    used, pack = len(method.scratch), list[Step]()
    spreads = isinstance(method, Toeplitz | Winograd) and kind_of(on.y.dtype) == "f"
    # Other array modules would have to wait for a device to look at its sums.
    repair = [partial(repair_convolution, numbers, on)] if spreads and xp is np else []
    if method.packing is not None:
        w, pack = pack_weights(xp, method.packing, on.w, on.scratch[used:])
        on = on._replace(w=w, scratch=on.scratch[:used])
    return wide.around([*pack, *method.bind(xp, on), *repair])


def make_geometry(
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int],
    attributes: Attributes,
    dtype: np.dtype[Any],
) -> Geometry:
    window, outputs = resolve_window(x[2:], attributes, w[2:])
    assert window is not None
    assert outputs == tuple(y[2:])
    group = attributes["group"]
    return Geometry(
        x[0], x[1], y[1], group, tuple(x[2:]), tuple(y[2:]), window, compute_dtype(dtype)
    )
