"""Gradients of Fourier transforms: the inverse transform, with or without division by the length.

Real and imaginary parts are numbers of their own: of y = F·x, dx = conj(F)ᵀ·dy.
"""

from __future__ import annotations

from functools import partial

from ..operators.signal import DFT_AXIS, DFT_LENGTH, find_dft_axis
from .elementwise import Gradients
from .formula import Term
from .movement import make_range
from .registry import Adjoint, gradient
from .via_decomposition import Inputs, differentiate_through


@gradient("DFT")
def dft(at: Adjoint) -> Gradients:
    x, axis = at.input(0), _find_axis(at)
    back = _to_half if at["onesided"] and at["inverse"] else _invert_whole
    made = _fit(back(at, axis), x, axis)
    yield 0, _fit(made, x, x.rank - 1)


def _find_axis(at: Adjoint) -> int:
    given = at.optional(DFT_AXIS)
    if given is None:
        return find_dft_axis(None, at.input(0).rank)
    if given.value is None:
        raise at.refused_error("its axis is computed", "pass it as a constant")
    return find_dft_axis(given.value.reshape(-1).tolist(), at.input(0).rank)


def _find_length(at: Adjoint, axis: int) -> Term:
    """Return the number of elements that `at` transforms along `axis`, as a vector of one."""
    formula, asked = at.formula, at.optional(DFT_LENGTH)
    if at["inverse"]:  # which gives as many
        return formula.shape_of(at.output(), axis, axis + 1)
    if asked is None:
        return formula.shape_of(at.input(0), axis, axis + 1)
    if asked.value is not None:
        return formula.constant(asked.value.reshape(-1))
    return asked.cast("int64").reshaped(formula.constant([1]))


def _transform(x: Term, length: Term, axis: int, *, inverse: bool, onesided: bool = False) -> Term:
    formula = x.formula
    inner = length.op("Squeeze") if length.value is None else formula.constant(length.value.item())
    which = formula.constant(axis)
    return x.op("DFT", inner, which, inverse=inverse, onesided=onesided)


def _invert_whole(at: Adjoint, axis: int) -> Term:
    length, inverse = _find_length(at, axis), at["inverse"]
    made = _transform(at.dy, length, axis, inverse=not inverse)
    factor = length.cast(made.dtype)
    return made / factor if inverse else made * factor


def _to_half(at: Adjoint, axis: int) -> Term:
    """Return the gradient of the half along `axis` from which `at` made a real signal.

    All but the first number, and the last one of an even count, stand for their mirror too.
    """
    formula, length = at.formula, _find_length(at, axis)
    made = _transform(at.dy, length, axis, inverse=False, onesided=True)
    places = make_range(formula.shape_of(made, axis, axis + 1))
    alone = (places + places).equals(length).op("Or", places.equals(0))
    column = [-1, *[1] * (made.rank - 1 - axis)]
    twice = formula.constant(1, made.dtype).where(alone, 2)
    return made * twice.reshaped(formula.constant(column)) / length.cast(made.dtype)


def _fit(x: Term, like: Term, axis: int) -> Term:
    """Return `x`, cropped or padded with zeros to the length of `like` along `axis`."""
    formula = x.formula
    have, wanted = (formula.shape_of(one, axis, axis + 1) for one in (x, like))
    if have.value is not None and wanted.value is not None and have.value == wanted.value:
        return x
    which = formula.constant([axis])
    cut = x.op("Slice", formula.constant([0]), wanted, which)
    if have.value is not None and wanted.value is not None and have.value > wanted.value:
        return cut
    missing = (wanted - have).op("Max", formula.constant([0]))
    return cut.op("Pad", formula.joined(formula.constant([0]), missing), None, which)


@gradient("STFT")
def stft(at: Adjoint) -> Gradients:
    yield from differentiate_through(at, partial(_transform_frames, at))


def _transform_frames(at: Adjoint, inputs: Inputs) -> list[Term]:
    given: list[Term | None] = [*inputs, None, None]
    signal, step, window, asked = given[:4]
    assert signal is not None
    assert step is not None
    formula = at.formula
    if window is not None:
        length = formula.shape_of(window)
    elif asked is not None:
        length = asked.cast("int64").reshaped(formula.constant([1]))
    else:
        length = formula.shape_of(signal, 1, 2)
    column = formula.constant([1])
    starts = make_range(formula.shape_of(at.output(), 1, 2)) * step.cast("int64")
    places = starts.op("Unsqueeze", column) + make_range(length)
    frames = signal.op("Gather", places, axis=1)
    if window is not None:
        frames = frames * window.op("Unsqueeze", column)
    return [frames.op("DFT", None, formula.constant(2), onesided=at["onesided"])]
