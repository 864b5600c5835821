"""ONNX's own node tests on ONNX Runtime: what it is given, it must compute as ONNX says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from bound import Bound
from onnx_suite import Case, check_like_onnx, suite
from plait.devices.ort.device import OrtDevice
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.slow

ROUGH = {"DFT": 1e-3, "STFT": 1e-4}
"""Differences that are right for sums of many products in single precision; values go to 100."""

ENOUGH = 1300
"""How many cases it took when this was written, with some room for other versions."""


@pytest.fixture(scope="module")
def device() -> Iterator[OrtDevice]:
    made = OrtDevice()
    made.open()
    yield made
    made.close()


def supported(device: OrtDevice, cases: list[Case]) -> list[Case]:
    return [
        case
        for case in cases
        if all(device.supports(node, case.graph.call(node)).ok for node in case.graph.nodes)
    ]


def all_cases() -> list[Case]:
    return [case for cases in suite().nodes.values() for case in cases] + suite().functions


@pytest.mark.extended
def test_what_is_supported_gives_what_onnx_says(device: OrtDevice) -> None:
    cases = supported(device, all_cases())
    assert len(cases) > ENOUGH
    for case in cases:
        with Bound(device, case.graph) as bound:
            found = bound.run(case.inputs)
        check(case, found)


def check(case: Case, found: Mapping[str, Array]) -> None:
    tolerance = max([ROUGH.get(node.op, 0.0) for node in case.graph.nodes])
    if not tolerance:
        check_like_onnx(case, found)
        return
    for name, wanted in case.outputs.items():
        np.testing.assert_allclose(found[name], wanted, 0, tolerance, err_msg=case.name)


@pytest.mark.parametrize(
    "op", ["Conv", "Gemm", "MatMul", "LSTM", "Resize", "Softmax", "LayerNormalization", "Add"]
)
def test_what_models_are_made_of_is_supported(device: OrtDevice, op: str) -> None:
    assert supported(device, suite().nodes[op])
