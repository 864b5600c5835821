"""The error function from arithmetic, exp and tanh, since numpy lacks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.values.tensor import Array
from .registry import ArrayModule

TEMPORARIES = 5

# float32: erf(x) = tanh(x·P(x²)), which is exact near 0 and at infinity for any P. P was fitted to
# artanh(erf(x))/x by iteratively reweighted least squares; relative error at most 9.5e-8.
_P = (
    1.4184969682156568e-07,
    -5.668428824472242e-06,
    8.763702253146267e-05,
    -6.197837927603166e-04,
    -1.918318797521591e-04,
    1.027690563042035e-01,
    1.1283792742452972e00,
)

# float64: W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23
# (1969). Near 0 erf(x) = x·A(x²)/B(x²), beyond erf(x) = 1 - exp(-x²)·C(x)/D(x). From 6 on the
# difference to 1 is below half a unit in the last place, so that his third range is not needed.
_NEAR = 0.46875
_FAR = 6.0
_A = (
    1.85777706184603153e-1,
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
)
_B = (
    1.0,
    2.36012909523441209e01,
    2.44024637934444173e02,
    1.28261652607737228e03,
    2.84423683343917062e03,
)
_C = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_D = (
    1.0,
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)


def write_erf(xp: ArrayModule, x: Array, y: Array, *temporaries: Array) -> None:
    """Write the error function of `x` to `y`, which may be x, in module `xp`.

    float64 takes all `temporaries`, other dtypes the first two. The error is at most 4 units in the
    last place for float32, 3 for float64.
    """
    if x.dtype == np.float64:
        _write_double(xp, x, y, *temporaries)
    else:
        _write_single(xp, x, y, *temporaries[:2])


def _write_single(xp: ArrayModule, x: Array, y: Array, square: Array, factor: Array) -> None:
    xp.multiply(x, x, out=square)
    _evaluate_polynomial(xp, _P, square, factor)
    xp.multiply(x, factor, out=y)
    xp.tanh(y, out=y)


def _write_double(
    xp: ArrayModule, x: Array, y: Array, t: Array, square: Array, near: Array, q: Array, size: Array
) -> None:
    xp.clip(x, -_FAR, _FAR, out=t)
    xp.multiply(t, t, out=square)
    _evaluate_polynomial(xp, _A, square, near)
    _evaluate_polynomial(xp, _B, square, q)
    xp.multiply(near, t, out=near)
    xp.divide(near, q, out=near)
    xp.absolute(t, out=size)
    _evaluate_polynomial(xp, _C, size, y)
    _evaluate_polynomial(xp, _D, size, q)
    xp.divide(y, q, out=y)
    xp.negative(square, out=square)
    xp.exp(square, out=square)
    xp.multiply(y, square, out=y)
    xp.subtract(1, y, out=y)
    xp.copysign(y, t, out=y)
    is_near = q.view(np.bool_)[: q.size]
    xp.less_equal(size, _NEAR, out=is_near)
    xp.copyto(y, near, where=is_near)


def _evaluate_polynomial(
    xp: ArrayModule, coefficients: Sequence[float], x: Array, y: Array
) -> None:
    leading, *others, last = coefficients
    xp.multiply(x, leading, out=y)
    for coefficient in others:
        xp.add(y, coefficient, out=y)
        xp.multiply(y, x, out=y)
    xp.add(y, last, out=y)
