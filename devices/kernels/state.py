"""Kernels of ``(xp, inputs, outputs, attributes)`` that order effects; none for `Variable`."""

from __future__ import annotations

from functools import partial

from ...graph.core.attribute import Attributes
from .registry import ArrayModule, Arrays, Step, kernel


@kernel("Assign", binds=True)
def assign(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # y = value, where the plan made no view of it; the session keeps it when all has run.
    return partial(xp.copyto, outputs[0], inputs[1])


@kernel("After", binds=True)
def after(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # y = x, where the plan made no view of it.
    return partial(xp.copyto, outputs[0], inputs[0])


@kernel("Group")
def group(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    pass  # when this runs, all inputs are there
