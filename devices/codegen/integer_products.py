"""Products of quantized tensors, as exact integers or quantized again."""

from __future__ import annotations

import math

from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .convolution import Convolution, sliding_of
from .epilogue import Epilogue, generates_product
from .folds import extreme
from .kernel import Code, Parameter
from .matmul import Matrices, Stack, left_stack, product_batch, right_stack, stretched
from .reduction import input_of
from .types import literal, load

EXACT_DEPTH = (1 << 31) // (255 * 255)
"""So many products of bytes can be added up in 32 bits."""


class _Numbers:
    """Scales and zero points of a node: one for all, or one for each row, column or feature."""

    def __init__(self, call: Call, names: dict[str, int]) -> None:
        self._call = call
        self._known = {name: index for name, index in names.items() if call.has(index)}

    @property
    def parameters(self) -> list[Parameter]:
        return [input_of(self._call.spec(i), name, i) for name, i in self._known.items()]

    def is_single(self, name: str) -> bool:
        """True when there is one for all, or none."""
        return name not in self._known or self._spec(name).size == 1

    def read(self, name: str, vector: str, stack: str = "") -> str:
        """Return one of them, by its index in a vector, or in a stack of vectors."""
        spec = self._spec(name)
        index = "0" if spec.size == 1 else vector if len(spec.static_shape) == 1 else stack
        return load(spec.dtype, name, index)

    def without(self, zero: str, value: str, vector: str, stack: str = "") -> str:
        """Return an expression less its zero point."""
        if zero not in self._known:
            return f"(i32){value}"
        return f"(i32){value} - (i32){self.read(zero, vector, stack)}"

    def _spec(self, name: str) -> TensorSpec:
        return self._call.spec(self._known[name])


def _sum_type(depth: int) -> str:
    return "u32" if depth < EXACT_DEPTH else "u64"


def _quantized(
    total: str, factor: str, zero: str, y: TensorSpec, at: str, epilogue: Epilogue
) -> list[str]:
    """Return the statements that scale an integer, add a zero point, saturate and hand it over."""
    low, high = (literal(extreme(y.dtype, name), "f32") for name in ("min", "max"))
    return [
        f"const f32 real = rint((f32){total} * ({factor})) + (f32){zero};",
        *epilogue.write(at, f"(i32)fmin(fmax(real, {low}), {high})"),
    ]


def _multiplied(
    call: Call, y: TensorSpec, factors: tuple[int, int], numbers: _Numbers, rows: tuple[str, ...]
) -> tuple[Stack, Stack, tuple[int, ...]]:
    """Return the stacks; as one tall matrix where no row has numbers of its own."""
    left, right = left_stack(call.spec(factors[0])), right_stack(call.spec(factors[1]))
    batch = product_batch(left, right)
    if all(map(numbers.is_single, rows)):
        left, batch = stretched(left, right, batch)
    return left, right, batch


