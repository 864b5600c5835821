"""The generator that quantizes by the range of what it is given: the range first, then numbers."""

from __future__ import annotations

import numpy as np

from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .cells import cells, typed
from .functions import called_in
from .kernel import THREADS, Code, Kernel, Parameter, groups_of
from .registry import generates

_ROUNDED = "to_u8_f32(min_f32(max_f32({value}, 0), 255))"


@generates("DynamicQuantizeLinear")
def dynamic_quantize(call: Call, outputs: Specs) -> Code:
    """Write x as uint8, by the scale and zero point that just cover its range and 0.

    Where all is 0 the scale may be anything but 0; it is 1, as ONNX Runtime has it.
    """
    x, (y, scale, zero) = call.spec(0), outputs
    parts = min(groups_of(x.size), THREADS)
    partial = TensorSpec(np.float32, (2, parts))
    found = Parameter("part", "f32", "scratch", 0)
    read = [typed("x", x, "input"), found]
    over = f"""\
for (i64 n = (i64)GROUP * {THREADS} + THREAD; n < {x.size}; n += {parts * THREADS}) {{
    low = min_f32(low, x[n]);
    high = max_f32(high, x[n]);
}}"""
    ends = f"part[GROUP] = low; part[{parts} + GROUP] = high;"
    measure = _folding("range", read, over, ends, parts)
    again = f"if (THREAD < {parts}) {{ low = part[THREAD]; high = part[{parts} + THREAD]; }}"
    settled = f"""\
const f32 unit = (high - low) / 255;
scale[0] = unit == 0 ? 1 : unit;
zero[0] = {_ROUNDED.format(value="rint(-(low / scale[0]))")};"""
    scaled = [typed("scale", scale, "output", 1), typed("zero", zero, "output", 2)]
    settle = _folding("scale", [found, *scaled], again, settled, 1)
    value = _ROUNDED.format(value="rint(x[i] / scale[0]) + zero[0]")
    written = [typed("x", x, "input"), *scaled, typed("y", y, "output")]
    write = cells("quantize", y.static_shape, written, [f"y[i] = {value};"])
    return Code((measure, settle, write) if x.size else (settle,), (partial,))


def _folding(
    title: str, parameters: list[Parameter], fold: str, finish: str, groups: int
) -> Kernel:
    """Return the kernel whose groups each find the lowest and highest number, 0 among them.

    `fold` takes a thread's numbers into ``low`` and ``high``; then thread 0 has those of its group
    and takes the statements that finish.
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
    return Kernel(title, tuple(parameters), body, groups, functions=called_in(body))
