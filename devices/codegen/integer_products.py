"""Products of quantized tensors, as exact integers or requantized.

Generators take a `call`, the specs of its `outputs` and an `epilogue`, and return the `Code`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ...graph.core.operator import Call, Specs, find_operator
from ...graph.values.tensor import TensorSpec
from .convolution import Convolution, make_sliding
from .epilogue import Epilogue, generates_product
from .folds import find_extreme
from .matmul import Matrices, Stack, broadcast_batches, merge_batch, to_left_stack, to_right_stack
from .reduction import declare_input
from .registry import Code, Parameter
from .types import load, write_literal
from .windows import Sliding

EXACT_DEPTH = (1 << 31) // (255 * 255)
"""Most products of bytes whose sum fits in 32 bits."""
LOWERED = 128
"""Subtracted from unsigned bytes and their zero points to make them signed."""

_ROLES = {"scale": "scale", "zero_point": "zero"}
"""Roles of parameters, by the suffix of their names in the operator's definition."""


def find_factors(op: str) -> tuple[int, int] | None:
    """Return the indices of the inputs that `op` multiplies, a by b; None for other operators.

    For convolutions, a is the weights, with a row for each feature, and b the images.
    """
    names = _list_inputs(op)
    for a, b in (("a", "b"), ("w", "x")):
        if {a, b, f"{a}_zero_point", f"{b}_zero_point"} <= names.keys():
            return names[a], names[b]
    return None


def _get_factors(op: str) -> tuple[int, int]:
    found = find_factors(op)
    assert found is not None, "it multiplies integers"
    return found


@cache
def _list_parameters(op: str) -> dict[str, int]:
    """Return the inputs of `op` that are scales, zero points and biases of a, b or the result y."""
    factors = dict(zip(_get_factors(op), "ab", strict=True))
    names = _list_inputs(op)
    found = {}
    for name, index in names.items():
        whose, _, role = name.partition("_")
        if role:
            found[f"{factors.get(names.get(whose, -1), whose)}_{_ROLES[role]}"] = index
        elif index not in factors:
            found["y_bias"] = index
    return found


@cache
def _list_inputs(op: str) -> dict[str, int]:
    names = find_operator(op).inputs.split()
    return {name.rstrip("?*+"): index for index, name in enumerate(names)}


class ElementPlace(NamedTuple):
    row: str
    column: str
    of_a: str = ""
    of_b: str = ""
    of_y: str = ""
    """Rows or columns over the whole stack, if factors are stacks."""


class NodeScales:
    """Scales, zero points and biases of a node: one for all, or for each row, column or feature."""

    def __init__(self, op: str, call: Call) -> None:
        self._call = call
        self._known = {
            name: index for name, index in _list_parameters(op).items() if call.has(index)
        }
        self._factors = dict(zip("ab", _get_factors(op), strict=True))

    @property
    def parameters(self) -> list[Parameter]:
        return [declare_input(self._call.spec(i), name, i) for name, i in self._known.items()]

    def has(self, name: str) -> bool:
        return name in self._known

    def number(self, name: str) -> int | None:
        return self._known.get(name)

    def is_single(self, name: str) -> bool:
        """Return whether at most one number serves all elements as `name`, such as "a_scale"."""
        return name not in self._known or self._spec(name).size == 1

    def read(self, name: str, place: ElementPlace) -> str:
        spec, of = self._spec(name), name[0]
        vector = place.column if of == "b" else place.row
        stack = {"a": place.of_a, "b": place.of_b, "y": place.of_y}[of]
        index = "0" if spec.size == 1 else vector if len(spec.static_shape) == 1 else stack
        return load(spec.dtype, name, index)

    def without_zero(self, factor: str, value: str, place: ElementPlace) -> str:
        name = f"{factor}_zero"
        return f"(i32){value}" + (f" - (i32){self.read(name, place)}" if self.has(name) else "")

    def lowered_by(self, factor: str) -> int:
        """Return the number to take from bytes of `factor`, "a" or "b": 128 if unsigned, else 0."""
        return LOWERED if self._call.spec(self._factors[factor]).dtype.name == "uint8" else 0

    def is_around_zero(self, factor: str) -> bool:
        """Return whether all zero points of `factor`, of signed bytes, are known to be 0."""
        name, by = f"{factor}_zero", self.lowered_by(factor)
        if not self.has(name):
            return by == 0
        value = self._call.value(self._known[name])
        return value is not None and bool((value == by).all())

    def lowered_zero(self, factor: str, place: ElementPlace) -> str:
        """Return the zero point of `factor` at `place` once its bytes are signed, modulo 2³²."""
        name, by = f"{factor}_zero", self.lowered_by(factor)
        given = f"(i32){self.read(name, place)}" if self.has(name) else "0"
        return f"(u32)({given} - {by})"

    def _spec(self, name: str) -> TensorSpec:
        return self._call.spec(self._known[name])


