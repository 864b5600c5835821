"""Tiny ONNX models, and what ONNX Runtime and a loaded graph make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from exact_runtime import make_exact_options
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from plait import Graph
from single_node import run_node

AnyArray = NDArray[Any]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Return a NodeProto; names are separated by spaces, ``-`` is an absent one."""
    return helper.make_node(op, _names(inputs), _names(outputs), **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[str, Sequence[int | str | None] | None]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, AnyArray] | None = None,
    opset: int = 17,
) -> Any:
    """Return a ModelProto; inputs are given as (dtype, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [_input(name, *given) for name, given in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def written(proto: Any, folder: Path, name: str = "model.onnx") -> Path:
    """Return the path of a model, written to a folder."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def by_runtime(proto: Any, feeds: Mapping[str, AnyArray]) -> list[AnyArray]:
    """Return what ONNX Runtime computes."""
    options = make_exact_options()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(result) for result in session.run(None, dict(feeds))]


def by_kernels(graph: Graph, feeds: Mapping[str, AnyArray]) -> list[AnyArray]:
    """Return what plait's kernels compute, node after node, each on its own."""
    values: dict[str, Any] = {**graph.constants, **feeds}
    for each in graph.nodes:
        inputs = [values[name] if name else None for name in each.inputs]
        # All inputs are constants here: what shapes depend on is known.
        results = run_node(
            each.op, inputs, each.attributes, len(each.outputs), constant=range(len(inputs))
        )
        values.update(zip(each.outputs, results, strict=True))
    return [values[name] for name in graph.outputs]


def _names(names: str) -> list[str]:
    return ["" if name == "-" else name for name in names.split()]


def _input(name: str, dtype: str, shape: Sequence[int | str | None] | None) -> Any:
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element_type, shape)
