"""Products of quantized tensors, as exact integers or quantized again."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ...graph.operator import Call, Specs, find_operator
from ...graph.tensor import TensorSpec
from .convolution import Convolution, sliding_of
from .epilogue import Epilogue, generates_product
from .folds import extreme
from .kernel import Code, Parameter
from .matmul import Matrices, Stack, left_stack, product_batch, right_stack, stretched
from .reduction import input_of
from .types import literal, load
from .windows import Sliding

EXACT_DEPTH = (1 << 31) // (255 * 255)
"""So many products of bytes can be added up in 32 bits."""
LOWERED = 128
"""What bytes without a sign are lowered by, to be such with one; their zero points are, too."""

_ROLES = {"scale": "scale", "zero_point": "zero"}
"""What parameters are, by the end of their name in the operator's definition."""


def factors_of(op: str) -> tuple[int, int] | None:
    """Return which inputs of an operator are multiplied, a by b; None if it is no such product.

    Of convolutions, a is the weights, with a row for each feature, and b the images.
    """
    names = _inputs(op)
    for a, b in (("a", "b"), ("w", "x")):
        if {a, b, f"{a}_zero_point", f"{b}_zero_point"} <= names.keys():
            return names[a], names[b]
    return None


def _factor_indices(op: str) -> tuple[int, int]:
    found = factors_of(op)
    assert found is not None, "it multiplies integers"
    return found


@cache
def _parameters(op: str) -> dict[str, int]:
    """Return which inputs are scales, zero points and biases, of a, b or the result y."""
    factors = dict(zip(_factor_indices(op), "ab", strict=True))
    names = _inputs(op)
    found = {}
    for name, index in names.items():
        whose, _, role = name.partition("_")
        if role:
            found[f"{factors.get(names.get(whose, -1), whose)}_{_ROLES[role]}"] = index
        elif index not in factors:
            found["y_bias"] = index
    return found


@cache
def _inputs(op: str) -> dict[str, int]:
    names = find_operator(op).inputs.split()
    return {name.rstrip("?*+"): index for index, name in enumerate(names)}


class ElementPlace(NamedTuple):
    """Where an element of a product is, as C.

    Attributes
    ----------
    of_a, of_b, of_y : str, optional
        Which row or column in all of the stack, where factors are stacks.
    """

    row: str
    column: str
    of_a: str = ""
    of_b: str = ""
    of_y: str = ""


class NodeScales:
    """Scales, zero points and biases of a node: one for all, or for each row, column or feature."""

    def __init__(self, op: str, call: Call) -> None:
        self._call = call
        self._known = {name: index for name, index in _parameters(op).items() if call.has(index)}
        self._factors = dict(zip("ab", _factor_indices(op), strict=True))

    @property
    def parameters(self) -> list[Parameter]:
        return [input_of(self._call.spec(i), name, i) for name, i in self._known.items()]

    def has(self, name: str) -> bool:
        """Say whether there is such a number."""
        return name in self._known

    def number(self, name: str) -> int | None:
        return self._known.get(name)

    def is_single(self, name: str) -> bool:
        """True when there is one for all, or none."""
        return name not in self._known or self._spec(name).size == 1

    def read(self, name: str, place: ElementPlace) -> str:
        spec, of = self._spec(name), name[0]
        vector = place.column if of == "b" else place.row
        stack = {"a": place.of_a, "b": place.of_b, "y": place.of_y}[of]
        index = "0" if spec.size == 1 else vector if len(spec.static_shape) == 1 else stack
        return load(spec.dtype, name, index)

    def without_zero(self, factor: str, value: str, place: ElementPlace) -> str:
        """Return an element of a factor, ``"a"`` or ``"b"``, less its zero point."""
        name = f"{factor}_zero"
        return f"(i32){value}" + (f" - (i32){self.read(name, place)}" if self.has(name) else "")

    def lowered_by(self, factor: str) -> int:
        """Return how much a factor's bytes are lowered to have a sign."""
        return LOWERED if self._call.spec(self._factors[factor]).dtype.name == "uint8" else 0

    def is_around_zero(self, factor: str) -> bool:
        """True when all zero points of a factor whose bytes have a sign are known to be 0."""
        name, by = f"{factor}_zero", self.lowered_by(factor)
        if not self.has(name):
            return by == 0
        value = self._call.value(self._known[name])
        return value is not None and bool((value == by).all())

    def lowered_zero(self, factor: str, place: ElementPlace) -> str:
        """Return the zero point of a factor whose bytes have a sign, modulo 2³²."""
        name, by = f"{factor}_zero", self.lowered_by(factor)
        given = f"(i32){self.read(name, place)}" if self.has(name) else "0"
        return f"(u32)({given} - {by})"

    def _spec(self, name: str) -> TensorSpec:
        return self._call.spec(self._known[name])


