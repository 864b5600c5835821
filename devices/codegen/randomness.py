"""The generator of Philox: one thread for each block of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.core.operator import Call, Specs
from ...graph.operators.normal_quantile import (
    CENTRAL,
    FAR,
    FARTHEST,
    HALF,
    HALF_SQUARED,
    LOG_2,
    LOG_TERMS,
    NEAR,
    NEAR_FROM,
    ROOT_HALF,
    Ratio,
)
from ...graph.operators.randomness import INTEGER, NORMAL, PHILOX
from .cells import declare_numbers, make_cell_kernel
from .registry import Code, generates
from .types import write_literal

_MULTIPLIERS = "0xD2E7470EE14C6C93UL", "0xCA5A826395121157UL"
_WEYL = "0x9E3779B97F4A7C15UL", "0xBB67AE8584CAA73BUL"
_ROUNDS = 10
_BLOCK = 256
"""Bits of a block."""

# The upper word of a product: compilers make single instructions of products of halves.
_UPPER = """\
FUNCTION u64 upper_u64(u64 a, u64 b) {
    const u64 low = 0xFFFFFFFFUL, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const u64 cross = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (cross & low);
    return a1 * b1 + (cross >> 32) + (other >> 32);
}
"""


@generates(PHILOX, float64=lambda call: bool(call.attributes["distribution"] == NORMAL))
def philox(call: Call, outputs: Specs) -> Code:
    y, given = outputs[0], call.attributes
    bits = 8 * y.dtype.itemsize
    each = _BLOCK // bits
    blocks = -(-y.size // each)
    seed = "0" if given["seeded"] else "key[0]"
    statements = [
        f"u64 key0 = {seed}, key1 = {write_literal(given['sequence'], 'u64')};",
        "u64 c0 = (u64)i + 1, c1 = key[1], c2 = 0, c3 = 0;",
        f"for (i32 n = 0; n < {_ROUNDS}; n++) {{",
        f"    const u64 h0 = upper_u64({_MULTIPLIERS[0]}, c0), l0 = {_MULTIPLIERS[0]} * c0;",
        f"    const u64 h1 = upper_u64({_MULTIPLIERS[1]}, c2), l1 = {_MULTIPLIERS[1]} * c2;",
        "    c0 = h1 ^ c1 ^ key0; c1 = l1; c2 = h0 ^ c3 ^ key1; c3 = l0;",
        f"    key0 += {_WEYL[0]}; key1 += {_WEYL[1]};",
        "}",
        f"for (i32 n = 0; n < {each}; n++) {{",
        f"    const index at = i * {each} + n;",
        f"    if (at >= {y.size}) return;",
        f"    const i32 w = n / {64 // bits};",
        "    const u64 whole = w == 0 ? c0 : w == 1 ? c1 : w == 2 ? c2 : c3;",
        f"    const u{bits} word = (u{bits})(whole >> ({bits} * (n % {64 // bits})));",
        f"    y[at] = {_draw(given['distribution'], bits)};",
        "}",
    ]
    parameters = [declare_numbers("key", call.spec(0), "input"), declare_numbers("y", y, "output")]
    kernel = make_cell_kernel("philox", (blocks,), parameters, statements, [blocks * each])
    functions = (_UPPER, *(_QUANTILE if given["distribution"] == NORMAL else ()))
    return Code((replace(kernel, functions=(*kernel.functions, *functions)),))


def _draw(distribution: str, bits: int) -> str:
    if distribution == INTEGER:
        return "word"
    if distribution == NORMAL:
        digits = min(bits, 52)
        p = f"((f64)(word >> {bits - digits}) + 0.5) * {write_literal(0.5**digits, 'f64')}"
        return f"(f{bits})normal_quantile_f64({p})"
    digits = 24 if bits == 32 else 53
    return f"(f{bits})(word >> {bits - digits}) * {write_literal(0.5**digits, f'f{bits}')}"


def _write_polynomial(coefficients: Sequence[float], x: str) -> str:
    total = write_literal(coefficients[0], "f64")
    for one in coefficients[1:]:
        total = f"({total} * {x} + {write_literal(one, 'f64')})"
    return total


def _write_quotient(ratio: Ratio, x: str) -> str:
    return f"{_write_polynomial(ratio.above, x)} / {_write_polynomial(ratio.below, x)}"


_QUANTILE = (
    f"""\
FUNCTION f64 series_log_f64(f64 m) {{
    i32 exponent = 0;
    while (m < {write_literal(ROOT_HALF, "f64")}) {{ m *= 2; exponent--; }}
    const f64 s = (m - 1.0) / (m + 1.0), t = s * s;
    return exponent * {write_literal(LOG_2, "f64")} + 2.0 * s * {_write_polynomial(LOG_TERMS, "t")};
}}
""",
    f"""\
FUNCTION f64 normal_quantile_f64(f64 p) {{
    const f64 q = p - 0.5;
    if (fabs(q) <= {write_literal(HALF, "f64")}) {{
        const f64 r = {write_literal(HALF_SQUARED, "f64")} - q * q;
        return q * ({_write_quotient(CENTRAL, "r")});
    }}
    const f64 r = sqrt(-series_log_f64(q < 0 ? p : 1.0 - p));
    const f64 near = r - {write_literal(NEAR_FROM, "f64")};
    const f64 far = r - {write_literal(FARTHEST, "f64")};
    const f64 z = far <= 0 ? {_write_quotient(NEAR, "near")} : {_write_quotient(FAR, "far")};
    return q < 0 ? -z : z;
}}
""",
)
