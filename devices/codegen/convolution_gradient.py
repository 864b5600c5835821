"""The gradient of a convolution's weights, as products of matrices that are never written out.

The left factor is dY, a row for each feature of a group and a column for each place of the window
in each image. The right one has a row for each of these, and a column for each channel and tap: the
cells of the input that the tap lay on. There are few weights and many places: `tiles` splits such
products along their depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from ...graph.windows import Window, resolve_window
from .indexing import contiguous, coordinates, index_type, offset
from .kernel import Code
from .reduction import input_of, output_of
from .registry import generates
from .strips import Factor, Read
from .tiles import Product
from .types import computed_type, load, store


@dataclass(frozen=True)
class _Gradient:
    """The numbers of the product, and its factors."""

    x: TensorSpec
    dy: TensorSpec
    dw: TensorSpec
    group: int
    window: Window

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    @property
    def places(self) -> int:
        return math.prod(self.dy.static_shape[2:])

    @property
    def per_group(self) -> tuple[int, int]:
        """How many features and channels a group has."""
        return self.dw.static_shape[0] // self.group, self.dw.static_shape[1]

    @property
    def index(self) -> str:
        """The C type of indices."""
        return index_type(*(spec.size + (1 << 16) for spec in (self.x, self.dy, self.dw)))

    def product(self) -> Product:
        """Return the product, a batch for each group."""
        c, (features, channels) = self.index, self.per_group
        columns = channels * self.taps

        def finish(row: str, column: str, total: str) -> list[str]:
            at = f"(batch * {features} + {row}) * {columns} + {column}"
            return [store(self.dw.dtype, "dw", at, total)]

        return Product(
            "weights_gradient",
            (input_of(self.x), input_of(self.dy, "dy", 1), output_of(self.dw, "dw")),
            self.group,
            features,
            columns,
            self.x.static_shape[0] * self.places,
            Factor(True, self._place_feature, self._read_gradient),
            Factor(True, self._place_tap, self._read_cell),
            computed_type(self.x.dtype),
            lambda column: [],
            finish,
            (),
            c,
        )

    def _place_feature(self, index: str, tag: str) -> list[str]:
        return [f"const {self.index} f{tag} = batch * {self.per_group[0]} + {index};"]

    def _read_gradient(self, tag: str, depth: str) -> Read:
        row = f"{depth} / {self.places} * {self.dy.static_shape[1]} + f{tag}"
        at = f"({row}) * {self.places} + {depth} % {self.places}"
        return Read([], "", load(self.dy.dtype, "dy", at))

    def _place_tap(self, index: str, tag: str) -> list[str]:
        channel = f"batch * {self.per_group[1]} + {index} / {self.taps}"
        taps = coordinates(f"({index} % {self.taps})", self.window.kernel, f"t{tag}_", self.index)
        return [f"const {self.index} channel{tag} = {channel};", *taps]

    def _read_cell(self, tag: str, depth: str) -> Read:
        c, lengths, window = self.index, self.x.static_shape[2:], self.window
        statements = coordinates(f"({depth} % {self.places})", self.dy.static_shape[2:], "o", c)
        conditions = []
        for axis, length in enumerate(lengths):
            step = f"o{axis} * {window.strides[axis]} + t{tag}_{axis} * {window.dilations[axis]}"
            statements.append(f"const {c} p{axis} = {step} - {window.pads_begin[axis]};")
            conditions.append(f"p{axis} >= 0 && p{axis} < {length}")
        plane = f"{depth} / {self.places} * {self.x.static_shape[1]} + channel{tag}"
        at = f"({plane}) * {math.prod(lengths)} + {offset(contiguous(lengths), 'p')}"
        return Read(statements, " && ".join(conditions), load(self.x.dtype, "x", at))


@generates("ConvWeightsGradient")
def conv_weights_gradient(call: Call, outputs: Specs) -> Code:
    """DW[f, c, tap] = Σ over images and windows of dY[f]·x[c] under the tap."""
    x, attributes = call.spec(0), call.attributes
    window, _ = resolve_window(x.static_shape[2:], attributes, attributes["kernel_shape"])
    assert window is not None
    made = _Gradient(x, call.spec(1), outputs[0], attributes["group"], window)
    return made.product().code()
