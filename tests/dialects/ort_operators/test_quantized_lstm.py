"""LSTMs of quantized weights, as ONNX Runtime's quantizer writes them: its numbers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from onnx import helper, numpy_helper
from onnx_models import by_runtime
from patience import WAIT_S
from plait.graph.formats.onnx import read_model
from plait.graph.values.tensor import Array

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 6, 4
OP = "DynamicQuantizeLSTM"


def make_model(
    direction: str = "forward",
    *,
    opset: int = 17,
    biased: bool = True,
    columns: bool = False,
    dtype: str = "int8",
    **attributes: Any,
) -> Any:
    """Return a model of one LSTM; with `columns`, each column of its weights has a scale."""
    random = np.random.default_rng(0)
    count = 1 + (direction == "bidirectional")
    one_each = (count, 4 * HIDDEN) if columns else (count,)
    low = 0 if dtype == "uint8" else -127
    constants = {
        "W": random.integers(low, 128, (count, WIDTH, 4 * HIDDEN)).astype(dtype),
        "R": random.integers(low, 128, (count, HIDDEN, 4 * HIDDEN)).astype(dtype),
        "B": random.normal(0, 0.3, (count, 8 * HIDDEN)).astype(np.float32),
        "W_scale": random.uniform(0.005, 0.01, one_each).astype(np.float32),
        "W_zero": np.full(one_each, 60 if dtype == "uint8" else 0, dtype),
        "R_scale": random.uniform(0.005, 0.01, one_each).astype(np.float32),
        "R_zero": np.full(one_each, 65 if dtype == "uint8" else 0, dtype),
    }
    bias = "B" if biased else ""
    names = ["X", "W", "R", bias, "", "H", "C", "", "W_scale", "W_zero", "R_scale", "R_zero"]
    node = helper.make_node(
        OP,
        names,
        ["Y", "Y_h", "Y_c"],
        domain="com.microsoft",
        direction=direction,
        hidden_size=HIDDEN,
        **attributes,
    )
    shapes: dict[str, list[str | int]] = {
        "X": ["steps", "batch", WIDTH],
        "H": [count, "batch", HIDDEN],
    }
    shapes["C"] = shapes["H"]
    graph = helper.make_graph(
        [node],
        "quantized",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, 1, None) for name in node.output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def make_feeds(proto: Any) -> dict[str, Array]:
    random = np.random.default_rng(1)
    count = proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value
    state = (count, BATCH, HIDDEN)
    shapes = {"X": (STEPS, BATCH, WIDTH), "H": state, "C": state}
    return {name: random.normal(0, 0.7, s).astype(np.float32) for name, s in shapes.items()}


def check(proto: Any, **planned: Any) -> None:
    fed = make_feeds(proto)
    graph = read_model(proto, "here")
    found = pl.run(pl.plan(graph, **planned), fed)
    for name, wanted in zip(graph.outputs, by_runtime(proto, fed), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_every_direction_gives_the_reference_results(direction: str, opset: int) -> None:
    check(make_model(direction, opset=opset))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_bias_and_scales_are_those_of_the_reference(biased: bool, columns: bool) -> None:
    check(make_model("bidirectional", biased=biased, columns=columns))


def test_weights_may_be_unsigned_and_have_zero_points() -> None:
    check(make_model("bidirectional", dtype="uint8"))


def test_ort_runs_it_as_one_node() -> None:
    proto = make_model("bidirectional")
    graph = read_model(proto, "here")
    assert [node.op for node in graph.nodes] == [f"com.microsoft.{OP}"]
    plan = pl.plan(graph, ["ort"], shapes={name: a.shape for name, a in make_feeds(proto).items()})
    assert len(plan.assignment) == 1
    check(proto, devices=["ort"])


def test_a_device_that_lacks_it_scans() -> None:
    proto = make_model("bidirectional")
    plan = pl.plan(read_model(proto, "here"), ["cpu", "ort"], pin={"*": "cpu"})
    assert "ort" not in plan.assignment.values()
    check(proto, devices=["cpu", "worker:0"], pin={"*": "worker:0"})


def test_outputs_that_nobody_reads_are_left_out() -> None:
    proto = make_model("reverse")
    del proto.graph.output[:2]
    check(proto)
    check(proto, devices=["ort"])


def test_unusual_forms_are_left_to_onnxruntime() -> None:
    check(make_model(clip=3.0), devices=["ort"])
    with pytest.raises(pl.PlanError, match="no kernel for 'com"):
        pl.plan(read_model(make_model(clip=3.0), "here"), ["cpu"])


def test_it_is_read_without_onnxruntime() -> None:
    code = """
import sys; sys.modules["onnxruntime"] = None
import plait as pl
graph = pl.load(sys.argv[1])
print(graph.nodes[0].op, graph.tensors["Y_h"])
pl.plan(graph, "cpu")
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(make_model().SerializeToString())
        command = [sys.executable, "-P", "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert done.stdout == f"com.microsoft.{OP} float32[1, batch, {HIDDEN}]\n"


@pytest.mark.parametrize("change", ["width", "rank", "direction"])
def test_shapes_that_do_not_fit_are_refused(change: str) -> None:
    proto = make_model()
    node = proto.graph.node[0]
    if change == "direction":
        node.attribute[0].s = b"bidirectional"
    else:
        node.input[2 if change == "width" else 0] = "W_scale" if change == "rank" else "W"
    with pytest.raises(pl.PlaitError):
        read_model(proto, "here")
