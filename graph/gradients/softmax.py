"""Gradients of Softmax and LogSoftmax."""

from __future__ import annotations

from .adjoint import Adjoint
from .elementwise import Gradients
from .registry import gradient


@gradient("Softmax")
def softmax(at: Adjoint) -> Gradients:
    # dx = y·(dy - Σ dy·y).
    y = at.output()
    weighted = at.dy * y
    yield 0, weighted - y * weighted.sum([at["axis"]])


@gradient("LogSoftmax")
def log_softmax(at: Adjoint) -> Gradients:
    # dx = dy - exp(y)·Σ dy.
    yield 0, at.dy - at.output().op("Exp") * at.dy.sum([at["axis"]])
