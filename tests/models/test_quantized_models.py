"""Real models, quantized: ONNX Runtime's numbers for the same integers, and better than its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.ort.saturation import avoid_saturation
from plait.graph.values.tensor import Array
from plait.scheduler.quantization.accuracy import compare

pytest.importorskip("onnxruntime")
import onnxruntime
from exact_runtime import start_exact_runtime

CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_infer"
ocr = pytest.mark.skipif(
    find_spec("rapidocr_onnxruntime") is None, reason="pip install rapidocr-onnxruntime==1.4.4"
)


def model(name: str) -> Path:
    spec = find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "models" / f"{name}.onnx"


def lines(count: int) -> list[dict[str, Array]]:
    """Return strips that are bright, with dark strokes, as lines of text are."""
    random = np.random.default_rng(0)
    items = []
    for _ in range(count):
        strokes = random.random((1, 1, 48, 96)) < 0.3
        x = np.where(strokes, -0.8, 0.9) + random.normal(0, 0.02, (1, 3, 48, 96))
        items.append({"x": x.astype(np.float32)})
    return items


def by_runtime(path: Path, items: list[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    yield from run_session(start_exact_runtime(path), items)


def run_session(session: Any, items: list[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    names = [output.name for output in session.get_outputs()]
    for item in items:
        yield dict(zip(names, session.run(None, item), strict=True))


@ocr
def test_the_same_integers_run_by_onnx_runtime_yield_the_same(tmp_path: Path) -> None:
    items = lines(2)
    made = pl.quantize(pl.load(model(CLASSIFIER)), items)
    assert len(made.products) == 54
    assert not made.kept
    pl.save(avoid_saturation(made.graph), tmp_path / "integers.onnx")
    # Without signed weights all its products are exact.
    session = onnxruntime.InferenceSession(tmp_path / "integers.onnx")
    (found,) = next(run_session(session, items[:1])).values()
    (expected,) = pl.run(made.graph, items[0]).values()
    np.testing.assert_allclose(found, expected, atol=1e-3)


@ocr
@pytest.mark.extended
def test_directions_are_no_worse_than_by_onnx_runtime(tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    path = model(CLASSIFIER)
    items = lines(4)
    made = pl.quantize(pl.load(path), items)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        rest = iter(items)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rest, None)

    theirs = tmp_path / "theirs.onnx"
    quantization.quantize_static(
        path, theirs, Reader(), per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    floats = list(by_runtime(path, items))
    (other,) = compare(zip(floats, by_runtime(theirs, items), strict=True)).values()
    (own,) = made.accuracy(items).values()
    assert own.sqnr_db > max(10, other.sqnr_db - 1)
