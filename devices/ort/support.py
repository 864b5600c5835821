"""Support of nodes by ONNX Runtime: tried in a session of one node, once for each kind of node."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias
from weakref import ref

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs
from ...graph.core.operator import Call
from ...graph.core.whole import WHOLE
from ...graph.formats.onnx.forms import find_own_refusal, find_refusal, split_name
from ...graph.formats.onnx.writer import to_onnx
from ...graph.operators.bounded_call import BOUNDED_CALL, calls_function
from ...graph.operators.control import CONTROL_FLOW, fits_whole
from ...graph.values.dtypes import is_extension
from ...graph.values.tensor import Array, TensorSpec
from ..device import Support
from .empty import drop_empty_inputs, is_empty, is_known_from_empty
from .engine import KEPT_ANSWERS, PROCESSOR, Engine
from .runtime import can_bind_extensions, load_runtime

SMALL = 64
"""Elements; integer constants up to this size may be shapes or axes, which kernels read."""

_answers: dict[Hashable, str | None] = {}


_Answer: TypeAlias = tuple[
    Node, tuple[TensorSpec | None, ...], tuple[ref[Array] | None, ...], Support
]
"""A node, the specs and constants of its inputs, and the answer."""


class Answers:
    """Remembered answers about nodes: passes and the planner ask about the same nodes."""

    def __init__(self, engine: Engine = PROCESSOR) -> None:
        self._engine = engine
        self._known: dict[int, _Answer] = {}

    def of(self, node: Node, call: Call) -> Support:
        """Return whether ONNX Runtime has a kernel with the definition of `node` for `call`."""
        known = self._known.get(id(node))
        if known is not None:
            asked, inputs, values, answer = known
            if asked is node and inputs == call.inputs and all(map(_is_same, values, call.values)):
                return answer
        answer = supports(node, call, self._engine)
        if len(self._known) >= KEPT_ANSWERS:
            self._known.clear()
        # Weak references: an answer must not keep constants alive that passes have replaced.
        values = tuple(None if value is None else ref(value) for value in call.values)
        self._known[id(node)] = node, call.inputs, values, answer
        return answer


def _is_same(known: ref[Array] | None, value: Array | None) -> bool:
    return value is None if known is None else known() is value


def supports(node: Node, call: Call, engine: Engine = PROCESSOR) -> Support:
    """Return whether `engine` has a kernel with the definition of `node` for inputs `call`."""
    if calls_function(node):
        return Support(False, f"Python functions do not run on {engine.kind!r} devices")
    if node.op == BOUNDED_CALL:
        body: Graph = node.attributes["body"]
        (inner,) = body.nodes
        return supports(inner, body.call(inner), engine)
    if node.op in CONTROL_FLOW:
        return _supports_whole(node, call, engine)
    outputs = [
        spec if name else None
        for name, spec in zip(node.outputs, infer_node(node, call), strict=True)
    ]
    for spec in (*call.inputs, *outputs):
        if spec is not None and spec.dtype.kind == "c":
            return Support(False, f"{engine.kind!r} devices have no {spec.dtype.name}")
    if has_no_results(node, outputs):
        return Support(True, "there is nothing to compute")
    if (
        is_known_from_empty(node, call)
        and _explain_unbound([spec for spec in outputs if spec]) is None
    ):
        return Support(True, "what it makes of no elements is known ahead")
    node, call = drop_empty_inputs(node, call)
    present = [spec for spec in (*call.inputs, *outputs) if spec is not None]
    reason = (
        _explain_unwritable(node, call, outputs, engine)
        or engine.difference(node, call, outputs)
        or _explain_unbound(present)
        or _find_refusal(node, call, outputs, engine)
    )
    if reason is None:
        return Support(True, f"{engine.runtime} has a kernel")
    return Support(False, f"no kernel for {node.op!r} on {engine.kind!r} devices: {reason}")


def _explain_unwritable(
    node: Node, call: Call, outputs: Sequence[TensorSpec | None], engine: Engine
) -> str | None:
    if node.op == WHOLE:  # the nodes in it are written when it is tried
        return None
    if split_name(node.op)[0]:
        return find_own_refusal(node)
    return find_refusal(node, call.inputs, outputs, engine.opset())


def _supports_whole(node: Node, call: Call, engine: Engine) -> Support:
    """Return whether `engine` has kernels for all inner nodes of the control flow `node`.

    `call` has its inputs.
    """
    if not fits_whole(node, call):
        return Support(False, "shapes in it depend on values")
    for graph in list_graphs(node):
        for inner in graph.nodes:
            reason = _explain_inner_refusal(inner, graph.call(inner), engine)
            if reason is not None:
                return Support(False, f"{inner.name!r} in it: {reason}")
    return Support(True, "ONNX Runtime runs it whole")


def _explain_inner_refusal(node: Node, call: Call, engine: Engine) -> str | None:
    answer = supports(node, call, engine)
    if answer.ok and (
        any(map(is_empty, call.inputs, call.values)) or has_no_results(node, infer_node(node, call))
    ):
        return "it has no elements"
    return None if answer.ok else answer.reason


def _explain_unbound(specs: Sequence[TensorSpec]) -> str | None:
    """Return why this release accepts no buffers of one of `specs`, or None."""
    for spec in specs:
        if is_extension(spec.dtype) and not can_bind_extensions():
            version = load_runtime().__version__
            return f"onnxruntime {version} takes no buffers of {spec.dtype.name}: 1.23 does"
    return None


def has_no_results(node: Node, outputs: Sequence[TensorSpec | None]) -> bool:
    """Return whether all `outputs` of `node` are empty, so that it need not run."""
    if node.operator.bounded is not None or node.operator.effects:
        return False
    return all(spec is None or (spec.is_static and not spec.size) for spec in outputs)


def _find_refusal(
    node: Node, call: Call, outputs: Sequence[TensorSpec | None], engine: Engine
) -> str | None:
    if list_graphs(node):  # trying is as fast as comparing
        return _try(node, call, outputs, engine)
    key = engine, *_make_key(node, call)
    if key not in _answers:
        if len(_answers) >= KEPT_ANSWERS:
            _answers.clear()
        _answers[key] = _try(node, call, outputs, engine)
    return _answers[key]


def _make_key(node: Node, call: Call) -> tuple[Hashable, ...]:
    """Return all of `node` and `call` on which the answer depends; lengths are irrelevant."""
    inputs = tuple(
        spec and (spec.dtype.name, spec.rank, *_to_comparable(value))
        for spec, value in zip(call.inputs, call.values, strict=True)
    )
    attributes = tuple(sorted(node.attributes.items()))
    return node.op, attributes, inputs, tuple(map(bool, node.outputs))


def _make_kind(node: Node, call: Call) -> Hashable:
    """Return a key that is equal for each `node` and `call` that differ only in numbers."""
    named = tuple(
        (name, value if isinstance(value, str) else None)
        for name, value in sorted(node.attributes.items())
        if value is not None
    )
    inputs = tuple(spec and (spec.dtype.name, spec.rank) for spec in call.inputs)
    return node.op, named, inputs, tuple(map(bool, node.outputs))


def _to_comparable(value: Array | None) -> tuple[Hashable, ...]:
    return (value.shape, value.tobytes()) if value is not None and _is_small(value) else ()


def _is_small(value: Array) -> bool:
    return bool(value.dtype.kind in "iu" and value.size <= SMALL)


def _try(
    node: Node, call: Call, outputs: Sequence[TensorSpec | None], engine: Engine
) -> str | None:
    def write(is_exact: bool) -> Any:
        return to_onnx(_isolate(node, call, outputs, is_exact), opset=engine.opset())

    try:
        return engine.refusal(write, _make_kind(node, call))
    except Exception as error:
        return engine.summarize(error)


def _isolate(node: Node, call: Call, outputs: Sequence[TensorSpec | None], is_exact: bool) -> Graph:
    """Return a graph of `node`, given `call` and `outputs`, which is exact if `is_exact`.

    Otherwise it has any lengths, and weights as inputs.
    """
    tensors, constants = {}, {}
    for name, spec, value in zip(node.inputs, call.inputs, call.values, strict=True):
        if spec is not None:
            tensors[name] = spec
            if value is not None and (is_exact or _is_small(value)):
                constants[name] = value
            elif not is_exact:
                lengths = None if spec.rank is None else [f"{name}/{i}" for i in range(spec.rank)]
                tensors[name] = TensorSpec(spec.dtype, lengths)
    for name, output in zip(node.outputs, outputs, strict=True):
        if output is not None:
            tensors[name] = TensorSpec(output.dtype, None)
    fed = tuple(name for name in dict.fromkeys(filter(None, node.inputs)) if name not in constants)
    return Graph("probe", fed, tuple(filter(None, node.outputs)), (node,), tensors, constants)
