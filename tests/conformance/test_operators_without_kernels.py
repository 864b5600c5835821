"""Operators without a kernel in ONNX Runtime, compared with more than the reference of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import plait as pl
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from plait.graph.core.operator import list_operators
from single_node import run_node

Array = np.ndarray[Any, Any]

BY_FUNCTION = {"CastLike", "GroupNormalization", "HardSwish", "Mish", "Swish"}
"""ONNX defines these by other operators, which ONNX Runtime computes."""

BY_TEXT = {"LinearAttention"}
"""Compared with the recurrence in ONNX's text."""

UNCOMPARED = {"Bernoulli", "Constant", "ImageDecoder"}
"""They draw random numbers; are folded when a model is read; are refused by all devices."""

OPSET = 24
X = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
ROW = np.linspace(-1, 2, 4, dtype=np.float32)
CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("Mish", [X], {}),
    ("HardSwish", [4 * X], {}),
    ("Swish", [X], {}),
    ("Swish", [X], {"alpha": -1.5}),
    ("GroupNormalization", [X, ROW, 1 - ROW], {"num_groups": 2}),
    ("GroupNormalization", [X, ROW, 1 - ROW], {"num_groups": 4, "epsilon": 0.1}),
    ("CastLike", [300 * X, np.zeros(1, np.int32)], {}),
    ("CastLike", [X, np.zeros((2, 2), np.float16)], {}),
]


def test_these_are_all_operators_without_a_kernel() -> None:
    kernels = {one.op_name for one in runtime.get_all_opkernel_def() if one.domain == ""}
    known = {one.name for one in onnx.defs.get_all_schemas_with_history() if one.domain == ""}
    assert known.intersection(list_operators()) - kernels == BY_FUNCTION | BY_TEXT | UNCOMPARED


def run_function(op: str, inputs: list[Array], attributes: dict[str, Any]) -> Array:
    """Return the result of ONNX Runtime, which replaces the node by ONNX's function for it."""
    names = [f"x{index}" for index in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in zip(names, inputs, strict=True)
    ]
    dtype = helper.np_dtype_to_tensor_dtype(inputs[-1 if op == "CastLike" else 0].dtype)
    result = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g", values, [result]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found[0]


@pytest.mark.parametrize("device", ["cpu", "formal"])
@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES)
def test_results_are_those_of_the_function_that_onnx_gives(
    op: str, inputs: list[Array], attributes: dict[str, Any], device: str
) -> None:
    builder = pl.GraphBuilder("one")
    fed = {f"x{index}": one for index, one in enumerate(inputs)}
    given = [builder.input(name, str(one.dtype), one.shape) for name, one in fed.items()]
    builder.output("y", builder.op(op, *given, **attributes))
    found = pl.run(pl.plan(builder.build(), device), fed)["y"]
    expected = run_function(op, inputs, attributes)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def compute_attention(inputs: list[Array | None], rule: str, heads: int, scale: float) -> Array:
    """Compute LinearAttention step by step, by the recurrences in ONNX's text (opset 27)."""
    query, key, value, past, decay, beta = inputs
    assert query is not None
    assert key is not None
    assert value is not None
    batch, steps, _ = query.shape
    depth, width = key.shape[-1] // heads, value.shape[-1] // heads
    group = query.shape[-1] // (heads * depth)
    found = np.zeros((batch, steps, heads * group * width))
    for b in range(batch):
        for h in range(heads):
            state = np.zeros((depth, width)) if past is None else past[b, h].astype(float)
            for t in range(steps):
                k = key[b, t, h * depth : (h + 1) * depth].astype(float)
                v = value[b, t, h * width : (h + 1) * width].astype(float)
                if "gated" in rule:
                    assert decay is not None
                    per_head = decay.shape[-1] // heads
                    g = decay[b, t, h * per_head : (h + 1) * per_head].astype(float)
                    state = np.exp(g)[:, None] * state
                if "delta" in rule:
                    assert beta is not None
                    rate = beta[b, t, h % beta.shape[-1]]
                    state = state + rate * np.outer(k, v - state.T @ k)
                else:
                    state = state + np.outer(k, v)
                for g_ in range(group):
                    head = h * group + g_
                    q = query[b, t, head * depth : (head + 1) * depth].astype(float)
                    found[b, t, head * width : (head + 1) * width] = (
                        (scale or depth**-0.5) * q @ state
                    )
    return found


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize(("decays", "scale"), [(1, 0.0), (3, 0.3)])
def test_linear_attention_is_its_recurrence(
    rule: str, has_past: bool, decays: int, scale: float
) -> None:
    heads, group, depth, width, steps = 2, 2, 3, 4, 5
    random = np.random.default_rng(7)
    shapes: list[tuple[int, ...] | None] = [
        (2, steps, heads * group * depth),
        (2, steps, heads * depth),
        (2, steps, heads * width),
        (2, heads, depth, width) if has_past else None,
        (2, steps, heads * decays) if "gated" in rule else None,
        (2, steps, heads if decays == 1 else 1) if "delta" in rule else None,
    ]
    inputs = [None if s is None else random.uniform(-1, 1, s).astype(np.float32) for s in shapes]
    attributes = {
        "update_rule": rule,
        "q_num_heads": heads * group,
        "kv_num_heads": heads,
        "scale": scale,
    }
    found, _ = run_node("LinearAttention", inputs, attributes, 2)
    expected = compute_attention(inputs, rule, heads, scale)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