@generates_product("MatMulInteger")
def matmul_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = (a - zero point) · (b - zero point), modulo 2³²."""
    a, b, y = call.spec(0), call.spec(1), outputs[0]
    numbers = _Numbers(call, {"a_zero": 2, "b_zero": 3})
    left, right, batch = _multiplied(call, y, (0, 1), numbers, ("a_zero",))

    def finish(row: str, column: str, total: str) -> list[str]:
        at = f"(batch * {left.rows} + {row}) * {right.columns} + {column}"
        return epilogue.write(at, f"(i32){total}")

    depth = max(left.columns, 1)
    return Matrices(
        left,
        right,
        batch,
        "u32",
        lambda at, row: numbers.without("a_zero", f"a[{at}]", row, f"a_start / {depth} + {row}"),
        lambda at, col: numbers.without("b_zero", f"b[{at}]", col, f"b_start / {depth} + {col}"),
        finish,
        (input_of(a, "a"), input_of(b, "b", 1), *epilogue.parameters, *numbers.parameters),
    ).code()


_LINEAR = {"a_scale": 1, "a_zero": 2, "b_scale": 4, "b_zero": 5, "y_scale": 6, "y_zero": 7}


@generates_product("QLinearMatMul")
def qlinear_matmul(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = (a - zero point) · (b - zero point), quantized again by the output's scale."""
    a, b, y = call.spec(0), call.spec(3), outputs[0]
    numbers = _Numbers(call, _LINEAR)
    by_row = ("a_scale", "a_zero", "y_scale", "y_zero")
    left, right, batch = _multiplied(call, y, (0, 3), numbers, by_row)
    depth = max(left.columns, 1)

    def finish(row: str, column: str, total: str) -> list[str]:
        line = f"batch * {left.rows} + {row}"
        scale_a = numbers.read("a_scale", row, f"a_start / {depth} + {row}")
        scale_b = numbers.read("b_scale", column, f"b_start / {depth} + {column}")
        scale_y, zero = (numbers.read(name, row, line) for name in ("y_scale", "y_zero"))
        factor = f"(f32){scale_a} * (f32){scale_b} / (f32){scale_y}"
        at = f"({line}) * {right.columns} + {column}"
        return _quantized(f"({_signed(left.columns)}){total}", factor, zero, y, at, epilogue)

    return Matrices(
        left,
        right,
        batch,
        _sum_type(left.columns),
        lambda at, row: numbers.without("a_zero", f"a[{at}]", row, f"a_start / {depth} + {row}"),
        lambda at, col: numbers.without("b_zero", f"b[{at}]", col, f"b_start / {depth} + {col}"),
        finish,
        (input_of(a, "a"), input_of(b, "b", 3), *epilogue.parameters, *numbers.parameters),
    ).code()


def _signed(depth: int) -> str:
    return "i32" if depth < EXACT_DEPTH else "i64"


@generates_product("ConvInteger")
def conv_integer(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = Σ (x - zero point) · (w - zero point) over windows, modulo 2³²; the padding adds 0."""
    x, w, y = call.spec(0), call.spec(1), outputs[0]
    numbers = _Numbers(call, {"x_zero": 2, "w_zero": 3})
    return Convolution(
        x.static_shape[0],
        x.static_shape[1],
        y.static_shape[1],
        call.attributes["group"],
        sliding_of(call, x, w, y),
        "u32",
        lambda at: numbers.without("x_zero", f"x[{at}]", "0"),
        lambda at, feature: numbers.without("w_zero", f"w[{at}]", feature),
        lambda at, feature, total: epilogue.write(at, f"(i32){total}"),
        (input_of(x), input_of(w, "w", 1), *epilogue.parameters, *numbers.parameters),
    ).code()


_LINEAR_CONV = {"x_scale": 1, "x_zero": 2, "w_scale": 4, "w_zero": 5, "y_scale": 6, "y_zero": 7}


@generates_product("QLinearConv")
def qlinear_conv(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    """Y = Σ (x - zero point) · (w - zero point) + b, quantized again by the output's scale."""
    x, w, y = call.spec(0), call.spec(3), outputs[0]
    numbers = _Numbers(call, {**_LINEAR_CONV, "b": 8})
    depth = math.prod(w.static_shape[1:])

    def finish(at: str, feature: str, total: str) -> list[str]:
        scale_w = numbers.read("w_scale", feature)
        scale_x, scale_y, zero = (
            numbers.read(name, "0") for name in ("x_scale", "y_scale", "y_zero")
        )
        factor = f"(f32){scale_x} * (f32){scale_w} / (f32){scale_y}"
        bias = f" + {numbers.read('b', feature)}" if call.has(8) else ""
        whole = f"((i64)({_signed(depth)}){total}{bias})"
        return _quantized(whole, factor, zero, y, at, epilogue)

    return Convolution(
        x.static_shape[0],
        x.static_shape[1],
        y.static_shape[1],
        call.attributes["group"],
        sliding_of(call, x, w, y),
        _sum_type(depth),
        lambda at: numbers.without("x_zero", f"x[{at}]", "0"),
        lambda at, feature: numbers.without("w_zero", f"w[{at}]", feature),
        finish,
        (input_of(x), input_of(w, "w", 3), *epilogue.parameters, *numbers.parameters),
    ).code()
