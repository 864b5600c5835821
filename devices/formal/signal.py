"""Definitions of Fourier transforms and mel filters: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.operator import Specs
from ...graph.values.tensor import Array
from .ieee import sum_exactly
from .registry import at, definition, indices


@definition("DFT")
def dft(
    x: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: bool,
    onesided: bool,
    outputs: Specs,
) -> Array:
    # Y[k] = Σₙ x[n]·exp(-2πi·k·n / N) along an axis; the inverse with +, and divided by N. The
    # signal is cut, or continued by zeros, to N numbers. Onesided, the second half of a spectrum is
    # not written, or for the inverse completed by conjugates of the first.
    along = (-2 if axis is None else int(axis.item())) % x.ndim
    y = np.empty(outputs[0].static_shape, object)
    for index in indices((*y.shape[:along], 1, *y.shape[along + 1 : -1])):
        line = [_number(x, (*index[:along], n, *index[along + 1 :])) for n in range(x.shape[along])]
        usual = 2 * (len(line) - 1) if inverse and onesided else len(line)
        length = usual if dft_length is None else int(dft_length.item())
        if inverse and onesided:
            line = _complete(line, length)
        spectrum = _transform(line, length, y.shape[along], 1 if inverse else -1)
        for k, value in enumerate(spectrum):
            scaled = value / length if inverse else value
            for part in range(y.shape[-1]):
                place = (*index[:along], k, *index[along + 1 :], part)
                y[place] = scaled.imag if part else scaled.real
    return y


@definition("STFT")
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: bool,
    outputs: Specs,
) -> Array:
    step = int(frame_step.item())
    if frame_length is not None:
        length = int(frame_length.item())
    else:
        length = signal.shape[1] if window is None else window.shape[0]
    y = np.empty(outputs[0].static_shape, object)
    for batch, frame in indices(y.shape[:2]):
        line = [_number(signal, (batch, frame * step + n)) for n in range(length)]
        if window is not None:
            line = [value * at(window, n) for n, value in enumerate(line)]
        for k, value in enumerate(_transform(line, length, y.shape[2], -1)):
            y[batch, frame, k, 0], y[batch, frame, k, 1] = value.real, value.imag
    return y


def _number(x: Array, place: Sequence[int]) -> complex:
    return complex(*(at(x, *place, part) for part in range(x.shape[-1])))


def _complete(half: Sequence[complex], length: int) -> list[complex]:
    """Return the spectrum of `length` of a real signal: its second part mirrors `half`."""
    known = dict(enumerate(half[: length // 2 + 1]))
    mirrored = {(length - k) % length: value.conjugate() for k, value in known.items()}
    full = {**mirrored, **known}
    return [full.get(k, 0j) for k in range(length)]


def _transform(line: Sequence[complex], length: int, count: int, sign: int) -> list[complex]:
    """Return the first `count` numbers of the transform of `line`, cut or zero-filled to `length`.

    `sign` is that of the exponent: 1 for the inverse, else -1.
    """
    # Angles are reduced exactly, before they are multiplied by π.
    turns = [cmath.exp(sign * 2j * math.pi * turn / length) for turn in range(length)]
    terms = line[:length]
    return [
        _sum(value * turns[k * n % length] for n, value in enumerate(terms)) for k in range(count)
    ]


def _sum(values: Any) -> complex:
    terms = list(values)
    return complex(sum_exactly(v.real for v in terms), sum_exactly(v.imag for v in terms))


@definition("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: np.dtype[Any],
) -> Array:
    # Y[k, m] = the weight of spectrogram bin k in mel bin m: triangles over equal steps of mel,
    # where mel(f) = 2595·log₁₀(1 + f / 700).
    bins, length, rate = (int(n.item()) for n in (num_mel_bins, dft_length, sample_rate))
    low, high = (
        2595 * math.log10(1 + edge.item() / 700) for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    mels = (low + m * (high - low) / (bins + 2) for m in range(bins + 2))
    hertz = (700 * (10 ** (mel / 2595) - 1) for mel in mels)
    edges = [math.floor((length + 1) * frequency / rate) for frequency in hertz]
    y = np.zeros((length // 2 + 1, bins), object)
    for m in range(bins):
        left, centre, right = edges[m : m + 3]
        for k in range(left, centre):
            y[k, m] = (k - left) / (centre - left)
        for k in range(centre, right):
            y[k, m] = (right - k) / (right - centre)
        y[centre, m] = 1.0
    return y
