"""Binding a subgraph: a convolution and the nodes that follow it become one step if possible.

The following nodes are computed while the convolution's outputs are in cache. Tensors between the
nodes are then never written; their places in memory stay reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.functions.operator_lifecycle import OperatorLifecycle
from ...graph.values.tensor import Array, TensorSpec
from .. import program as programs
from ..device import scratch_name
from ..kernels.registry import ANY, ArrayModule, Arrays, Kernel, Step, find_kernel, kernel
from ..memory import View
from ..program import BoundProgram, bind_node, is_in_place
from .convolution import CompiledConvolution, find_convolution
from .epilogue import (
    CLIP,
    HARD_SIGMOID,
    HARD_SWISH,
    LEAKY_RELU,
    PLAIN,
    RELU,
    CompiledEpilogue,
    Numbers,
    finish_cells,
)
from .jit import CELLS, machine_code, make_writable

KIND = "compiled"


class Fused(NamedTuple):
    """A convolution and the nodes fused with it.

    `output` is that of the last node, `residual` the tensor that is added, if any.
    """

    output: str
    numbers: Numbers = PLAIN
    residual: str | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """The fusion so far. Further operators must keep the order of `Numbers`."""

    fused: Fused
    activated: bool = False


def list_fusions(graph: Graph, conv: Node, later: Sequence[Node]) -> list[Fused]:
    """Return `conv` alone, then with each further node of `graph` that can be fused with it.

    `later` are the nodes that run after it, in order. A node is fused if it comes next and no other
    node reads the tensor between the two.
    """
    state = _State(Fused(conv.outputs[0]))
    found = [state.fused]
    for node in later:
        tensor = state.fused.output
        # A fused tensor is never written, so it must have no other reader.
        if tensor in graph.fetched or graph.consumers[tensor] != (node,):
            break
        # In x + x both operands are the same pass; a second output has no place.
        if node.inputs.count(tensor) != 1 or len(node.outputs) != 1:
            break
        # Broadcasting to a larger shape is not a pass over the same cells.
        if graph.tensors[node.outputs[0]] != graph.tensors[tensor]:
            break
        extended = _extend(graph, state, node)
        if extended is None:
            break
        state = extended
        found.append(state.fused)
    return found


def _extend(graph: Graph, state: _State, node: Node) -> _State | None:
    numbers, tensor = state.fused.numbers, state.fused.output
    output = node.outputs[0]
    if node.op in ("Add", "Mul"):
        (other,) = [name for name in node.inputs if name != tensor]
        if other in graph.constants:
            value = graph.constants[other]
            if value.size != 1:
                return None
            return _scale(state, node, value.item())
        fits = graph.tensors[other] == graph.tensors[tensor]
        # The loops add one tensor, before they activate, scale and shift.
        if node.op == "Mul" or not fits or state.activated or numbers.adds or numbers.scales:
            return None
        return _State(Fused(output, numbers._replace(adds=True), other))
    activation = None if state.activated or numbers.scales else find_activation(graph, node)
    if activation is None:
        return None
    code, a, b = activation
    numbers = numbers._replace(activation=code, a=a, b=b)
    return _State(Fused(output, numbers, state.fused.residual), activated=True)


def _scale(state: _State, node: Node, value: float) -> _State | None:
    numbers = state.fused.numbers
    # Folding a node after an addition into scale and shift would change the last bit.
    if numbers.shift != 0:
        return None
    if node.op == "Add":
        numbers = numbers._replace(scales=True, shift=value)
    else:
        numbers = numbers._replace(scales=True, scale=numbers.scale * value)
    fused = Fused(node.outputs[0], numbers, state.fused.residual)
    return replace(state, fused=fused)


def find_activation(graph: Graph, node: Node) -> tuple[int, float, float] | None:
    attributes = node.attributes
    if node.op == "Relu":
        return RELU, 0.0, 0.0
    if node.op == "HardSwish":
        return HARD_SWISH, 0.0, 0.0
    if node.op == "HardSigmoid":
        return HARD_SIGMOID, attributes["alpha"], attributes["beta"]
    if node.op == "LeakyRelu" and attributes["alpha"] != 0:  # 0·∞ is not 0
        return LEAKY_RELU, attributes["alpha"], 0.0
    if node.op == "Clip":
        bounds = (*node.inputs[1:], "", "")[:2]
        if all(not name or name in graph.constants for name in bounds):
            low, high = (
                graph.constants[name].item() if name else default
                for name, default in zip(bounds, (-np.inf, np.inf), strict=True)
            )
            return CLIP, low, high
    return None


def scratch(node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    conv = _find_convolution(node, call, outputs)
    return conv.scratch if conv else programs.scratch(node, KIND, call, outputs)


def bind(
    device: str,
    graph: Graph,
    views: Mapping[str, View],
    living: Mapping[str, OperatorLifecycle] | None = None,
    *,
    measure: bool = False,
) -> BoundProgram:
    nodes = [node for node in graph.nodes if not is_in_place(graph, node, views)]
    steps: list[tuple[Node, Step]] = []
    position = 0
    while position < len(nodes):
        node = nodes[position]
        conv = _find_convolution(node, graph.call(node), graph.output_specs(node))
        if conv is None:
            step = bind_node(np, KIND, graph, node, views, graph.constants, living)
            steps.append((node, step))
            position += 1
        else:
            candidates = list_fusions(graph, node, nodes[position + 1 :])
            step, length = _bind_longest(conv, graph, node, candidates, views)
            steps.append((node, step))
            position += length
    return BoundProgram(device, graph, steps, measure)


def _find_convolution(node: Node, call: Call, outputs: Specs) -> CompiledConvolution | None:
    if node.op != "Conv":
        return None
    found = find_kernel(node.op, KIND, call)  # a registered kernel takes precedence
    return find_convolution(call, outputs) if found is None or found.is_usual else None


def _bind_longest(
    conv: CompiledConvolution,
    graph: Graph,
    node: Node,
    candidates: list[Fused],
    views: Mapping[str, View],
) -> tuple[Step, int]:
    """Return a step that fuses as many of `candidates` as memory allows, and how many nodes it has.

    `conv` is the form of `node` in `graph`. The plan may place the output of a later node over the
    convolution's input or scratch in `views`, which would be free by then. A fused step must not
    write there while the convolution reads.
    """
    x, w, *bias = node.inputs
    source = _find_array(graph, views, x)
    buffers = [views[scratch_name(node, i)].array for i in range(len(conv.scratch))]
    for length in range(len(candidates), 0, -1):
        fused = candidates[length - 1]
        y = views[fused.output].array
        residual = None if fused.residual is None else _find_array(graph, views, fused.residual)
        overlaps = any(np.may_share_memory(y, other) for other in (source, *buffers))
        if length == 1 or not (overlaps or _is_shifted(y, residual)):
            break
    given = graph.constants[bias[0]] if bias and bias[0] else np.zeros(y.shape[1], np.float32)
    after = CompiledEpilogue(fused.numbers, residual)
    return conv.bind(source, graph.constants[w], given, y, buffers, after), length


def _find_array(graph: Graph, views: Mapping[str, View], name: str) -> Array:
    return graph.constants[name] if name in graph.constants else views[name].array


def _is_shifted(y: Array, residual: Array | None) -> bool:
    if residual is None or not np.may_share_memory(y, residual):
        return False
    return bool(y.ctypes.data != residual.ctypes.data)


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
