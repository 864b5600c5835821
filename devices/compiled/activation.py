"""Float32 activations in one pass over memory. Other dtypes use numpy's kernels."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.values.tensor import Array
from ..kernels.registry import ANY, ArrayModule, Arrays, Kernel, find_kernel, kernel
from ..kernels.steps import Step
from .epilogue import HARD_SIGMOID, HARD_SWISH, LEAKY_RELU, CompiledEpilogue, Numbers, finish_cells
from .jit import CELLS, machine_code, make_writable

CODES = {"HardSwish": HARD_SWISH, "HardSigmoid": HARD_SIGMOID, "LeakyRelu": LEAKY_RELU}


@machine_code(CELLS, CELLS, CELLS)
def activate(x: Array, y: Array, numbers: Array) -> None:
    """Write the activation of `x` to `y`; both are flat, and may be one array.

    `numbers` are those of an epilogue.
    """
    finish_cells(
        x.ctypes.data, np.float32(0), y.ctypes.data, y.ctypes.data, x.size, numbers.ctypes.data
    )


def _bind(
    code: int,
    general: Kernel,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Arrays,
) -> Step:
    (x,), (y,) = inputs, outputs
    alpha, beta = attributes.get("alpha", 0.0), attributes.get("beta", 0.0)
    if x.dtype != np.float32 or (code == LEAKY_RELU and alpha == 0):
        step: Step = general.function(xp, inputs, outputs, attributes, scratch)
        return step
    numbers = CompiledEpilogue(Numbers(code, a=alpha, b=beta)).packed()
    return partial(activate, make_writable(x).reshape(-1), y.reshape(-1), numbers)


for _op, _code in CODES.items():
    _general = find_kernel(_op, ANY)
    assert _general is not None
    assert _general.binds
    kernel(_op, device="compiled", scratch=_general.scratch, binds=True)(
        partial(_bind, _code, _general)
    )
