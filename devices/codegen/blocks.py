"""Generators of quantization; where scales are per block, elements side by side share one."""

from __future__ import annotations

from functools import partial

from ...graph.operator import Call, Specs
from .cells import cells, typed
from .conversion import dequantize, has_blocks, quantize
from .elementwise import single
from .formulas import Formula
from .indexing import contiguous
from .kernel import Code
from .registry import generates
from .types import is_float, load, store


def _quantized(op: str, formula: Formula, call: Call, outputs: Specs) -> Code:
    if not has_blocks(call):
        return single(op, call, outputs)
    x, y = call.spec(0), outputs[0]
    axis, size = call.attributes["axis"] % len(x.static_shape), call.attributes["block_size"]
    terms = [
        f"k{d} / {size} * {stride}" if d == axis else f"k{d} * {stride}"
        for d, stride in enumerate(contiguous(call.spec(1).static_shape))
    ]
    given = {"x": 0, "scale": 1} | ({"zero": 2} if call.has(2) else {})
    places = {"x": "i", "scale": "block", "zero": "block"}
    elements = [load(call.spec(n).dtype, name, places[name]) for name, n in given.items()]
    statements = [
        f"const index block = {' + '.join(terms)};",
        store(y.dtype, "y", "i", formula(call, elements)),
    ]
    parameters = [typed(name, call.spec(n), "input", n) for name, n in given.items()]
    parameters.append(typed("y", y, "output"))
    return Code((cells("by_blocks", x.static_shape, parameters, statements),))


def _has_wide_quotients(call: Call) -> bool:
    return not is_float(call.spec(1).dtype) or call.attributes["precision"] == "float64"


generates("QuantizeLinear", float64=_has_wide_quotients)(
    partial(_quantized, "QuantizeLinear", quantize)
)
generates("DequantizeLinear")(partial(_quantized, "DequantizeLinear", dequantize))
