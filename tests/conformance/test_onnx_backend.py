"""ONNX's own backend tests, run as it runs them: through `plait.testing.OnnxBackend`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_suite import collect_tests
from plait import conformance
from plait.conformance import BY_ROUNDING, Outcomes, run_suite, table, written
from plait.graph.values.extras import get_install_command
from plait.testing import OnnxBackend, UnsupportedError

NUMBERS = Path(__file__).parents[2] / "docs" / "operators.md"


@cache
def on_the_cpu(one_in: int = 1) -> Outcomes:
    collect_tests()  # quicker than when the runner has them made
    return run_suite(one_in=one_in)


@pytest.mark.slow
@pytest.mark.parametrize("one_in", [15, 1])
def test_no_answer_is_wrong_but_by_rounding(one_in: int) -> None:
    failed = on_the_cpu(one_in).failed
    assert {name: why for name, why in failed.items() if name not in BY_ROUNDING} == {}


@pytest.mark.extended
def test_the_numbers_in_the_documentation_are_current() -> None:
    text = NUMBERS.read_text()
    assert written(text, table(on_the_cpu())) == text, (
        "run: python -m plait.conformance --write docs/operators.md"
    )


@pytest.mark.extended
def test_nodes_that_alternate_between_two_devices_pass_the_same() -> None:
    """One in five, without those that turn out to have one node."""
    alternating, alone = run_suite(alternate=True, one_in=5), on_the_cpu()
    ran = alternating.passed | alternating.failed.keys()
    assert len(ran) > 90
    assert alternating.passed - BY_ROUNDING == (alone.passed & ran) - BY_ROUNDING
    assert alternating.refused <= alone.refused


def test_without_onnx_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        conformance.main([])
    assert get_install_command("onnx") in capsys.readouterr().err


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
