"""The content of a LightNet file to write: operators, and the tensors that they create."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.values.errors import GraphError
from ...graph.values.names import Names
from ...graph.values.tensor import Array, TensorSpec, spec_of
from .entries import LONGEST_NAME
from .statement import DTYPES
from .text_form import rename_tensors, write_text
from .weights import dump_weights, is_storable

_DTYPE_NAMES: Mapping[str, str] = {dtype: name for name, dtype in DTYPES.items()}


class Document:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.weights: dict[str, Array] = {}
        self._ops: list[dict[str, Any]] = []
        self._created: set[str] = set()
        self._read: set[str] = set()
        self._written: list[str] = []
        self._names = Names([*graph.tensors, *(node.name for node in graph.nodes)])

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of `tensor`; raises GraphError if LightNet does not support it."""
        return _check_spec(self.graph.tensors[tensor], tensor).static_shape

    def value(self, tensor: str) -> Array | None:
        return self.graph.constants.get(tensor)

    def fresh(self, stem: str) -> str:
        return self._names.take(stem)

    def create(self, name: str, spec: TensorSpec, **given: Any) -> str:
        spec = _check_spec(spec, name)
        parameters = {
            "dtype": _DTYPE_NAMES[spec.dtype.name],
            "dims": list(spec.static_shape),
            "ran": [0, 0],
            "data": [0],
            "from_file": False,
            **given,
        }
        self._append("create", {}, {"dst": name}, parameters, self.fresh(f"create_{name}"))
        return name

    def constant(self, array: Array, name: str) -> str:
        """Write the constant `array`, unless it is written already, and return its `name`."""
        if name not in self._created:
            self._created.add(name)
            if is_storable(name, array):
                self.weights[name] = array
                return self.create(name, spec_of(array), from_file=True)
            if not np.isfinite(array).all():
                raise _cannot_write_error(
                    f"constant {name!r} holds what is not a number", self.graph.name
                )
            self.create(name, spec_of(array), data=array.reshape(-1).tolist())
        return name

    def operand(self, tensor: str, shape: tuple[int, ...] | None = None) -> str:
        """Return the name to read `tensor` by; a constant is broadcast to `shape`, if given."""
        array = self.value(tensor)
        if array is None:
            if shape is not None and self.shape(tensor) != shape:
                raise _cannot_write_error(
                    f"tensor {tensor!r} is broadcast to {list(shape)}", self.graph.name
                )
            return tensor
        if shape is None or array.shape == shape:
            return self.constant(array, tensor)
        wide = np.ascontiguousarray(np.broadcast_to(array, shape))
        return self.constant(wide, self.fresh(f"{tensor}_wide"))

    def write(
        self, optype: str, inputs: Mapping[str, str], output: str, name: str, **parameters: Any
    ) -> str:
        self._append(optype, inputs, {"dst": output}, parameters, name)
        return output

    def finish(self, *, as_text: bool) -> tuple[bytes, bytes]:
        """Return the model and the weights; `as_text` chooses the text form over JSON.

        If the tensors left unread are not exactly the outputs of the graph, each output is printed.
        """
        leaves = [name for name in self._written if name not in self._read]
        outputs = list(self.graph.outputs)
        if leaves != outputs:
            for name in outputs:
                said = {"msg": f"{name}:"}
                self._append("print", {"src": name}, {}, said, self.fresh(f"print_{name}"))
        if as_text:
            public = (*self.graph.inputs, *outputs)
            ops, weights = rename_tensors(self._ops, self.weights, public, self.graph.name)
            return write_text(ops), dump_weights(weights)
        lines = (json.dumps(one, ensure_ascii=False, allow_nan=False) for one in self._ops)
        text = '{"ops": [\n' + ",\n".join(lines) + "\n]}\n"
        return text.encode(), dump_weights(self.weights)

    def _append(
        self,
        optype: str,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        parameters: Mapping[str, Any],
        name: str,
    ) -> None:
        for one in (name, *outputs.values()):
            text = one.encode(errors="replace")
            if len(text) > LONGEST_NAME or text.decode() != one:
                raise _cannot_write_error(
                    f"{one[:40]!r} is too long for a name, or no text", self.graph.name
                )
        self._read.update(inputs.values())
        if optype != "create":
            self._written.extend(outputs.values())
        self._ops.append(
            {
                "name": name,
                "optype": optype,
                "tensors_in": _list_arguments(inputs, "name"),
                "tensors_out": _list_arguments(outputs, "name"),
                "params": _list_arguments(parameters, "value"),
            }
        )


def refused_node_error(node: Node, what: str) -> GraphError:
    return _cannot_write_error(f"LightNet has no {what}", str(node))


def _cannot_write_error(what: str, at: str) -> GraphError:
    return GraphError(what, at=at, fix="save a .plait file or an ONNX model")


def _list_arguments(given: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    return [{"arg_name": name, key: value} for name, value in given.items()]


def _check_spec(spec: TensorSpec, tensor: str) -> TensorSpec:
    if not spec.is_static or not spec.rank or not all(spec.static_shape):
        raise _cannot_write_error(
            f"tensor {tensor!r} is {spec}: LightNet's have axes of known lengths", tensor
        )
    if spec.dtype.name not in _DTYPE_NAMES:
        raise _cannot_write_error(
            f"tensor {tensor!r} is {spec}: LightNet has no such dtype", tensor
        )
    return spec
