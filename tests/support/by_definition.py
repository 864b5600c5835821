"""One node by its definition and by its kernel: written apart, they must agree."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import plait as pl
from bound import Bound
from numpy.typing import NDArray
from plait.devices.cpu import CpuDevice
from plait.devices.formal.device import FormalDevice
from single_node import single_node_graph

AnyArray = NDArray[Any]

TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}
"""Relative differences that are right, each result of a kernel being rounded more than once."""

_SUMS = ("AffineGrid", "Col2Im", "DFT", "DeformConv", "GridSample", "LinearAttention", "STFT")
ABSOLUTE = {
    "Gelu": 5e-7,
    "Cofactors": 1e-12,
    "Det": 1e-12,
    "ReduceLogSum": 2e-7,
    "ReduceLogSumExp": 2e-7,
    "RoiAlign": 1e-15,
    **dict.fromkeys(_SUMS, 1e-12),
}
"""What may be lost where terms cancel, or a logarithm is near 0: the digits of what it is taken of.

In 1 + erf(x), it is nothing that Gelu is used for.
"""


class Both:
    """The formal device and the cpu."""

    def __init__(self) -> None:
        self._devices = FormalDevice(), CpuDevice()

    def open(self) -> None:
        """Open both."""
        for device in self._devices:
            device.open()

    def close(self) -> None:
        """Close both."""
        for device in self._devices:
            device.close()

    def agree(
        self,
        op: str,
        *inputs: AnyArray | None,
        constant: Collection[int] = (),
        n_outputs: int = 1,
        **attributes: Any,
    ) -> bool:
        """Compare what both give; return whether the operator takes the dtypes at all."""
        try:
            graph = single_node_graph(op, inputs, attributes, n_outputs, constant)
        except pl.ShapeError:
            return False
        fed = {f"x{i}": inputs[i] for i in range(len(inputs)) if f"x{i}" in graph.inputs}
        results = []
        for device in self._devices:
            with Bound(device, graph) as bound:
                results.append(bound.run(fed))
        for name in graph.outputs:
            _compare(op, *(found[name] for found in results))
        return True


def _compare(op: str, by_definition: AnyArray, by_kernel: AnyArray) -> None:
    dtype = by_definition.dtype
    if dtype.kind == "f":
        rtol, atol = TOLERANCE[dtype.name], max(ABSOLUTE.get(op, 0), np.finfo(dtype).tiny)
        np.testing.assert_allclose(by_kernel, by_definition, rtol, atol)
    else:
        np.testing.assert_array_equal(by_kernel, by_definition)