def byte_matrices(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Matrices | None:
    """Return a node as a product of matrices, whose first two parameters are its factors.

    None where it is none. Convolutions without groups are, of all weights and each image: that has
    a column for each output, with the cells of its window.
    """
    if factors_of(op) is None or call.attributes.get("group", 1) != 1:
        return None
    return _matrices(op, call, outputs[0], epilogue)


def windows_of(op: str, call: Call, y: TensorSpec) -> Sliding | None:
    """Return the windows of a convolution's columns; None where these are those of the image."""
    if "Conv" not in op:
        return None
    w, x = (call.spec(index) for index in _factor_indices(op))
    sliding = sliding_of(call, x, w, y)
    window = sliding.window
    moves, pads = (*window.kernel, *window.strides), (*window.pads_begin, *window.pads_end)
    return sliding if any(pads) or any(n != 1 for n in moves) else None


def _matrices(op: str, call: Call, y: TensorSpec, epilogue: Epilogue) -> Matrices:
    scales = NodeScales(op, call)
    a, b = (call.spec(index) for index in _factor_indices(op))
    if "Conv" in op:
        features, terms = a.static_shape[0], math.prod(a.static_shape[1:])
        left = Stack((), features, terms)
        right = Stack(b.static_shape[:1], terms, math.prod(y.static_shape[2:]))
        batch = right.batch
    else:
        left, right = left_stack(a), right_stack(b)
        batch = product_batch(left, right)
        # One tall matrix where no row has numbers of its own.
        if all(map(scales.is_single, ("a_scale", "a_zero", "y_scale", "y_zero"))):
            left, batch = stretched(left, right, batch)
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
        _sum_type(scales, depth),
        lambda at, row: scales.without_zero("a", f"a[{at}]", place(row=row)),
        lambda at, column: scales.without_zero("b", f"b[{at}]", place(column=column)),
        finish,
        (*_factors(op, call), *epilogue.parameters, *scales.parameters),
    )


def _factors(op: str, call: Call) -> list[Parameter]:
    pairs = zip("ab", _factor_indices(op), strict=True)
    return [input_of(call.spec(index), name, index) for name, index in pairs]


def _finish(
    scales: NodeScales,
    depth: int,
    y: TensorSpec,
    epilogue: Epilogue,
    at: str,
    total: str,
    place: ElementPlace,
) -> list[str]:
    """Return the statements that hand a sum over, quantized again if there is a scale for that."""
    if not scales.has("y_scale"):
        return epilogue.write(at, f"(i32){total}")
    names = "a_scale", "b_scale", "y_scale", "y_zero"
    scale_a, scale_b, scale_y, zero = (scales.read(name, place) for name in names)
    whole = f"({'i32' if depth < EXACT_DEPTH else 'i64'}){total}"
    if scales.has("y_bias"):
        whole = f"((i64){whole} + {scales.read('y_bias', place)})"
    factor = f"(f32){scale_a} * (f32){scale_b} / (f32){scale_y}"
    low, high = (literal(extreme(y.dtype, name), "f32") for name in ("min", "max"))
    return [
        f"const f32 real = rint((f32){whole} * ({factor})) + (f32){zero};",
        *epilogue.write(at, f"(i32)fmin(fmax(real, {low}), {high})"),
    ]


def _sum_type(scales: NodeScales, depth: int) -> str:
    """Return what to add up in: integers are wanted modulo 2³², reals are made of whole sums."""
    return "u64" if scales.has("y_scale") and depth >= EXACT_DEPTH else "u32"


def _matmul(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    return _matrices(op, call, outputs[0], epilogue).code()


def _conv(op: str, call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    scales, y = NodeScales(op, call), outputs[0]
    w, x = (call.spec(index) for index in _factor_indices(op))
    depth = math.prod(w.static_shape[1:])
    return Convolution(
        x.static_shape[0],
        x.static_shape[1],
        y.static_shape[1],
        call.attributes["group"],
        sliding_of(call, x, w, y),
        _sum_type(scales, depth),
        lambda at: scales.without_zero("b", f"b[{at}]", ElementPlace("", "0")),
        lambda at, feature: scales.without_zero("a", f"a[{at}]", ElementPlace(feature, "")),
        lambda at, feature, total: _finish(
            scales, depth, y, epilogue, at, total, ElementPlace(feature, "0")
        ),
        (*_factors(op, call), *epilogue.parameters, *scales.parameters),
    ).code()


@generates_product("MatMulInteger")
def matmul_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = (a - zero point) · (b - zero point), modulo 2³²."""
    return _matmul("MatMulInteger", call, outputs, epilogue)


@generates_product("QLinearMatMul")
def qlinear_matmul(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = (a - zero point) · (b - zero point), quantized again by the output's scale."""
    return _matmul("QLinearMatMul", call, outputs, epilogue)


@generates_product("ConvInteger")
def conv_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = Σ (x - zero point) · (w - zero point) over windows, modulo 2³²; the padding adds 0."""
    return _conv("ConvInteger", call, outputs, epilogue)


@generates_product("QLinearConv")
def qlinear_conv(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = Σ (x - zero point) · (w - zero point) + b, quantized again by the output's scale."""
    return _conv("QLinearConv", call, outputs, epilogue)
