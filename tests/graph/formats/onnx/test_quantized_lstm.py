"""LSTMs of quantized weights, as ONNX Runtime's quantizer writes them: its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from onnx import helper, numpy_helper
from onnx_models import by_runtime
from plait.graph.formats.onnx import read_model
from plait.graph.formats.onnx.expansion import expand
from plait.graph.tensor import Array

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 6, 4
OP = "DynamicQuantizeLSTM"


def model(
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


def feeds(proto: Any) -> dict[str, Array]:
    random = np.random.default_rng(1)
    count = proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value
    state = (count, BATCH, HIDDEN)
    shapes = {"X": (STEPS, BATCH, WIDTH), "H": state, "C": state}
    return {name: random.normal(0, 0.7, s).astype(np.float32) for name, s in shapes.items()}


def check(proto: Any, **planned: Any) -> None:
    fed = feeds(proto)
    graph = read_model(proto, "here")
    found = pl.run(pl.plan(graph, **planned), fed)
    for name, wanted in zip(graph.outputs, by_runtime(proto, fed), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_every_direction_gives_the_reference_results(direction: str, opset: int) -> None:
    check(model(direction, opset=opset))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_bias_and_scales_are_those_of_the_reference(biased: bool, columns: bool) -> None:
    check(model("bidirectional", biased=biased, columns=columns))


def test_weights_may_be_unsigned_and_have_zero_points() -> None:
    check(model("bidirectional", dtype="uint8"))


def test_directions_may_be_on_different_devices() -> None:
    proto = model("bidirectional")
    _, second = (n.name for n in read_model(proto, "here").nodes if n.op == "Scan")
    check(proto, devices=["cpu", "worker:0"], pin={f"{second}*": "worker:0"})


def test_forms_that_are_not_written_out_are_left_to_onnxruntime() -> None:
    clipped = model(clip=3.0)
    assert expand(clipped, "here") is clipped
    assert f"com.microsoft.{OP}" in {node.op for node in read_model(clipped, "here").nodes}


def test_the_model_that_is_given_keeps_its_lstm() -> None:
    given = model()
    before = given.SerializeToString()
    assert expand(given, "here").graph.node[0].op_type != OP
    assert given.SerializeToString() == before
