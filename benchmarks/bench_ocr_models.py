"""How fast are the three OCR models on `cpu`, against ONNX Runtime with one thread?

Both run on one core: BLAS is limited to one thread here, ONNX Runtime by its session options. Goal:
at most 2.0 times with numpy alone, as the geometric mean.
"""

from __future__ import annotations

import os
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import trio
from measure import alternate, save

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Read when numpy is imported, so the script starts itself again with them."""

INPUTS = {
    "ch_PP-OCRv4_det_infer.onnx": (1, 3, 640, 640),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (1, 3, 48, 192),
    "ch_PP-OCRv4_rec_infer.onnx": (1, 3, 48, 320),
}


def models() -> Path:
    """Return the folder of the models that rapidocr-onnxruntime carries."""
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install rapidocr-onnxruntime==1.4.4")
    return Path(spec.origin).parent / "models"


def ort_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


async def compare(path: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return milliseconds per item for both, and their ratio."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    reference = ort_session(path)
    plan = pl.plan(pl.load(path), ["cpu"], shapes={"x": shape})
    async with pl.Session(plan) as session:
        difference = np.abs((await session.run({"x": x}))[plan.graph.outputs[0]]
                            - reference.run(None, {"x": x})[0]).max()  # fmt: skip
        sides = {
            "plait": lambda: trio.from_thread.run(session.run, {"x": x}),
            "onnxruntime": lambda: reference.run(None, {"x": x}),
        }
        seconds = await trio.to_thread.run_sync(lambda: alternate(sides, at_least_s=0.3))
    return {
        "plait_ms": seconds["plait"] * 1e3,
        "onnxruntime_ms": seconds["onnxruntime"] * 1e3,
        "ratio": seconds["plait"] / seconds["onnxruntime"],
        "max_abs_difference": float(difference),
    }


def main() -> None:
    if any(os.environ.get(name) != count for name, count in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    figures = {name: trio.run(compare, models() / name, shape) for name, shape in INPUTS.items()}
    ratios = [figure["ratio"] for figure in figures.values()]
    save("ocr_models", {"models": figures, "geometric_mean": statistics.geometric_mean(ratios)})


if __name__ == "__main__":
    main()
