"""Differences of ONNX Runtime's kernels from ONNX; such nodes go to other devices.

Found on versions 1.31.1 and 1.32.0 by running ONNX's own node tests, integers at the ends of their
ranges, and random nodes of all operators (tests/properties/test_ort_runs_what_it_supports.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...graph.core.ir import Node
from ...graph.core.nested import list_graphs, walk_nodes
from ...graph.core.operator import Call, is_bounded_form
from ...graph.operators.attention import MASK, MASKED, SCORES, USED
from ...graph.operators.inputs import is_computed, read_integers
from ...graph.operators.movement import to_axis_pads
from ...graph.operators.resampling import list_resized_axes
from ...graph.values.dims import normalize_axis
from ...graph.values.tensor import Shape, TensorSpec
from .accepted_forms import is_dilated_same
from .empty import is_empty, may_be_empty
from .runtime import can_give_empty_parts


class Difference(NamedTuple):
    """The affected calls of an operator, and the difference."""

    concerns: Callable[[Call], bool]
    what: str

    def __call__(self, call: Call) -> str | None:
        return self.what if self.concerns(call) else None


def find_difference(node: Node, call: Call) -> str | None:
    """Return how ONNX Runtime differs from other devices on `node` with inputs `call`, or None."""
    if node.operator.bounded is not None or is_bounded_form(node.op):
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
    """Return whether `call` may divide integers by 0, or by -1, which may overflow."""
    if call.spec(0).dtype.kind not in "iu":
        return False
    divisor = call.value(1)
    return divisor is None or any(int(value) in (0, -1) for value in divisor.flat)


def _is_single(spec: TensorSpec | None) -> bool:
    return spec is None or (spec.is_static and spec.size == 1)


def _has_several(*indices: int) -> Callable[[Call], bool]:
    return lambda call: not all(_is_single(call.inputs[i]) for i in indices if call.has(i))


def _is_scaled_to_corners(call: Call) -> bool:
    return call.attributes["coordinate_transformation_mode"] == "align_corners" and call.has(2)


def _has_unsupported_mask(call: Call) -> bool:
    """Return whether masked scores are an output of `call`, or its mask may lack keys."""
    masked = call.n_outputs > SCORES and call.attributes["qk_matmul_output_mode"] == MASKED
    return masked or (call.has(MASK) and call.has(USED))


def _has_scalar_axes(call: Call) -> bool:
    return call.has(1) and call.spec(1).rank == 0


def _may_run_out(call: Call) -> bool:
    """Return whether all parts of `call`, a Split, but the last may need more than the whole.

    In older releases also if they may need all of it, so that the last part is empty.
    """
    shape = call.spec(0).shape
    if call.has(1) or shape is None:
        return not call.has(1)
    length = shape[normalize_axis(call.attributes["axis"], len(shape))]
    before = call.n_outputs - 1
    spare = 0 if can_give_empty_parts() else 1
    if before < 2 and not spare:  # half of anything exists
        return False
    return not isinstance(length, int) or -(-length // (before + 1)) * before + spare > length


def _may_reflect_again(call: Call) -> bool:
    """Return whether `call` may reflect again beyond the end, where ONNX continues like NumPy."""
    if call.attributes["mode"] != "reflect":
        return False
    shape, pads = call.spec(0).shape, read_integers(call, 1, "pads")
    if shape is None or pads is None or is_computed(call, 3):
        return True
    pairs = to_axis_pads(len(shape), pads, read_integers(call, 3, "axes"))
    return any(
        max(pair) > 0
        and not (isinstance(length, int) and max(pair) < length + sum(min(pad, 0) for pad in pair))
        for length, pair in zip(shape, pairs, strict=True)
    )


def _is_reduced_narrowly(call: Call) -> bool:
    is_narrow = call.spec(0).dtype.name in ("float16", "bfloat16", "bool")
    return is_narrow and call.attributes["reduction"] != "none"


def _has_blocks_of_one_scale(call: Call) -> bool:
    return bool(call.attributes["block_size"]) and _is_single(call.spec(1))


def _has_no_keys(call: Call) -> bool:
    return any(call.spec(index).is_static and not call.spec(index).size for index in range(3))


def _is_sampled_otherwise(call: Call) -> bool:
    rank = call.spec(0).rank or 0
    return rank < 4 or (rank > 4 and call.attributes["mode"] == "cubic")


def _is_double(call: Call) -> bool:
    return call.spec(0).dtype.name == "float64"


def _is_cut_to_shape(call: Call) -> bool:
    """Return whether pads of `call`, a transposed convolution, follow from its output's shape."""
    is_auto = call.attributes["auto_pad"] != "NOTSET"
    is_filled = any(call.attributes["output_padding"] or ())
    return call.attributes["output_shape"] is not None or (is_auto and is_filled)


