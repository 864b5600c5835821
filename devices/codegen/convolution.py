"""Convolutions: as implicit matrix products, or cell by cell.

The left factor is the weights, with a row for each feature. The right one has a column for each
output
cell of all images and a row for each channel and tap; its elements are read from the input by index
(implicit GEMM). With one tap it is the input itself. Features with few channels of their own, as in
a depthwise convolution, leave most of a tile empty: there each thread sums up one output cell.

In the gradient of the weights, the left factor is dY, with a row for each feature of a group and a
column for each window of each image. The right one has a row for each of these windows and a column
for each channel and tap: the input cells under the tap. There are few weights and many windows:
`tiles` splits such products along their depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import Window, resolve_transposed_window, resolve_window
from ...graph.values.tensor import TensorSpec
from .epilogue import Epilogue, generates_product
from .indexing import choose_index_type, declare_coordinates, make_strides, write_offset
from .reduction import declare_input, declare_output
from .registry import THREADS, Code, Kernel, Parameter, count_groups, generates
from .strips import DEPTH, Factor, Read
from .tiles import Product
from .types import load, load_factor, store, to_computed_type, write_literal
from .windows import Sliding

LEAST_FEATURES = 8
"""Fewest features of a group for which tiles pay."""


@dataclass(frozen=True)
class Convolution:
    """A convolution, with elements as C expressions of `x[...]` and `w[...]`."""

    batch: int
    channels: int
    features: int
    group: int
    sliding: Sliding
    ctype: str
    """The type of products and sums."""
    x: Callable[[str], str]
    """From an offset to a cell."""
    w: Callable[[str, str], str]
    """From an offset and a feature to a weight."""
    finish: Callable[[str, str, str], list[str]]
    """From an output's offset, its feature and sum to the statements that write it."""
    parameters: tuple[Parameter, ...]

    @property
    def per_group(self) -> tuple[int, int]:
        return self.channels // self.group, self.features // self.group

    @property
    def by_strips(self) -> bool:
        """Whether the depth of the product is ordered by strips: channels, taps, channels.

        All of a strip is then read by one tap, so that the cell is located once for a strip.
        """
        channels = self.per_group[0]
        # With one tap, the usual order is that order. Else channels are padded to whole strips, and
        # with few channels most products would be padding.
        return self.sliding.taps > 1 and (channels % DEPTH == 0 or channels > 4 * DEPTH)

    @property
    def depth(self) -> int:
        """The number of products in each sum, with padding."""
        channels = self.per_group[0]
        # A strip may not reach into the next tap.
        channels += -channels % DEPTH if self.by_strips else 0
        return channels * self.sliding.taps

    @property
    def index(self) -> str:
        inputs = self.batch * self.channels * self.sliding.cells
        outputs = self.batch * self.features * self.sliding.planes
        weights = self.features * self.depth
        return choose_index_type(*(size + (1 << 16) for size in (inputs, outputs, weights)))

    def code(self) -> Code:
        # A tile has at least 16 rows, and fewer features would fill less than half of it.
        if self.per_group[1] < LEAST_FEATURES:
            return Code((self._cell_by_cell(),))
        return self._product().code()

    def _cell_by_cell(self) -> Kernel:
        c, sliding, (depth, features) = self.index, self.sliding, self.per_group
        size = self.batch * self.features * sliding.planes
        tap, cell = sliding.tap(c), sliding.read("", c)
        weight = self.w(self._weight("f", "channel", tap.offset), "f")
        add = self._add(self.x(f"start + channel * {sliding.cells} + {cell.offset}"), weight)
        inner = [*cell.statements, f"if ({cell.condition}) {add}" if cell.condition else add]
        body = [
            f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
            f"if (i >= {size}) return;",
            f"const {c} f = i / {sliding.planes} % {self.features};",
            f"const {c} image = i / {sliding.planes * self.features};",
            *sliding.place(f"(i % {sliding.planes})", "", c),
            f"const {c} group = f / {features};",
            f"const {c} start = (image * {self.channels} + group * {depth}) * {sliding.cells};",
            f"{self.ctype} sum = {write_literal(0, self.ctype)};",
            f"for (i32 channel = 0; channel < {depth}; channel++) {{",
            *sliding.over_taps(inner),
            "}",
            *self.finish("i", "f", "sum"),
        ]
        return Kernel("convolution", self.parameters, "\n".join(body), count_groups(size))

    def _add(self, cell: str, weight: str) -> str:
        if self.ctype in ("f32", "f64"):
            return f"sum = fma({weight}, {cell}, sum);"
        return f"sum = sum + ({self.ctype})({weight}) * ({self.ctype})({cell});"

    def _weight(self, feature: str, channel: str, tap: str) -> str:
        depth, features = self.per_group
        taps = math.prod(self.sliding.window.kernel)
        # Weights of a transposed convolution are ordered by channel, then by feature of the group.
        if self.sliding.is_transposed:
            row = f"(group * {depth} + {channel}) * {features} + {feature} - group * {features}"
            return f"({row}) * {taps} + {tap}"
        return f"({feature} * {depth} + {channel}) * {taps} + {tap}"

    def _product(self) -> Product:
        c, sliding, features = self.index, self.sliding, self.per_group[1]
        phases, grid = math.prod(sliding.phases), math.prod(sliding.grid)
        at, is_inside = sliding.written("")

        def finish(row: str, column: str, total: str) -> list[str]:
            statements = [
                f"const {c} f = group * {features} + {row};",
                f"const {c} at = (image * {self.features} + f) * {sliding.planes} + {at};",
                *self.finish("at", "f", total),
            ]
            # The grid is that of the largest phase; others have fewer outputs.
            return [f"if ({is_inside}) {{", *statements, "}"] if is_inside else statements

        def place(column: str) -> list[str]:
            image = f"const {c} image = {column} / {grid};"
            return [image, *sliding.place_in_phase(f"({column} % {grid})", "", c)]

        return Product(
            "convolution",
            self.parameters,
            self.group * phases,
            features,
            self.batch * grid,
            self.depth,
            self._weights(),
            self._cells(),
            self.ctype,
            place,
            finish,
            (
                f"const {c} group = batch / {phases};",
                *sliding.begin_phase(f"(batch % {phases})", c),
            ),
            c,
        )

    def _place_feature(self, index: str, tag: str) -> list[str]:
        return [f"const {self.index} f{tag} = group * {self.per_group[1]} + {index};"]

    def _place_cell(self, index: str, tag: str) -> list[str]:
        c, sliding, grid = self.index, self.sliding, math.prod(self.sliding.grid)
        start = f"({index} / {grid} * {self.channels} + group * {self.per_group[0]})"
        return [
            f"const {c} start{tag} = {start} * {sliding.cells};",
            *sliding.place_in_phase(f"({index} % {grid})", tag, c),
        ]

    def _weights(self) -> Factor:
        tap = self.sliding.tap(self.index)

        def read(tag: str, depth: str) -> Read:
            at = self._weight(f"f{tag}", "channel", tap.offset)
            statements = (*self._step(depth), *([] if self.by_strips else tap.statements))
            return Read(statements, self._if_channel(tap.condition), self.w(at, f"f{tag}"))

        def begin(tag: str) -> list[str]:
            return [*self._strip(), *tap.statements] if self.by_strips else []

        return Factor(True, self._place_feature, read, begin)

    def _cells(self) -> Factor:
        c, tap = self.index, self.sliding.tap(self.index)

        def conditions(tag: str) -> str:
            return _join_conditions(tap.condition, self.sliding.read(tag, c).condition)

        def statements(tag: str) -> list[str]:
            cell, inside = self.sliding.read(tag, c), conditions(tag)
            return [
                *tap.statements,
                *cell.statements,
                # A variable, since with strips it is computed once and read for each channel.
                *([f"const i32 inside = {inside};"] if inside else []),
                f"const {c} at = start{tag} + {cell.offset};",
            ]

        def read(tag: str, depth: str) -> Read:
            found = (*self._step(depth), *([] if self.by_strips else statements(tag)))
            condition = self._if_channel("inside" if conditions(tag) else "")
            return Read(found, condition, self.x(f"at + channel * {self.sliding.cells}"))

        def begin(tag: str) -> list[str]:
            return [*self._strip(), *statements(tag)] if self.by_strips else []

        return Factor(False, self._place_cell, read, begin)

    def _if_channel(self, condition: str) -> str:
        channels = self.per_group[0]
        is_ragged = self.by_strips and channels % DEPTH
        return _join_conditions(condition, f"channel < {channels}" if is_ragged else "")

    def _strip(self) -> list[str]:
        c, taps = self.index, self.sliding.taps
        return [
            f"const {c} block = first / {DEPTH * taps} * {DEPTH};",
            *declare_coordinates(f"(first / {DEPTH} % {taps})", self.sliding.steps, "u", c),
        ]

    def _step(self, depth: str) -> list[str]:
        """Return declarations of the channel and tap that product `depth` of a sum has."""
        c, taps = self.index, self.sliding.taps
        if self.by_strips:
            return [f"const {c} channel = block + {depth} - first;"]
        steps = declare_coordinates(f"({depth} % {taps})", self.sliding.steps, "u", c)
        return [f"const {c} channel = {depth} / {taps};", *steps]


