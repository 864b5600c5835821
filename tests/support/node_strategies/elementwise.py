"""Nodes that compute element by element: arithmetic, logic, activations, conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from single_node import AnyArray

from .drawing import (
    ALL,
    ANY,
    FINITE,
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    SIGNED,
    WITH_SPECIAL,
    Draw,
    NodeCase,
    Palette,
    Strategy,
    broadcast_part,
    choose,
    few,
    flag,
    integer,
    ordinary,
    rng_of,
    shape,
    tensor,
)

ALPHAS = (0.0, 0.01, 0.5, 1.0, 1.75, -0.5)
"""What the attributes of activations are drawn from."""


def unary(dtypes: Sequence[str], ulps: float = 0, palettes: Sequence[Palette] = ALL) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        x = tensor(draw, choose(draw, dtypes), shape(draw), palettes)
        return NodeCase([x], ulps=ulps)

    return strategy


def shapes_together(draw: Draw, count: int) -> Sequence[tuple[int, ...]]:
    """Draw shapes that are broadcast together."""
    drawn: Any = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=count, min_side=0, max_dims=4, max_side=3)
    )
    return tuple(drawn.input_shapes)


def binary(
    dtypes: Sequence[str], palettes: Sequence[Palette] = ALL, **attributes: Sequence[Any]
) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        dtype = choose(draw, dtypes)
        inputs = [tensor(draw, dtype, of, palettes) for of in shapes_together(draw, 2)]
        return NodeCase(inputs, {name: choose(draw, of) for name, of in attributes.items()})

    return strategy


def variadic(dtypes: Sequence[str], palettes: Sequence[Palette], ulps: float) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        dtype, count = choose(draw, dtypes), integer(draw, 1, 4)
        inputs = [tensor(draw, dtype, of, palettes) for of in shapes_together(draw, count)]
        terms = sum(np.abs(x.astype(np.float64)) for x in inputs) if ulps else 0.0
        return NodeCase(inputs, ulps=ulps, terms=terms)

    return strategy


def shift(draw: Draw) -> NodeCase:
    dtype = choose(draw, INTEGERS)
    x_shape, y_shape = shapes_together(draw, 2)
    counts = rng_of(draw).integers(0, 8 * np.dtype(dtype).itemsize + 3, y_shape)
    direction = {"direction": choose(draw, ("LEFT", "RIGHT"))}
    return NodeCase([tensor(draw, dtype, x_shape), np.asarray(counts, dtype)], direction)


def modulo(draw: Draw) -> NodeCase:
    dtype = choose(draw, NUMBERS)
    palettes = FINITE if dtype in FLOATS else ALL
    inputs = [tensor(draw, dtype, of, palettes) for of in shapes_together(draw, 2)]
    # Python's % of floats rounds twice, as numpy's does.
    return NodeCase(inputs, {"fmod": flag(draw)}, ulps=1 if dtype in FLOATS else 0)


def power(draw: Draw) -> NodeCase:
    """Integers to fractional powers are kept where the power is a number that fits."""
    base, exponent = choose(draw, NUMBERS), choose(draw, NUMBERS)
    x_shape, e_shape = shapes_together(draw, 2)
    if base in FLOATS:
        palettes = (few, ordinary, *WITH_SPECIAL) if exponent in FLOATS else (few,)
        x = tensor(draw, base, x_shape, palettes)
        return NodeCase([x, tensor(draw, exponent, e_shape, palettes)], ulps=4)
    x = tensor(draw, base, x_shape, (few,) if exponent in FLOATS else FINITE)
    e = tensor(draw, exponent, e_shape, (few,))
    if exponent in FLOATS:
        x, e = np.abs(x), np.abs(np.rint(e))
    return NodeCase([x, e])


def clip(draw: Draw) -> NodeCase:
    dtype = choose(draw, NUMBERS)
    bounds = [
        None if flag(draw) else tensor(draw, dtype, choose(draw, ((), (), (1,))), (few, ordinary))
        for _ in range(2)
    ]
    return NodeCase([tensor(draw, dtype, shape(draw), ALL), *bounds])


def castable(draw: Draw, to: str) -> AnyArray:
    """Draw what the dtype `to` can hold: ONNX leaves open what else becomes of floats."""
    source = choose(draw, ANY)
    if np.dtype(source).kind not in "fc" or np.dtype(to).kind not in "iu":
        return tensor(draw, source, shape(draw), ALL if np.dtype(source).kind != "c" else FINITE)
    x = tensor(draw, source, shape(draw), (few, ordinary))
    return x if to in SIGNED else np.where(x.real < 0, -x, x)


def cast(draw: Draw) -> NodeCase:
    to = choose(draw, ANY)
    return NodeCase([castable(draw, to)], {"to": to})


def cast_like(draw: Draw) -> NodeCase:
    to = choose(draw, ANY)
    return NodeCase([castable(draw, to), np.zeros(shape(draw, 0, 2), to)])


def bit_cast(draw: Draw) -> NodeCase:
    to = choose(draw, tuple(dtype for dtype in ANY if dtype != "bool"))
    same_size = [d for d in ANY if np.dtype(d).itemsize == np.dtype(to).itemsize]
    return NodeCase([tensor(draw, choose(draw, same_size), shape(draw), FINITE)], {"to": to})


def dropout(draw: Draw) -> NodeCase:
    ratio = None if flag(draw) else np.array(0.3, np.float32)
    training = None if flag(draw) else np.array(False)
    x = tensor(draw, choose(draw, FLOATS), shape(draw), ALL)
    return NodeCase([x, ratio, training], n_outputs=integer(draw, 1, 2), constant={2})


def where(draw: Draw) -> NodeCase:
    dtype, (c, x, y) = choose(draw, ANY), shapes_together(draw, 3)
    return NodeCase([tensor(draw, "bool", c), tensor(draw, dtype, x), tensor(draw, dtype, y)])


def infinite(draw: Draw) -> NodeCase:
    flags = {name: flag(draw) for name in ("detect_negative", "detect_positive")}
    return NodeCase([tensor(draw, choose(draw, FLOATS), shape(draw), WITH_SPECIAL)], flags)


def activation(
    ulps: float = 8,
    dtypes: Sequence[str] = FLOATS,
    terms: Callable[[AnyArray, dict[str, Any]], Any] = lambda x, attributes: 0.0,
    palettes: Sequence[Palette] = WITH_SPECIAL,
    **attributes: Sequence[Any],
) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        x = tensor(draw, choose(draw, dtypes), shape(draw), palettes)
        given = {name: choose(draw, of) for name, of in attributes.items() if flag(draw)}
        with np.errstate(all="ignore"):
            return NodeCase([x], given, ulps=ulps, terms=terms(x.astype(np.float64), given))

    return strategy


def prelu(draw: Draw) -> NodeCase:
    dtype, of = choose(draw, NUMBERS), shape(draw)
    slope = tensor(draw, dtype, broadcast_part(draw, of))
    return NodeCase([tensor(draw, dtype, of, FINITE), slope])


def _linear(x: AnyArray, given: dict[str, Any]) -> Any:
    return np.abs(given.get("alpha", 0.2) * x) + abs(given.get("beta", 0.5))


def _own(x: AnyArray, given: dict[str, Any]) -> Any:
    return np.abs(x)


def _exponential(x: AnyArray, given: dict[str, Any]) -> Any:
    return 2.0 * abs(given.get("alpha", 1.7)) * abs(given.get("gamma", 1.1))


TRANSCENDENTAL = (
    *("Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
)

STRATEGIES: dict[str, Strategy] = {
    **dict.fromkeys(("Abs", "Sign"), unary(NUMBERS)),
    "Neg": unary((*FLOATS, *SIGNED)),
    "BitwiseNot": unary(INTEGERS),
    **dict.fromkeys(("Sqrt", "Reciprocal", "Floor", "Ceil", "Round"), unary(FLOATS)),
    **dict.fromkeys(TRANSCENDENTAL, unary(FLOATS, ulps=4)),
    **dict.fromkeys(("Identity",), unary(ANY, palettes=FINITE)),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), binary(NUMBERS)),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), binary(INTEGERS)),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), binary(NUMBERS)),
    **dict.fromkeys(("And", "Or", "Xor"), binary(("bool",))),
    "Equal": binary(REALS),
    "Not": unary(("bool",)),
    "IsNaN": unary(FLOATS),
    "IsInf": infinite,
    "Where": where,
    "BitShift": shift,
    "Mod": modulo,
    **dict.fromkeys(("Max", "Min"), variadic(NUMBERS, ALL, 0)),
    **dict.fromkeys(("Sum", "Mean"), variadic(FLOATS, WITH_SPECIAL, 4)),
    "Pow": power,
    "Clip": clip,
    "Cast": cast,
    "CastLike": cast_like,
    "BitCast": bit_cast,
    "Dropout": dropout,
    "Relu": unary((*FLOATS, *SIGNED)),
    "LeakyRelu": activation(1, alpha=ALPHAS),
    "ThresholdedRelu": activation(0, alpha=ALPHAS),
    "HardSigmoid": activation(terms=_linear, alpha=ALPHAS, beta=ALPHAS),
    "HardSwish": activation(terms=lambda x, given: np.abs(x) * (1 + np.abs(x))),
    **dict.fromkeys(("Softsign", "Sigmoid", "Mish"), activation()),
    "Softplus": activation(palettes=ALL),
    "Swish": activation(alpha=ALPHAS),
    "Elu": activation(terms=_exponential, alpha=ALPHAS),
    "Celu": activation(terms=_exponential, alpha=(0.5, 1.0, 2.0, -0.5)),
    "Selu": activation(terms=_exponential, alpha=ALPHAS, gamma=(0.0, 1.0, 2.5)),
    "Gelu": activation(terms=_own, approximate=("none", "tanh")),
    "Shrink": activation(0, NUMBERS, palettes=(few, ordinary), bias=(0.0, 1.0), lambd=(0.5, 2.0)),
    "PRelu": prelu,
}
