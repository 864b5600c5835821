"""Shape inference against ONNX's: never another shape, and nothing less known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import plait as pl
import pytest
from onnx import helper
from onnx_suite import collect_tests
from plait.graph.formats.onnx import read_model
from plait.graph.values.tensor import TensorSpec
from plait.scheduler.shapes.specialise import specialise

pytestmark = pytest.mark.slow

LEFT_OUT = {
    "Col2Im": "ONNX takes images to be flat where the length of their shape is a symbol",
    "DFT": "plait has to know the axis, ONNX only that no axis changes its length",
    "Loop": "ONNX believes what the body declares",
    "Scan": "ONNX believes what the body declares",
}

ONLY_NUMBERS = {"Attention": "ONNX takes lengths that are symbols for 0"}


def models() -> Iterator[tuple[str, Any]]:
    for case in collect_tests():
        yield case.name, case.model


def undeclared(model: Any, *, symbolic: bool) -> Any:
    """Return the model without shapes of outputs; with a symbol for each length of an input."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in changed.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in changed.graph.input if symbolic else ():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    return changed


def inferred_by_onnx(model: Any) -> dict[str, TensorSpec] | None:
    """Return what ONNX says of the outputs; None where it says that the model is wrong."""
    try:
        made = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    return {value.name: spec(value) for value in made.graph.output}


def spec(value: Any) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorSpec(dtype, None)
    known = (d.dim_value if d.HasField("dim_value") else "?" for d in tensor.shape.dim)
    return TensorSpec(dtype, tuple(known))


def disagreement(ours: TensorSpec, theirs: TensorSpec, *, lengths: bool) -> str | None:
    """Return how specs disagree; with `lengths`, also where only ONNX knows one."""
    if ours.dtype != theirs.dtype:
        return f"{ours} is not {theirs}"
    if theirs.shape is None:
        return None
    if ours.shape is None:
        return f"rank unknown, ONNX knows {theirs}"
    if len(ours.shape) != len(theirs.shape):
        return f"{ours} is not {theirs}"
    for mine, other in zip(ours.shape, theirs.shape, strict=True):
        if isinstance(other, int) and mine != other and (lengths or isinstance(mine, int)):
            return f"{ours} against {theirs}"
    return None


def check(name: str, model: Any) -> str | None:
    """Return what is wrong with what plait infers of a model."""
    try:
        graph = specialise(read_model(model, "model.onnx"))
    except pl.GraphError:
        return None  # what plait lacks
    theirs = inferred_by_onnx(model)
    if theirs is None:
        return None
    # ONNX does arithmetic on shapes that are symbols; plait does when they are numbers.
    arithmetic = len(graph.nodes) > 1
    for output, other in theirs.items():
        found = disagreement(graph.tensors[output], other, lengths=not arithmetic)
        if found:
            return f"{name}: {output}: {found}"
    return None


@pytest.mark.parametrize("lengths", ["numbers", "symbols"])
def test_what_onnx_infers_plait_infers_too(lengths: str) -> None:
    wrong = []
    left_out = {*LEFT_OUT, *(ONLY_NUMBERS if lengths == "symbols" else ())}
    for name, model in models():
        if not any(node.op_type in left_out for node in model.graph.node):
            found = check(name, undeclared(model, symbolic=lengths == "symbols"))
            wrong += [found] if found else []
    assert wrong == []
