"""C functions that expressions call, instantiated for the types of each call.

A call names the function and its types: ``max_f32(a, b)``, ``to_i32_f64(x)``. `find_functions`
finds the calls in a kernel's body and returns the functions, callees first.
"""

from __future__ import annotations

import re

FUNCTIONS = {
    # NaN wins, from either side, as in numpy and ONNX; fmax would drop it.
    "max_f": "return a > b || a != a ? a : b;",
    "max_i": "return a > b ? a : b;",
    "min_f": "return a < b || a != a ? a : b;",
    "min_i": "return a < b ? a : b;",
    "sign_f": "return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;",
    "sign_i": "return (x > 0) - (x < 0);",
    # As a conditional it would become an LLVM instruction that Oclgrind does not support.
    "abs_i": "const {w} minus = x < 0; return ({t})((({w})x ^ (0 - minus)) + minus);",
    # Integer quotients by 0 are 0, and the lowest number is its own opposite.
    "quotient_i": "return b == 0 ? 0 : b == -1 ? ({t})(0 - ({w})a) : ({t})(a / b);",
    "quotient_u": "return b == 0 ? 0 : a / b;",
    "rest_f": "return fmod(a, b);",
    "rest_i": "return b == 0 || b == -1 ? 0 : a % b;",
    "rest_u": "return b == 0 ? 0 : a % b;",
    "modulo_f": """\
const {t} r = fmod(a, b);
    if (r == 0) return copysign(({t})0, b);
    return (r < 0) != (b < 0) ? r + b : r;""",
    "modulo_i": """\
const {t} r = rest_{t}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;""",
    "modulo_u": "return b == 0 ? 0 : a % b;",
    "left_i": "return b >= 0 && b < {bits} ? ({t})(({w})a << b) : 0;",
    "right_i": "return b >= 0 && b < {bits} ? a >> b : a < 0 ? -1 : 0;",
    "half_i": "return (x >> 1) + (x & 1);",  # rounded upwards
    "digits_i": "return 32 - LEADING_ZEROS((u32)abs_{t}(x) | 1);",
    "power_i": """\
{w} y = 1, z = ({w})x;
    for (; e; e >>= 1, z *= z) if (e & 1) y *= z;
    return ({t})y;""",
    "inverse_i": "return x == 1 ? 1 : x == -1 ? (e & 1 ? -1 : 1) : 0;",
    "inverse_u": "return x == 1;",
    # An index into an axis of a length: from the end if negative, wrapped around outside.
    "place_i": "return a >= 0 && a < b ? a : a < 0 && a >= -b ? a + b : (a % b + b) % b;",
    "softplus_f": "return max_{t}(x, 0) + log1p(exp(-fabs(x)));",
    # Values out of range become low bits or the lowest number, as on processors.
    "to_i32": "return x > {below} && x < 0x1p31f ? (i32)x : -2147483647 - 1;",
    "to_i64": "return x >= -0x1p63f && x < 0x1p63f ? (i64)x : -9223372036854775807L - 1;",
    "to_u32": "return (u32)to_i64_{s}(x);",
    "to_u64": """\
if (x < 0x1p63f || x != x) return (u64)to_i64_{s}(x);
    return x < 0x1p64f ? (u64)x : 0;""",
    "to_small": "return ({t})to_i32_{s}(x);",
    # After rounding to odd, a second rounding to fewer bits gives the result of a single one.
    "odd": """\
const f32 y = (f32)x;
    const u32 bits = BITS_F32(y);
    if ((f64)y == x || x != x || (bits & 1)) return y;
    return F32_BITS(fabs((f64)y) < fabs(x) ? bits + 1 : bits - 1);""",
}
"""Bodies by name and kind of number: f floats, i signed integers, u unsigned ones; without an entry
for u, i is both.  ``{t}`` is the type, ``{s}`` the source of a conversion, ``{w}`` the unsigned
integer to compute in, which wraps around."""

_ARGUMENTS = {
    "to": "{s} x",
    "odd": "f64 x",
    "power": "{t} x, u64 e",
    "inverse": "{t} x, i64 e",
    **dict.fromkeys(("sign", "abs", "softplus", "half", "digits"), "{t} x"),
}
_NAMES = sorted({name.split("_")[0] for name in FUNCTIONS})
_CALL = re.compile(rf"\b({'|'.join(_NAMES)})_([iuf]\d+)(?:_([iuf]\d+))?\(")
_BELOW = {"f32": "-0x1.000002p31f", "f64": "-2147483649.0"}
"""The largest numbers that round toward zero to values below an i32."""


def find_functions(body: str) -> tuple[str, ...]:
    """Return the C functions that the statements in `body` call, in an order of definition."""
    found: dict[str, None] = {}
    _collect(body, found)
    return tuple(found)


def choose_word(c: str) -> str:
    """Return the unsigned type in which integers of C type `c` are computed, which wraps around."""
    return "u64" if c.endswith("64") else "u32"


def _collect(body: str, found: dict[str, None]) -> None:
    for name, c, source in _CALL.findall(body):
        text = _define(name, c, source)
        if text not in found:
            _collect(text.partition("{")[2], found)
            found[text] = None


def _define(name: str, c: str, source: str) -> str:
    types = {
        "t": c,
        "s": source,
        "w": choose_word(c),
        "bits": c[1:],
        "below": _BELOW.get(source, ""),
    }
    full = f"{name}_{c}_{source}" if source else f"{name}_{c}"
    arguments = _ARGUMENTS.get(name, "{t} a, {t} b").format(**types)
    return f"FUNCTION {c} {full}({arguments}) {{\n    {_find_body(name, c).format(**types)}\n}}\n"


def _find_body(name: str, c: str) -> str:
    if name == "to":
        return FUNCTIONS[f"to_{c if c in ('i32', 'i64', 'u32', 'u64') else 'small'}"]
    kinds = (f"{name}_{c[0]}", f"{name}_i", name)
    return next(FUNCTIONS[kind] for kind in kinds if kind in FUNCTIONS)
