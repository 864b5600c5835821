"""Signals: Fourier transforms, whole or frame by frame, and the weights of mel filters."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import ARRAY_KERNEL, IN_SUMS, NEVER_NEGATIVE, PRIMITIVE, Part
from ..values.dims import UNKNOWN, add, floordiv, mul, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    FLOATS,
    INTEGERS,
    check_dtype,
    check_form,
    check_rank,
    find_common_dtype,
    is_computed,
    read_integers,
)
from .rules import TRANSCENDENTAL

DFT_LENGTH, DFT_AXIS = 1, 2
"""Inputs of DFT after the signal."""

STEP, WINDOW, FRAME = 1, 2, 3
"""Inputs of STFT after the signal."""


def find_dft_axis(given: Sequence[int] | None, rank: int) -> int:
    """Return the axis that a DFT runs along in a tensor of `rank`, from the integers `given`.

    Raises ShapeError if there is not one, or it is outside the tensor, or the last: real and
    imaginary parts.
    """
    axis = normalize_axis(-2 if given is None else _unpack_one(given, "the axis"), rank)
    if axis == rank - 1:
        raise ShapeError(
            f"axis {axis} holds real and imaginary parts", fix="name one of those before it"
        )
    return axis


def _unpack_one(numbers: Sequence[int], label: str) -> int:
    if len(numbers) != 1:
        raise ShapeError(f"{label} must be one number, got {list(numbers)}", fix="pass one")
    return numbers[0]


def _count(call: Call, index: int, label: str) -> Dim | None:
    """Return the integer ≥ 1 in input `index` of `call`, None if absent, UNKNOWN before the run."""
    if not call.has(index):
        return None
    numbers = read_integers(call, index, label)
    if numbers is None:
        return UNKNOWN
    count = _unpack_one(numbers, label)
    if count < 1:
        raise ShapeError(f"{label} is {count}", fix="pass a number ≥ 1")
    return count


def _estimate_fft(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: 5 n log₂ n operations for each transform of n numbers."""
    elements = max(call.spec(0).size, outputs[0].size)
    return 5 * elements * max(max(outputs[0].static_shape[:-1], default=1).bit_length(), 1)