def _has_wide_zero_points(call: Call) -> bool:
    """Return whether zero points of `call` have several axes, or are by column in a batch."""
    wide = _has_several(2)(call) or (call.has(2) and (call.spec(2).rank or 0) > 1)
    return wide or (call.has(3) and not _is_single(call.inputs[3]) and call.spec(1).rank != 2)


def _has_wide_scales(call: Call) -> bool:
    given = [call.inputs[index] for index in (1, 2, 6, 7)]
    wide = _has_several(1, 2, 6, 7)(call) or any(spec and (spec.rank or 0) > 1 for spec in given)
    return wide or (_has_several(4, 5)(call) and call.spec(3).rank != 2)


def _is_no_image(call: Call) -> bool:
    """Return whether `call` interpolates axes that are not an image's, channels first or last."""
    mode, shape = call.attributes["mode"], call.spec(0).shape
    if mode == "nearest" or shape is None:
        return False
    rank = len(shape)
    if rank == 2 or (rank == 3 and mode == "linear"):
        return False
    scaled = _find_scaled_axes(call, shape)
    layouts = [{2, 3}, {1, 2}] if mode == "linear" else [{2, 3}]
    layouts = layouts if rank == 4 else [{2, 3, 4}] if mode == "linear" else []
    return rank not in (4, 5) or not any(scaled <= layout for layout in layouts)


def _find_scaled_axes(call: Call, shape: Shape) -> set[int]:
    axes = list_resized_axes(call.attributes, len(shape))
    scales, sizes = (call.value(index) if call.has(index) else None for index in (2, 3))
    if scales is not None and scales.size == len(axes):
        return {axis for axis, scale in zip(axes, scales, strict=True) if scale != 1}
    if sizes is not None and call.attributes["keep_aspect_ratio_policy"] == "stretch":
        return {axis for axis, size in zip(axes, sizes, strict=True) if size != shape[axis]}
    return set(axes) if scales is not None or sizes is not None else set()


