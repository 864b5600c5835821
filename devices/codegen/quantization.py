"""Generators of quantization.

With scales per block, neighbouring elements share one. Dynamic quantization uses two kernels, one
that finds the range and one that converts the numbers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import TensorSpec
from .cells import declare_numbers, make_cell_kernel
from .conversion import dequantize, quantize, refuse_blocks
from .elementwise import generate_single
from .formulas import Formula
from .functions import find_functions
from .indexing import make_strides
from .registry import THREADS, Code, Kernel, Parameter, count_groups, generates
from .types import is_float, load, store

_ROUNDED = "to_u8_f32(min_f32(max_f32({value}, 0), 255))"


@generates("DynamicQuantizeLinear")
def dynamic_quantize(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: x as uint8, in a range that includes 0.

    If all of x is 0 the scale may be anything but 0; it is 1, as in ONNX Runtime.
    """
    x, (y, scale, zero) = call.spec(0), outputs
    parts = min(count_groups(x.size), THREADS)
    partial = TensorSpec(np.float32, (2, parts))
    found = Parameter("part", "f32", "scratch", 0)
    read = [declare_numbers("x", x, "input"), found]
    over = f"""\
for (i64 n = (i64)GROUP * {THREADS} + THREAD; n < {x.size}; n += {parts * THREADS}) {{
    low = min_f32(low, x[n]);
    high = max_f32(high, x[n]);
}}"""
    ends = f"part[GROUP] = low; part[{parts} + GROUP] = high;"
    measure = _make_fold_kernel("range", read, over, ends, parts)
    again = f"if (THREAD < {parts}) {{ low = part[THREAD]; high = part[{parts} + THREAD]; }}"
    settled = f"""\
const f32 unit = (high - low) / 255;
scale[0] = unit == 0 ? 1 : unit;
zero[0] = {_ROUNDED.format(value="rint(-(low / scale[0]))")};"""
    scaled = [
        declare_numbers("scale", scale, "output", 1),
        declare_numbers("zero", zero, "output", 2),
    ]
    settle = _make_fold_kernel("scale", [found, *scaled], again, settled, 1)
    value = _ROUNDED.format(value="rint(x[i] / scale[0]) + zero[0]")
    written = [declare_numbers("x", x, "input"), *scaled, declare_numbers("y", y, "output")]
    write = make_cell_kernel("quantize", y.static_shape, written, [f"y[i] = {value};"])
    return Code((measure, settle, write) if x.size else (settle,), (partial,))


def _make_fold_kernel(
    title: str, parameters: list[Parameter], fold: str, finish: str, groups: int
) -> Kernel:
    """Return kernel `title`, in which each of `groups` finds its lowest and highest number, or 0.

    It has `parameters`. `fold` updates ``low`` and ``high`` with a thread's numbers; then thread 0,
    which has those of its group, runs the statements of `finish`.
    """
    body = f"""\
SHARED f32 lows[{THREADS}], highs[{THREADS}];
f32 low = 0, high = 0;
{fold}
lows[THREAD] = low;
highs[THREAD] = high;
for (i32 reach = {THREADS // 2}; reach > 0; reach /= 2) {{
    BARRIER;
    if (THREAD < reach) {{
        lows[THREAD] = min_f32(lows[THREAD], lows[THREAD + reach]);
        highs[THREAD] = max_f32(highs[THREAD], highs[THREAD + reach]);
    }}
}}
if (THREAD > 0) return;
low = lows[0];
high = highs[0];
{finish}"""
    return Kernel(title, tuple(parameters), body, groups, functions=find_functions(body))


def _quantize(op: str, formula: Formula, call: Call, outputs: Specs) -> Code:
    if not refuse_blocks(call):
        return generate_single(op, call, outputs)
    x, y = call.spec(0), outputs[0]
    axis, size = call.attributes["axis"] % len(x.static_shape), call.attributes["block_size"]
    terms = [
        f"k{d} / {size} * {stride}" if d == axis else f"k{d} * {stride}"
        for d, stride in enumerate(make_strides(call.spec(1).static_shape))
    ]
    given = {"x": 0, "scale": 1} | ({"zero": 2} if call.has(2) else {})
    places = {"x": "i", "scale": "block", "zero": "block"}
    elements = [load(call.spec(n).dtype, name, places[name]) for name, n in given.items()]
    statements = [
        f"const index block = {' + '.join(terms)};",
        store(y.dtype, "y", "i", formula(call, elements)),
    ]
    parameters = [declare_numbers(name, call.spec(n), "input", n) for name, n in given.items()]
    parameters.append(declare_numbers("y", y, "output"))
    return Code((make_cell_kernel("by_blocks", x.static_shape, parameters, statements),))


def _has_wide_quotients(call: Call) -> bool:
    return not is_float(call.spec(1).dtype) or call.attributes["precision"] == "float64"


generates("QuantizeLinear", float64=_has_wide_quotients)(
    partial(_quantize, "QuantizeLinear", quantize)
)
generates("DequantizeLinear")(partial(_quantize, "DequantizeLinear", dequantize))
