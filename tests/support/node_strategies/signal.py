"""Nodes that transform signals into frequencies."""

from __future__ import annotations

import numpy as np

from .drawing import (
    FLOATS,
    Draw,
    NodeCase,
    Strategy,
    choose,
    few,
    flag,
    i64,
    index_dtype,
    integer,
    ordinary,
    shape,
    size_of,
    tensor,
)

SUMS = (few, ordinary)


def fourier(draw: Draw) -> NodeCase:
    of = list(shape(draw, 1, high=3, least=1, most=5))
    axis = integer(draw, 0, len(of) - 1)
    inverse, onesided = flag(draw), flag(draw)
    parts = choose(draw, (1, 2))
    if onesided:
        parts = 2 if inverse else 1
        of[axis] += inverse
    asked = np.array(integer(draw, 1, 9), index_dtype(draw)) if flag(draw) else None
    named = i64(axis - (len(of) + 1) * flag(draw)) if axis != len(of) - 1 or flag(draw) else None
    x = tensor(draw, choose(draw, FLOATS), (*of, parts), SUMS)
    attributes = {"inverse": inverse, "onesided": onesided}
    terms = 2 * size_of(x) * 10
    return NodeCase([x, asked, named], attributes, constant={1, 2}, ulps=8, terms=terms)


def short_time_fourier(draw: Draw) -> NodeCase:
    dtype, length, onesided = choose(draw, FLOATS), integer(draw, 1, 9), flag(draw)
    frame = integer(draw, 1, length)
    parts = 1 if onesided else choose(draw, (1, 2))
    x = tensor(draw, dtype, (integer(draw, 0, 2), length, parts), SUMS)
    window = tensor(draw, dtype, (frame,), SUMS) if flag(draw) else None
    asked = i64(frame) if flag(draw) else None
    step = i64(integer(draw, 1, 4))
    terms = 2 * size_of(x) * max(size_of(window), 1) * 10
    inputs = [x, step, window, asked]
    return NodeCase(inputs, {"onesided": onesided}, constant={1, 3}, ulps=8, terms=terms)


def mel_weights(draw: Draw) -> NodeCase:
    rate, length = choose(draw, (8000, 16000)), choose(draw, (1, 16, 33, 64))
    low, high = integer(draw, 0, 3000), integer(draw, 3001, rate // 2)
    numbers = [np.array(n) for n in (integer(draw, 1, 8), length, rate)]
    edges = [np.array(edge, choose(draw, FLOATS[1:])) for edge in (low, high)]
    dtype = choose(draw, FLOATS)
    return NodeCase(
        [*numbers, *edges], {"output_datatype": dtype}, constant={0, 1, 2}, ulps=8, terms=1.0
    )


STRATEGIES: dict[str, Strategy] = {
    "DFT": fourier,
    "STFT": short_time_fourier,
    "MelWeightMatrix": mel_weights,
}