def to_matrices(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Matrices | None:
    """Return `call` of `op` as a product of matrices, with its factors as the first two parameters.

    None for other nodes. A convolution without groups multiplies all weights by each image, as a
    matrix with a column for each output that holds the cells of its window. The results have the
    specs `outputs`, and go through `epilogue`.
    """
    if find_factors(op) is None or call.attributes.get("group", 1) != 1:
        return None
    return _make_matrices(op, call, outputs[0], epilogue)


def find_windows(op: str, call: Call, y: TensorSpec) -> Sliding | None:
    """Return the windows of `call`, a convolution `op`, which become the columns of `y`.

    None for other operators, and if the columns are those of the image itself.
    """
    if "Conv" not in op:
        return None
    w, x = (call.spec(index) for index in _get_factors(op))
    sliding = make_sliding(call, x, w, y)
    window = sliding.window
    moves, pads = (*window.kernel, *window.strides), (*window.pads_begin, *window.pads_end)
    return sliding if any(pads) or any(n != 1 for n in moves) else None


def _make_matrices(op: str, call: Call, y: TensorSpec, epilogue: Epilogue) -> Matrices:
    scales = NodeScales(op, call)
    a, b = (call.spec(index) for index in _get_factors(op))
    if "Conv" in op:
        features, terms = a.static_shape[0], math.prod(a.static_shape[1:])
        left = Stack((), features, terms)
        right = Stack(b.static_shape[:1], terms, math.prod(y.static_shape[2:]))
        batch = right.batch
    else:
        left, right = to_left_stack(a), to_right_stack(b)
        batch = broadcast_batches(left, right)
        # One tall matrix unless rows have numbers of their own.
        if all(map(scales.is_single, ("a_scale", "a_zero", "y_scale", "y_zero"))):
            left, batch = merge_batch(left, right, batch)
    depth = max(left.columns, 1)

    def place(row: str = "", column: str = "") -> ElementPlace:
        starts = f"a_start / {depth} + {row}", f"b_start / {depth} + {column}"
        return ElementPlace(row, column, *starts, f"batch * {left.rows} + {row}")

    def finish(row: str, column: str, total: str) -> list[str]:
        at = f"(batch * {left.rows} + {row}) * {right.columns} + {column}"
        return _finish(scales, depth, y, epilogue, at, total, place(row, column))

    return Matrices(
        left,
        right,
        batch,
        _choose_sum_type(scales, depth),
        lambda at, row: scales.without_zero("a", f"a[{at}]", place(row=row)),
        lambda at, column: scales.without_zero("b", f"b[{at}]", place(column=column)),
        finish,
        (*_declare_factors(op, call), *epilogue.parameters, *scales.parameters),
    )


def _declare_factors(op: str, call: Call) -> list[Parameter]:
    pairs = zip("ab", _get_factors(op), strict=True)
    return [declare_input(call.spec(index), name, index) for name, index in pairs]


def _finish(
    scales: NodeScales,
    depth: int,
    y: TensorSpec,
    epilogue: Epilogue,
    at: str,
    total: str,
    place: ElementPlace,
) -> list[str]:
    """Return the statements that pass the sum `total` to `epilogue` for index `at` of `y`.

    It is a sum of `depth` products at `place`, and is requantized if `scales` have a scale of y.
    """
    if not scales.has("y_scale"):
        return epilogue.write(at, f"(i32){total}")
    names = "a_scale", "b_scale", "y_scale", "y_zero"
    scale_a, scale_b, scale_y, zero = (scales.read(name, place) for name in names)
    whole = f"({'i32' if depth < EXACT_DEPTH else 'i64'}){total}"
    if scales.has("y_bias"):
        whole = f"((i64){whole} + {scales.read('y_bias', place)})"
    factor = f"(f32){scale_a} * (f32){scale_b} / (f32){scale_y}"
    low, high = (write_literal(find_extreme(y.dtype, name), "f32") for name in ("min", "max"))
    return [
        f"const f32 real = rint((f32){whole} * ({factor})) + (f32){zero};",
        *epilogue.write(at, f"(i32)fmin(fmax(real, {low}), {high})"),
    ]


def _choose_sum_type(scales: NodeScales, depth: int) -> str:
    """Return the C type of sums of `depth` products; sums that `scales` requantize are exact."""
    return "u64" if scales.has("y_scale") and depth >= EXACT_DEPTH else "u32"


def _multiply(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _make_matrices(op, call, outputs[0], epilogue).code()


def _convolve(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    scales, y = NodeScales(op, call), outputs[0]
    w, x = (call.spec(index) for index in _get_factors(op))
    depth = math.prod(w.static_shape[1:])
    return Convolution(
        x.static_shape[0],
        x.static_shape[1],
        y.static_shape[1],
        call.attributes["group"],
        make_sliding(call, x, w, y),
        _choose_sum_type(scales, depth),
        lambda at: scales.without_zero("b", f"b[{at}]", ElementPlace("", "0")),
        lambda at, feature: scales.without_zero("a", f"a[{at}]", ElementPlace(feature, "")),
        lambda at, feature, total: _finish(
            scales, depth, y, epilogue, at, total, ElementPlace(feature, "0")
        ),
        (*_declare_factors(op, call), *epilogue.parameters, *scales.parameters),
    ).code()


@generates_product("MatMulInteger")
def matmul_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _multiply("MatMulInteger", call, outputs, epilogue)


@generates_product("QLinearMatMul")
def qlinear_matmul(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _multiply("QLinearMatMul", call, outputs, epilogue)


@generates_product("ConvInteger")
def conv_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _convolve("ConvInteger", call, outputs, epilogue)


@generates_product("QLinearConv")
def qlinear_conv(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _convolve("QLinearConv", call, outputs, epilogue)
