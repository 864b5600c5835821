"""Two float32 encoders of text with padding masks, on every device: ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.devices.ort import accepted_forms
from plait.graph.values.tensor import Array

pytest.importorskip("onnxruntime")
from onnx_models import by_runtime, written
from transformer_models import LAYERS, MODELS, tokens

TOLERANCE = 1e-4
DEVICES = (
    "cpu",
    "ort",
    *(pytest.param(one, marks=pytest.mark.slow) for one in ("compiled", "formal")),
)
FED = tokens([7, 3, 1])
SHAPES = {name: value.shape for name, value in FED.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Array]]:
    return {name: by_runtime(make(), FED) for name, make in MODELS.items()}


def close(found: Mapping[str, Array], wanted: Sequence[Array]) -> None:
    for array, right in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(array, right, TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_padded_texts_have_their_features(
    name: str, device: str, expected: dict[str, list[Array]], tmp_path: Path
) -> None:
    if device == "compiled":
        pytest.importorskip("numba", reason="needs numba: pip install '.[compiled]'")
    plan = pl.plan(pl.load(written(MODELS[name](), tmp_path)), [device], shapes=SHAPES)
    found = [node.op for node in plan.graph.nodes]
    assert found.count("Attention") == LAYERS
    close(pl.run(plan, FED), expected[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_runtime_that_repeats_no_masks_is_given_whole_ones(
    name: str, expected: dict[str, list[Array]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_forms, "can_repeat_rows", lambda: False)
    graph = pl.load(written(MODELS[name](), tmp_path))
    close(pl.run(graph, FED, devices=["ort"]), expected[name])
