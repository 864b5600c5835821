"""ONNX's own backend tests, run as it runs them: through `plait.testing.OnnxBackend`."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner
from plait.testing import AlternatingBackend, OnnxBackend, UnsupportedError

WRITTEN_OUT = ("attention", "rotary_embedding", "hannwindow", "blackmanwindow", "hammingwindow")
"""Operators that plait has no kernels for: ONNX defines them by others."""

DECIDED = ("reshape", "expand", "tile", "slice", "range", "constantofshape", "unsqueeze")
"""Operators whose output's shape depends on the value of an input."""

ONE_ULP = {"test_attention_4d_causal_fp16"}
"""Cases whose tolerance is below the spacing of float16: two elements of 192 are next to it."""


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():  # numpy's, about numbers that make good tests
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def named(*families: str) -> list[str]:
    names = tuple(f"test_{family}" for family in families)
    return [
        name
        for name in sorted(cases())
        if name.startswith(names)
        and not name.endswith("_expanded")
        and "bf16" not in name
        and "bfloat16" not in name  # numpy has no such dtype
        and name not in ONE_ULP
    ]


def check(backend: type[OnnxBackend], name: str) -> None:
    case = cases()[name]
    for inputs, outputs in case.data_sets:
        results = backend.run_model(case.model, list(map(as_array, inputs)))
        wanted = list(map(as_array, outputs))
        Runner.assert_similar_outputs(wanted, results, rtol=case.rtol, atol=case.atol)


def as_array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


@pytest.mark.parametrize("name", named(*WRITTEN_OUT))
def test_operators_that_onnx_defines_by_others_are_written_out(name: str) -> None:
    check(OnnxBackend, name)


@pytest.mark.parametrize("name", named(*DECIDED))
def test_inputs_that_decide_shapes_are_made_constants(name: str) -> None:
    check(OnnxBackend, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_attention_3d", "test_hannwindow", "test_softmax_axis_1"])
def test_nodes_that_alternate_between_two_devices_give_the_same(name: str) -> None:
    check(AlternatingBackend, name)


def model(op: str, domain: str = "") -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    return helper.make_model(helper.make_graph([node], "single", [x], [y]))


def test_inputs_may_be_fed_by_name() -> None:
    (y,) = OnnxBackend.prepare(model("Relu")).run({"x": np.array([-1, 2], np.float32)})
    assert y.tolist() == [0, 2]


def test_what_plait_lacks_counts_as_not_supported() -> None:
    assert OnnxBackend.is_compatible(model("Relu"))
    assert not OnnxBackend.is_compatible(model("Zen", "far.away"))
    with pytest.raises(UnsupportedError, match=r"far\.away\.Zen"):
        OnnxBackend.prepare(model("Zen", "far.away"))


def test_the_backend_runs_what_is_meant_for_the_cpu() -> None:
    assert OnnxBackend.supports_device("CPU")
    assert not OnnxBackend.supports_device("CUDA")
