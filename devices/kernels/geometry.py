"""The common part of all convolution methods: sizes, arrays, bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.operators.windows import Window
from ...graph.values.tensor import Array, TensorSpec
from .precision import Widened
from .registry import ArrayModule, Step
from .views import copy


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers a convolution is made of."""

    batch: int
    channels: int
    features: int
    group: int
    """Channels are the input's, features the output's."""
    spatial: tuple[int, ...]
    outputs: tuple[int, ...]
    """Spatial dims of input and output."""
    window: Window
    dtype: np.dtype[Any]
    """Dtype of the computation."""

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    @property
    def depth(self) -> int:
        """The channels of a group, over which each output cell sums."""
        return self.channels // self.group

    @property
    def padded(self) -> bool:
        return any((*self.window.pads_begin, *self.window.pads_end))

    @property
    def moves_by_one(self) -> bool:
        return set(self.window.strides) == {1}

    def spec(self, *shape: int) -> TensorSpec:
        return TensorSpec(self.dtype, shape)


class Operands(NamedTuple):
    """The arrays of a convolution: (batch, channels, *spatial), weights, bias, output, scratch."""

    x: Array
    w: Array
    bias: Array | None
    y: Array
    scratch: Sequence[Array]

    @classmethod
    def of(cls, wide: Widened) -> Operands:
        x, w, bias = (*wide.inputs, None)[:3]
        (y,) = wide.outputs
        return cls(x, w, bias, y, wide.scratch)


@dataclass(frozen=True, slots=True)
class WeightPacking:
    """How a method wants its weights: reordered once where they are constant."""

    spec: TensorSpec
    """Spec of the reordered weights."""
    steps: Callable[[ArrayModule, Array, Array], list[Step]] = field(compare=False)
    """Given the array module, the weights and a buffer, returns the steps that fill it."""
    order: Hashable
    """All that the steps depend on, so that methods for other shapes can share the weights."""


def add_bias(xp: ArrayModule, y: Array, bias: Array | None) -> list[Step]:
    if bias is None or not y.size:
        return []
    rows = y.reshape(*y.shape[:2], -1)
    return [partial(xp.add, rows, bias[:, None], rows)]


def copy_with_bias(xp: ArrayModule, source: Array, bias: Array | None, target: Array) -> Step:
    """Return the step in `xp` that copies `source` to `target`, and adds `bias`, if any.

    Both arrays are (channels, *spatial).
    """
    if bias is None:
        return copy(xp, target, source)
    per_channel = bias.reshape(-1, *[1] * (source.ndim - 1))
    return partial(xp.add, source, per_channel, target)
