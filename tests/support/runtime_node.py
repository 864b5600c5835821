"""One node as ONNX Runtime computes it: the judge where onnx.reference is wrong or silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx_models import by_runtime, model, node

AnyArray = NDArray[Any]


def runtime_node(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    opset: int = 22,
) -> list[AnyArray]:
    """Return what ONNX Runtime makes of one node; all inputs but the first are constants."""
    names = ["-" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    first = np.asarray(inputs[0])
    constants = {
        name: np.asarray(x) for name, x in zip(names[1:], inputs[1:], strict=True) if name != "-"
    }
    proto = model(
        [node(op, " ".join(names), " ".join(outputs), **(attributes or {}))],
        {"x0": (first.dtype.name, first.shape)},
        outputs,
        constants,
        opset,
    )
    return by_runtime(proto, {"x0": first})
