"""One node on its own, through its definition on the formal device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from bound import Bound
from plait.devices.formal.device import FormalDevice
from single_node import AnyArray, single_node_graph


def formal_node(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    constant: Collection[int] = (),
) -> list[AnyArray]:
    """Return what a node yields; `constant` are the inputs whose values infer may see."""
    graph = single_node_graph(op, inputs, attributes, n_outputs, constant)
    fed = {name: np.asarray(inputs[int(name[1:])]) for name in graph.inputs}
    device = FormalDevice()
    device.open()
    try:
        with Bound(device, graph) as bound:
            results = bound.run(fed)
    finally:
        device.close()
    return [results[name] for name in graph.outputs]
