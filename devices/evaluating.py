"""Evaluation of single nodes ahead of time, with numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.core.ir import Graph, Node
from ..graph.core.operator import Call
from ..graph.values.tensor import Array, TensorSpec
from .device import scratch_name
from .kernels.registry import find_kernel
from .memory import host_arena, host_view
from .program import bind

KIND = "cpu"
"""The kind of the kernels."""


def can_evaluate(op: str) -> bool:
    """Return whether the operator `op` may have a kernel."""
    return find_kernel(op, KIND) is not None


def evaluate(node: Node, call: Call, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
    """Return the read-only outputs of `node` by name; None without a kernel.

    `call` has the inputs, `specs` are those of the outputs.
    """
    found = find_kernel(node.op, KIND, call)
    if found is None:
        return None
    inputs = [name for name in node.inputs if name]
    outputs = {n: s for n, s in zip(node.outputs, specs, strict=True) if n}
    tensors = dict(zip(inputs, (s for s in call.inputs if s is not None), strict=True))
    known = {n: v for n, v in zip(node.inputs, call.values, strict=True) if v is not None}
    for name in inputs:  # Shape reads no bytes of its input, only the length
        if name not in known:
            spec = tensors[name]
            try:
                known[name] = np.broadcast_to(spec.dtype.type(0), spec.static_shape)
            except ValueError:  # more cells than numpy counts: planning refuses it
                return None
    graph = Graph(node.name, (), tuple(outputs), (node,), {**tensors, **outputs}, known)
    scratch = found.scratch(call, tuple(specs)) if found.scratch else ()
    buffers = {**outputs, **{scratch_name(node, i): spec for i, spec in enumerate(scratch)}}
    views = {n: host_view(host_arena(spec.nbytes), 0, spec) for n, spec in buffers.items()}
    with np.errstate(all="ignore"):
        bind(np, KIND, graph, views, known)()
    values = {name: views[name].array for name in outputs}
    for value in values.values():
        value.flags.writeable = False
    return values