@define(
    "DFT",
    inputs="input dft_length? axis?",
    outputs="output",
    attributes={"inverse": Attribute(Kind.BOOL, False), "onesided": Attribute(Kind.BOOL, False)},
    cost=_estimate_fft,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_dft(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`.

    (*signals, 1 or 2) → the axis with the requested length, and (*signals, 2). With `onesided`,
    half of it is written, or read by the inverse, which then gives (*signals, 1).
    """
    x, inverse = call.spec(0), call.attributes["inverse"]
    check_dtype(x, FLOATS)
    check_rank(x, 2, "(*signals, 1 or 2)")
    length = _count(call, DFT_LENGTH, "dft_length")
    given = read_integers(call, DFT_AXIS, "the axis")
    if x.shape is None:
        return (TensorSpec(x.dtype, None),)
    onesided = call.attributes["onesided"]
    _check_parts(x.shape[-1], onesided, inverse)
    parts = 1 if onesided and inverse else 2
    if is_computed(call, DFT_AXIS):
        # Also where no axis changes its length: kernels are bound to an axis.
        return (TensorSpec(x.dtype, (*(UNKNOWN,) * (len(x.shape) - 1), parts)),)
    axis = find_dft_axis(given, len(x.shape))
    length = _find_output_length(x.shape, axis, length, onesided, inverse)
    return (TensorSpec(x.dtype, (*x.shape[:axis], length, *x.shape[axis + 1 : -1], parts)),)


def _check_parts(parts: Dim, onesided: bool, inverse: bool) -> None:
    wanted = (2,) if onesided and inverse else (1,) if onesided else (1, 2)
    if isinstance(parts, int) and parts not in wanted:
        raise ShapeError(
            f"the last axis of the signal has {parts} elements, "
            f"not {' or '.join(map(str, wanted))}",
            fix="1 for real numbers, 2 for complex ones; onesided goes from real ones, "
            "its inverse from complex ones",
        )


def _find_output_length(
    shape: Shape, axis: int, length: Dim | None, onesided: bool, inverse: bool
) -> Dim:
    if length is None:
        length = mul(2, add(shape[axis], -1)) if onesided and inverse else shape[axis]
    if isinstance(length, int) and length < 1:
        raise ShapeError(f"axis {axis} is too short to transform", fix="pass a dft_length ≥ 1")
    if length == UNKNOWN or not onesided or inverse:
        return length
    return add(floordiv(length, 2), 1)


@define(
    "STFT",
    inputs="signal frame_step window? frame_length?",
    outputs="output",
    attributes={"onesided": Attribute(Kind.BOOL, True)},
    cost=_estimate_fft,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_stft(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: (batch, length, 1 or 2) → (batch, frames, frequencies, 2)."""
    signal, onesided = call.spec(0), call.attributes["onesided"]
    dtype = find_common_dtype([signal, *([call.spec(WINDOW)] if call.has(WINDOW) else [])], FLOATS)
    check_form(signal, (None, None, None), "the signal")
    if call.has(WINDOW):
        check_form(call.spec(WINDOW), (None,), "the window")
    if signal.shape is None:
        return (TensorSpec(dtype, None),)
    batch, length, parts = signal.shape
    _check_parts(parts, onesided, inverse=False)
    step, frame = _count(call, STEP, "frame_step"), _find_frame_length(call, length)
    unknown = UNKNOWN in (length, frame, step)
    frames = UNKNOWN if unknown else _count_frames(length, frame, step)
    frequencies = add(floordiv(frame, 2), 1) if onesided and frame != UNKNOWN else frame
    return (TensorSpec(dtype, (batch, frames, frequencies, 2)),)


def _find_frame_length(call: Call, length: Dim) -> Dim:
    """Return the length requested in `call`, else the window's, else `length`, the signal's."""
    asked = _count(call, FRAME, "frame_length")
    if call.has(WINDOW):
        check_form(call.spec(WINDOW), (None if asked == UNKNOWN else asked,), "the window")
        window = call.spec(WINDOW).shape
        if asked is None:
            return UNKNOWN if window is None else window[0]
    return length if asked is None else asked


def _count_frames(length: Dim, frame: Dim, step: Dim | None) -> Dim:
    if length == frame:
        return 1
    if isinstance(length, int) and isinstance(frame, int) and length < frame:
        raise ShapeError(
            f"a signal of {length} samples holds no frame of {frame}", fix="use shorter frames"
        )
    room = add(length, -frame) if isinstance(frame, int) else f"({length}-{frame})"
    assert isinstance(step, int)
    return add(floordiv(room, step), 1)


@define(
    "MelWeightMatrix",
    inputs="num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz",
    outputs="output",
    attributes={"output_datatype": Attribute(Kind.DTYPE, "float32")},
    cost=lambda call, outputs: TRANSCENDENTAL * outputs[0].size,
    traits=NEVER_NEGATIVE,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL | {Part.GRADIENT: "where its bands end is chosen, not learned"},
)
def infer_mel_weight_matrix(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: (dft_length // 2 + 1, num_mel_bins)."""
    for index, formal in enumerate(("num_mel_bins", "dft_length", "sample_rate")):
        check_dtype(call.spec(index), INTEGERS, formal)
    for index, formal in enumerate(("lower_edge_hertz", "upper_edge_hertz"), 3):
        check_dtype(call.spec(index), FLOATS, formal)
    bins, length = _count(call, 0, "num_mel_bins"), _count(call, 1, "dft_length")
    assert bins is not None
    assert length is not None
    rows = length if length == UNKNOWN else add(floordiv(length, 2), 1)
    return (TensorSpec(call.attributes["output_datatype"], (rows, bins)),)