_SCALAR_AXES = Difference(_has_scalar_axes, "axes that are a scalar fail")
_DIVIDING = Difference(_may_trap, "integer division by 0 fails, and by -1 may end the process")
_BLOCKS = Difference(_has_blocks_of_one_scale, "blocks of a single scale fail")
_DILATED = Difference(
    lambda call: is_dilated_same(call.attributes), "padding of dilated windows follows another rule"
)
_OF_BOOLEANS = Difference(
    lambda call: call.spec(0).dtype.kind == "b" or _has_scalar_axes(call),
    "booleans without elements fail, and so do axes that are a scalar",
)
_DIFFERENCES: Mapping[str, Difference] = {
    "Attention": Difference(
        lambda call: _has_unsupported_mask(call) or _has_no_keys(call),
        "scores lack what is causal; masks of fewer keys, and no keys, fail",
    ),
    "AveragePool": _DILATED,
    "ConvInteger": Difference(_has_several(2, 3), "zero points are one for all"),
    "ConvTranspose": Difference(_is_cut_to_shape, "it expects other shapes"),
    "DequantizeLinear": _BLOCKS,
    "Div": _DIVIDING,
    "GridSample": Difference(_is_sampled_otherwise, "it fails for one axis, and cubic for three"),
    "GRU": Difference(_is_double, "it fails in float64"),
    "InstanceNormalization": Difference(
        lambda call: (call.spec(0).rank or 0) < 3, "inputs without spatial axes fail"
    ),
    "LRN": Difference(lambda call: call.spec(0).rank != 4, "inputs of other ranks than 4 fail"),
    "LpPool": _DILATED,
    "LSTM": Difference(_is_double, "it fails in float64"),
    "MatMulInteger": Difference(
        _has_wide_zero_points, "zero points of a are one for all, of b those of one matrix"
    ),
    "MaxPool": _DILATED,
    "MaxUnpool": Difference(lambda call: call.has(2), "indices count in the smaller shape"),
    "Mod": _DIVIDING,
    "Pad": Difference(
        lambda call: call.spec(0).rank == 0 or _may_reflect_again(call),
        "scalars fail, and so does what is reflected more than once",
    ),
    "QLinearMatMul": Difference(_has_wide_scales, "scales of a and y are one for all"),
    "QuantizeLinear": _BLOCKS,
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
    "Resize": Difference(
        lambda call: _is_scaled_to_corners(call) or _is_no_image(call),
        "corners are aligned to lengths that are rounded, and only images are interpolated",
    ),
    "STFT": Difference(
        lambda call: not call.has(2) and not call.has(3), "without a window and its length it fails"
    ),
    "ScatterElements": Difference(_is_reduced_narrowly, "16-bit floats and booleans fail"),
    "ScatterND": Difference(_is_reduced_narrowly, "16-bit floats and booleans fail"),
    "Slice": Difference(lambda call: call.spec(0).rank == 0, "scalars fail"),
    "Squeeze": Difference(
        lambda call: call.has(1) and call.spec(1).shape == (0,), "it takes no axes for all axes"
    ),
    "Split": Difference(_may_run_out, "equal parts that need more than there is fail"),
}

_SKIPPED = "a NaN is left out; the definition returns NaN, or its place"
_REDUCED = "with max or min, a NaN may be left out"
_CELLS = "a NaN in a cell or its activation may become a number"
_ROWS = "a row with an infinity or NaN may keep numbers, or become NaN as a whole"

SPECIAL_VALUES: Mapping[str, str] = {
    "AffineGrid": "an infinity in theta may give infinity where the definition gives NaN",
    "ArgMax": _SKIPPED,
    "ArgMin": _SKIPPED,
    "Attention": "a score of NaN or infinity may spread to other queries",
    "Cast": "NaN and infinities become other integers",
    "Clip": "a bound that is NaN is passed over, or the other bound",
    "DynamicQuantizeLinear": "NaN and infinities give another scale",
    "GRU": _CELLS,
    "GlobalMaxPool": _SKIPPED,
    "LSTM": _CELLS,
    "LayerNormalization": _ROWS,
    "LogSoftmax": _ROWS,
    "MaxPool": _SKIPPED,
    "MeanVarianceNormalization": _ROWS,
    "RNN": _CELLS,
    "ReduceLogSumExp": _SKIPPED,
    "ReduceMax": _SKIPPED,
    "ReduceMin": _SKIPPED,
    "ScatterElements": _REDUCED,
    "ScatterND": _REDUCED,
    "Sign": "a NaN in float16 becomes a number",
    "ThresholdedRelu": "a NaN becomes 0",
    "TopK": "a NaN is not the largest",
}
"""Operators for which ONNX Runtime treats infinities and NaN differently from their definitions.

Found on 1.32.0 by random nodes: tests/properties/test_special_values.py runs them, and
docs/limits.md has the table. With the option ``nan="formal"`` the device refuses these nodes.
"""


def find_special_difference(node: Node, call: Call) -> str | None:
    """Return how `node` or a node in it treats special values differently, or None.

    `call` has the specs of its inputs.
    """
    reads_floats = any(spec is not None and spec.dtype.kind not in "biuO" for spec in call.inputs)
    if node.op in SPECIAL_VALUES and reads_floats:
        return f"nan='formal': {SPECIAL_VALUES[node.op]}"
    inner = {one.op for graph in list_graphs(node) for _, _, one in walk_nodes(graph)}
    if found := sorted(inner & SPECIAL_VALUES.keys()):
        return f"nan='formal': {found[0]} in it: {SPECIAL_VALUES[found[0]]}"
    return None
