"""Is a model that ONNX Runtime's tools quantized as fast, and as small, on `ort` as by itself?

The OCR networks, quantized by `quantize_static` (QDQ, weights by channel), one item on one thread:
milliseconds of the process's own time, the sides taking turns, and the bytes of constants. What the
session adds is about the same for every model, so its program is timed alone, too.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
from measure import alternate, save
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from plait.devices.memory import host_arena, host_view
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.saturation import is_saturating
from quantization_inputs import CASES, Feeds

MODELS = ("PP-OCR direction", "PP-OCRv4 recognition")
BITS = (8, 7)
"""Of weights: of 8, ONNX Runtime cuts sums off on processors without VNNI."""


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Items, as ONNX Runtime asks for them."""

    def __init__(self, items: list[Feeds]) -> None:
        self._items = iter(items)

    def get_next(self) -> Feeds | None:
        """Return the next one, None after the last."""
        return next(self._items, None)


def program_of(plan: pl.Plan, fed: Feeds) -> Any:
    """Return what a plan's one step runs, on arrays of its own."""
    (step,) = plan.steps
    graph = step.work.graph  # type: ignore[union-attr]
    specs = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
    views = {name: host_view(host_arena(one.nbytes), 0, one) for name, one in specs.items()}
    for name, value in fed.items():
        views[name].array[...] = value
    return OrtDevice().compile_on(1, graph, views)


def compared(name: str, bits: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return times, bytes, and how far outputs are off."""
    case = CASES[name]
    floats, quantized = folder / "floats.onnx", folder / "quantized.onnx"
    graph = case.graph()
    pl.save(graph, floats)
    first, *items = case.items(4)
    quantize_static(
        floats, quantized, Reader(items), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=bits == 7,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(quantized, options, providers=["CPUExecutionProvider"])
    shapes = {name: value.shape for name, value in first.items()}
    devices = [pl.device("ort", threads=1)]
    plan = pl.plan(pl.load(quantized), devices, shapes=shapes)
    with (
        pl.BlockingSession(plan) as ours,
        pl.BlockingSession(pl.plan(graph, devices, shapes=shapes)) as in_floats,
    ):
        sides = {
            "onnxruntime": partial(theirs.run, None, first),
            "plait": partial(ours.run, first),
            "plait, the program": program_of(plan, first),
            "plait, floats": partial(in_floats.run, first),
        }
        (runtime,), (found,) = theirs.run(None, first), ours.run(first).values()
        (expected,) = pl.run(pl.load(quantized), first, devices=["cpu"]).values()
        seconds = alternate(sides, rounds=rounds, clock=time.process_time)
    return {
        "ms": {side: 1e3 * value for side, value in seconds.items()},
        "plait / onnxruntime": seconds["plait"] / seconds["onnxruntime"],
        "program / onnxruntime": seconds["plait, the program"] / seconds["onnxruntime"],
        "mean difference from cpu, where sums are exact": {
            "onnxruntime": float(np.abs(expected - runtime).mean()),
            "plait": float(np.abs(expected - found).mean()),
        },
        "constants_MiB": {
            "floats": sum(value.nbytes for value in graph.constants.values()) / 2**20,
            "plan": sum(value.nbytes for value in plan.graph.constants.values()) / 2**20,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    figures: dict[str, Any] = {"sums are cut off at 16 bits": is_saturating()}
    for name, bits in product(MODELS, BITS):
        with tempfile.TemporaryDirectory() as folder:
            figures[f"{name}, {bits} bits"] = compared(name, bits, options.rounds, Path(folder))
    save("quantized_models", figures)


if __name__ == "__main__":
    main()
