"""One node on its own, through its definition, in this thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from plait.devices.formal.program import bind_definitions
from single_node import AnyArray, place, single_node_graph


def formal_node(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    constant: Collection[int] = (),
) -> list[AnyArray]:
    """Return what a node yields; `constant` are the inputs whose values infer may see.

    No device is opened: its thread and the ways to it take longer than most definitions.
    """
    graph = single_node_graph(op, inputs, attributes, n_outputs, constant)
    moving = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
    _, views = place(moving)
    program = bind_definitions("formal", graph, views, measure=False)
    for name in graph.inputs:
        np.copyto(views[name].array, np.asarray(inputs[int(name[1:])]), casting="no")
    with np.errstate(all="ignore"):
        program()
    return [views[name].array.copy() for name in graph.outputs]
