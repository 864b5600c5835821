"""Differences of ONNX Runtime's kernels from ONNX, for which nodes go to other devices.

Found by running ONNX's own node tests, and integers at the ends of their ranges, on version 1.31.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...graph.dims import normalize_axis
from ...graph.ir import Node
from ...graph.operator import Call
from ...graph.operators.attention import MASK, MASKED, SCORES, USED
from ...graph.operators.inputs import integers, is_computed
from ...graph.operators.movement import pads_by_axis
from ...graph.tensor import TensorSpec
from .empty import is_empty, may_be_empty
from .runtime import gives_empty_parts


class Difference(NamedTuple):
    """The calls of an operator that are concerned, and what is different for them."""

    concerns: Callable[[Call], bool]
    what: str

    def __call__(self, call: Call) -> str | None:
        """Return what is different for a call; None where nothing is."""
        return self.what if self.concerns(call) else None


def difference(node: Node, call: Call) -> str | None:
    """Return what ONNX Runtime would do otherwise; None if it does as the other devices do."""
    if node.operator.bounded is not None:
        return "the length of its output depends on values"
    if node.operator.effects:
        return "it has effects"
    inputs = zip(node.inputs, call.inputs, call.values, strict=True)
    for index, (name, spec, value) in enumerate(inputs):
        if is_empty(spec, value) and not may_be_empty(node, index):
            return f"{name!r} has no elements: some of its kernels end the process then"
    found = _DIFFERENCES.get(node.op)
    return None if found is None else found(call)


def _may_trap(call: Call) -> bool:
    """True for integers divided by what may be 0, or -1, which the least integer overflows at."""
    if call.spec(0).dtype.kind not in "iu":
        return False
    divisor = call.value(1)
    return divisor is None or any(int(value) in (0, -1) for value in divisor.flat)


def _is_single(spec: TensorSpec | None) -> bool:
    return spec is None or (spec.is_static and spec.size == 1)


def _several(*indices: int) -> Callable[[Call], bool]:
    """Return a predicate: one of these inputs holds more than one element."""
    return lambda call: not all(_is_single(call.inputs[i]) for i in indices if call.has(i))


def _scales_to_corners(call: Call) -> bool:
    return call.attributes["coordinate_transformation_mode"] == "align_corners" and call.has(2)


def _keeps_or_shortens_mask(call: Call) -> bool:
    """True for attention whose masked scores are asked for, or whose mask may lack keys."""
    masked = call.n_outputs > SCORES and call.attributes["qk_matmul_output_mode"] == MASKED
    return masked or (call.has(MASK) and call.has(USED))


def _has_scalar_axes(call: Call) -> bool:
    return call.has(1) and call.spec(1).rank == 0


def _may_run_out(call: Call) -> bool:
    """True where all parts but the last may need more than the whole.

    For older releases also where they may need the whole, so that the last part has nothing.
    """
    shape = call.spec(0).shape
    if call.has(1) or shape is None:
        return not call.has(1)
    length = shape[normalize_axis(call.attributes["axis"], len(shape))]
    before = call.n_outputs - 1
    spare = 0 if gives_empty_parts() else 1
    if before < 2 and not spare:  # the first half of anything is there
        return False
    return not isinstance(length, int) or -(-length // (before + 1)) * before + spare > length


def _may_reflect_again(call: Call) -> bool:
    """True where a pad may reach beyond the reflection of the other end; ONNX goes on as NumPy."""
    if call.attributes["mode"] != "reflect":
        return False
    shape, pads = call.spec(0).shape, integers(call, 1, "pads")
    if shape is None or pads is None or is_computed(call, 3):
        return True
    pairs = pads_by_axis(len(shape), pads, integers(call, 3, "axes"))
    return any(
        max(pair) > 0
        and not (isinstance(length, int) and max(pair) < length + sum(min(pad, 0) for pad in pair))
        for length, pair in zip(shape, pairs, strict=True)
    )


_SCALAR_AXES = Difference(_has_scalar_axes, "axes that are a scalar fail")
_DIVIDING = Difference(_may_trap, "integer division by 0 fails, and by -1 may end the process")
_OF_BOOLEANS = Difference(
    lambda call: call.spec(0).dtype.kind == "b" or _has_scalar_axes(call),
    "booleans without elements fail, and so do axes that are a scalar",
)
_DIFFERENCES: Mapping[str, Difference] = {
    "Attention": Difference(
        _keeps_or_shortens_mask, "scores lack what is causal, and masks of fewer keys fail"
    ),
    "ConvInteger": Difference(_several(2, 3), "zero points are one for all"),
    "Div": _DIVIDING,
    "LRN": Difference(lambda call: call.spec(0).rank != 4, "inputs of other ranks than 4 fail"),
    "MatMulInteger": Difference(_several(2), "zero points of a are one for all"),
    "MaxUnpool": Difference(lambda call: call.has(2), "indices count in the smaller shape"),
    "Mod": _DIVIDING,
    "Pad": Difference(_may_reflect_again, "what is reflected more than once fails"),
    "QLinearMatMul": Difference(_several(1, 2, 6, 7), "scales of a and y are one for all"),
    "ReduceL1": _SCALAR_AXES,
    "ReduceL2": _SCALAR_AXES,
    "ReduceLogSum": _SCALAR_AXES,
    "ReduceLogSumExp": _SCALAR_AXES,
    "ReduceMax": _OF_BOOLEANS,
    "ReduceMean": _SCALAR_AXES,
    "ReduceMin": _OF_BOOLEANS,
    "ReduceProd": _SCALAR_AXES,
    "ReduceSum": _SCALAR_AXES,
    "ReduceSumSquare": _SCALAR_AXES,
    "Resize": Difference(_scales_to_corners, "corners are aligned to lengths that are rounded"),
    "Split": Difference(_may_run_out, "equal parts that need more than there is fail"),
}
