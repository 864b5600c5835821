"""The gradient of MaxPool: each window's gradient, added where its maximum was."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .precision import work_scratch
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return work_scratch(call.spec(0), outputs[0])


@kernel("MaxPoolGradient", scratch=_scratch, binds=True)
def max_pool_gradient(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """DX = zeros, with dY added at the indices that MaxPool returned."""
    dy, indices, dx = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0]
    total = scratch[0] if scratch else dx
    steps = [partial(total.fill, 0), partial(xp.add.at, total.reshape(-1), indices, dy)]
    if scratch:
        steps.append(partial(xp.copyto, dx, total, casting="same_kind"))
    return in_order(steps)
