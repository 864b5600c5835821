"""Fourier transforms, mel filters: ``(xp, inputs, outputs, attributes[, scratch]) -> Step``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.signal import DFT_AXIS, DFT_LENGTH, FRAME, STEP, WINDOW, find_dft_axis
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_integers, get_optional
from .precision import compute_dtype, declare_wide_copies, declare_wide_ends, widen
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .views import make_strided

_COMPLEX = {"float32": np.dtype(np.complex64), "float64": np.dtype(np.complex128)}


def _to_numbers(array: Array) -> Array:
    """Return a view of `array` without the last axis: real numbers, or complex ones for pairs."""
    if array.shape[-1] == 1:
        return array[..., 0]
    return array.view(_COMPLEX[array.dtype.name])[..., 0]


def _transform(xp: ArrayModule, name: str, x: Array, length: int, axis: int, y: Array) -> Step:
    function = getattr(xp.fft, name)
    if xp is np:
        return partial(function, x, length, axis, out=y)
    return lambda: xp.copyto(y, function(x, length, axis))


@kernel("DFT", scratch=declare_wide_ends, binds=True)
def dft(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs[:1], outputs, scratch)
    (x,), (y,) = wide.inputs, wide.outputs
    if not y.size:
        return run_in_order(())
    axis = find_dft_axis(get_integers(inputs, DFT_AXIS), y.ndim)
    inverse, onesided = attributes["inverse"], attributes["onesided"]
    (length,) = get_integers(inputs, DFT_LENGTH) or [
        _find_usual_length(x, axis, inverse and onesided)
    ]
    name = f"{'i' if inverse else ''}{'r' if onesided else ''}fft"
    return wide.around([_transform(xp, name, _to_numbers(x), length, axis, _to_numbers(y))])


def _find_usual_length(x: Array, axis: int, from_half: bool) -> int:
    length = int(x.shape[axis])
    return 2 * (length - 1) if from_half else length


def _declare_stft(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    signal, y = call.spec(0), outputs[0]
    if not call.has(WINDOW):
        return declare_wide_copies((signal, y))
    window, (batch, frames, _, _) = call.spec(WINDOW), y.static_shape
    weighted = (batch, frames, window.size, signal.static_shape[-1])
    return [*declare_wide_copies((signal, window, y)), TensorSpec(compute_dtype(y.dtype), weighted)]


@kernel("STFT", scratch=_declare_stft, binds=True)
def stft(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, (inputs[0], get_optional(inputs, WINDOW)), outputs, scratch)
    (signal, window), (y,) = wide.inputs, wide.outputs
    assert signal is not None
    if not y.size:
        return run_in_order(())
    batch, samples, parts = signal.shape
    (step,) = get_integers(inputs, STEP) or [1]
    (length,) = get_integers(inputs, FRAME) or [samples if window is None else len(window)]
    step = min(step, samples)  # one beyond all samples leaves one frame, and may fit no stride
    apart = (samples * parts, step * parts, parts, 1)
    frames = make_strided(xp, signal, (batch, y.shape[1], length, parts), apart)
    steps: list[Step] = []
    if window is not None:
        (weighted,) = wide.scratch
        steps.append(partial(xp.multiply, frames, window[:, None], out=weighted))
        frames = weighted
    name = "rfft" if attributes["onesided"] else "fft"
    steps.append(_transform(xp, name, _to_numbers(frames), length, 2, _to_numbers(y)))
    return wide.around(steps)


@kernel("MelWeightMatrix", binds=True)
def mel_weight_matrix(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    # y = triangular filters, equally wide in mel. By ONNX's reference implementation, the last of n
    # filters ends a step of 1/(n+2) below the upper edge.
    y, (_, length, rate, lower, upper) = outputs[0], [x.reshape(-1) for x in inputs]
    rows = xp.arange(y.shape[0], dtype=np.float64)[:, None]
    places = xp.arange(y.shape[1] + 2, dtype=np.float64)

    def step() -> None:
        low, high = (_to_mel(xp, edge.astype(np.float64)) for edge in (lower, upper))
        mels = places * ((high - low) / places.size) + low
        hertz = 700 * xp.expm1(mels * (np.log(10) / 2595))
        bins = xp.floor((length + 1) * hertz / rate)
        left, middle, right = bins[:-2], bins[1:-1], bins[2:]
        rising = (rows - left) / xp.maximum(middle - left, 1)
        falling = (right - rows) / xp.maximum(right - middle, 1)
        weights = xp.where(rows < middle, rising, falling)
        weights = xp.where(rows == middle, 1, xp.maximum(weights, 0))
        xp.copyto(y, weights, casting="unsafe")

    return step


def _to_mel(xp: ArrayModule, hertz: Array) -> Any:
    return 2595 * xp.log1p(hertz / 700) / np.log(10)
