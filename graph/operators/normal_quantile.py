"""Φ⁻¹, the quantiles of the normal distribution, in operations that IEEE 754 rounds exactly.

Additions, products, quotients and square roots, none contracted: so all devices agree to the last
bit, which logarithms of their own libraries do not. The logarithm is a series here.

Source: Wichura, *Algorithm AS 241: The Percentage Points of the Normal Distribution* (1988),
PPND16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Ratio(NamedTuple):
    """A quotient of two polynomials, coefficients of the highest power first."""

    above: Sequence[float]
    below: Sequence[float]


CENTRAL = Ratio(
    (
        *(2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4),
        *(4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3),
        *(1.3314166789178437745e2, 3.3871328727963666080e0),
    ),
    (
        *(5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4),
        *(2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2),
        *(4.2313330701600911252e1, 1.0),
    ),
)
"""Of HALF² - q², where abs(q) <= HALF, q being p - 1/2; times q it is Φ⁻¹(p)."""
NEAR = Ratio(
    (
        *(7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1),
        *(1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0),
        *(4.63033784615654529590e0, 1.42343711074968357734e0),
    ),
    (
        *(1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2),
        *(1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0),
        *(2.05319162663775882187e0, 1.0),
    ),
)
"""Of r - 1.6, r being √-log min(p, 1 - p) up to FARTHEST; with the sign of q it is Φ⁻¹(p)."""
FAR = Ratio(
    (
        *(2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3),
        *(2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0),
        *(5.46378491116411436990e0, 6.65790464350110377720e0),
    ),
    (
        *(2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5),
        *(7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1),
        *(5.99832206555887937690e-1, 1.0),
    ),
)
"""Of r - 5, where r is above FARTHEST."""
HALF, HALF_SQUARED = 0.425, 0.180625
NEAR_FROM, FARTHEST = 1.6, 5.0
LOG_2, ROOT_HALF = math.log(2), math.sqrt(0.5)
LOG_TERMS = tuple(1 / (2 * n + 1) for n in range(10, -1, -1))
"""log m = 2·s·(1 + s²/3 + s⁴/5 + ...), s being (m - 1) / (m + 1): for m from √½ to √2."""


def normal_quantile(p: float) -> float:
    """Return the number below which a standard normal variable lies with probability `p`."""
    q = p - 0.5
    if abs(q) <= HALF:
        return q * _evaluate_ratio(CENTRAL, HALF_SQUARED - q * q)
    r = math.sqrt(-_log(p if q < 0 else 1.0 - p))
    z = (
        _evaluate_ratio(NEAR, r - NEAR_FROM)
        if r <= FARTHEST
        else _evaluate_ratio(FAR, r - FARTHEST)
    )
    return -z if q < 0 else z


def _evaluate_ratio(ratio: Ratio, x: float) -> float:
    return _evaluate_polynomial(ratio.above, x) / _evaluate_polynomial(ratio.below, x)


def _evaluate_polynomial(coefficients: Sequence[float], x: float) -> float:
    total = coefficients[0]
    for one in coefficients[1:]:
        total = total * x + one
    return total


def _log(x: float) -> float:
    m, exponent = math.frexp(x)
    if m < ROOT_HALF:
        m, exponent = m * 2, exponent - 1
    s = (m - 1.0) / (m + 1.0)
    return exponent * LOG_2 + 2.0 * s * _evaluate_polynomial(LOG_TERMS, s * s)