def _join_conditions(*conditions: str) -> str:
    return " && ".join(filter(None, conditions))


def make_sliding(call: Call, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> Sliding:
    spatial, kernel = x.static_shape[2:], w.static_shape[2:]
    is_transposed = "output_padding" in call.attributes
    resolve = resolve_transposed_window if is_transposed else resolve_window
    window, _ = resolve(spatial, call.attributes, kernel)
    assert window is not None
    return Sliding(spatial, y.static_shape[2:], window, is_transposed)


@generates_product("Conv", "ConvTranspose")
def convolution(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    x, w, y = call.spec(0), call.spec(1), outputs[0]
    parameters = [declare_input(x), declare_input(w, "w", 1), *epilogue.parameters]
    if call.has(2):
        parameters.append(declare_input(call.spec(2), "b", 2))

    def finish(at: str, feature: str, total: str) -> list[str]:
        value = f"{total} + {load(call.spec(2).dtype, 'b', feature)}" if call.has(2) else total
        return epilogue.write(at, value)

    return Convolution(
        x.static_shape[0],
        x.static_shape[1],
        y.static_shape[1],
        call.attributes["group"],
        make_sliding(call, x, w, y),
        to_computed_type(x.dtype),
        partial(load_factor, x.dtype, "x"),
        lambda at, feature: load_factor(w.dtype, "w", at),
        finish,
        tuple(parameters),
    ).code()


@dataclass(frozen=True)
class _Gradient:
    """The sizes of the product, and its factors."""

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
        return self.dw.static_shape[0] // self.group, self.dw.static_shape[1]

    @property
    def index(self) -> str:
        return choose_index_type(*(spec.size + (1 << 16) for spec in (self.x, self.dy, self.dw)))

    def product(self) -> Product:
        c, (features, channels) = self.index, self.per_group
        columns = channels * self.taps

        def finish(row: str, column: str, total: str) -> list[str]:
            at = f"(batch * {features} + {row}) * {columns} + {column}"
            return [store(self.dw.dtype, "dw", at, total)]

        return Product(
            "weights_gradient",
            (declare_input(self.x), declare_input(self.dy, "dy", 1), declare_output(self.dw, "dw")),
            self.group,
            features,
            columns,
            self.x.static_shape[0] * self.places,
            Factor(True, self._place_feature, self._read_gradient),
            Factor(True, self._place_tap, self._read_cell),
            to_computed_type(self.x.dtype),
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
        taps = declare_coordinates(
            f"({index} % {self.taps})", self.window.kernel, f"t{tag}_", self.index
        )
        return [f"const {self.index} channel{tag} = {channel};", *taps]

    def _read_cell(self, tag: str, depth: str) -> Read:
        c, lengths, window = self.index, self.x.static_shape[2:], self.window
        statements = declare_coordinates(
            f"({depth} % {self.places})", self.dy.static_shape[2:], "o", c
        )
        conditions = []
        for axis, length in enumerate(lengths):
            step = f"o{axis} * {window.strides[axis]} + t{tag}_{axis} * {window.dilations[axis]}"
            statements.append(f"const {c} p{axis} = {step} - {window.pads_begin[axis]};")
            conditions.append(f"p{axis} >= 0 && p{axis} < {length}")
        plane = f"{depth} / {self.places} * {self.x.static_shape[1]} + channel{tag}"
        at = f"({plane}) * {math.prod(lengths)} + {write_offset(make_strides(lengths), 'p')}"
        return Read(statements, " && ".join(conditions), load(self.x.dtype, "x", at))


@generates("ConvWeightsGradient")
def conv_weights_gradient(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: dW[f, c, tap] = Σ of dY[f]·x[c] over all windows."""
    x, attributes = call.spec(0), call.attributes
    window, _ = resolve_window(x.static_shape[2:], attributes, attributes["kernel_shape"])
    assert window is not None
    made = _Gradient(x, call.spec(1), outputs[0], attributes["group"], window)
    return made.product().code()
