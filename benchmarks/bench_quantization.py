"""What does post-training quantisation cost real models in accuracy, and gain in size and time?

Each model of `quantization_inputs` is calibrated with one half of its inputs and judged by the
other: signal to noise of its outputs in decibels, and how often they serve as those of floats do.
The same for ONNX Runtime's static quantisation, with the same inputs, weights by channel, the same
way to choose ranges. Times are medians for one item, the sides taking turns, on one thread each.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import plait as pl
from measure import alternate, save
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from plait.devices.cpu import CpuDevice
from plait.graph.values.tensor import Array
from plait.scheduler.quantization.accuracy import compare
from plait.scheduler.quantization.ranges import Method
from quantization_inputs import CASES, Case, Feeds, Outputs, halves

COUNTS = {"PP-OCRv4 detection": 8}
RANGES: tuple[Method, ...] = ("minmax", "percentile", "mse")
GOOD_DB = 20


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Items, as ONNX Runtime asks for them."""

    def __init__(self, items: Sequence[Feeds]) -> None:
        self._items = iter(items)

    def get_next(self) -> Feeds | None:
        """Return the next one, None after the last."""
        return next(self._items, None)


def by_runtime(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs_of(session: onnxruntime.InferenceSession, items: Sequence[Feeds]) -> Iterator[Outputs]:
    names = [output.name for output in session.get_outputs()]
    for item in items:
        yield dict(zip(names, session.run(None, item), strict=True))


def outputs_by_plait(graph: pl.Graph, items: Sequence[Feeds]) -> list[Outputs]:
    with pl.BlockingSession(pl.plan(graph)) as session:
        return [session.run(item) for item in items]


def mebibytes(graph: pl.Graph) -> float:
    """Return the size of a graph's constants."""
    return float(sum(value.nbytes for value in graph.constants.values())) / 2**20


def judged(case: Case, expected: Sequence[Outputs], found: Sequence[Outputs]) -> dict[str, Any]:
    """Return how good outputs are, in decibels and by what they are for."""
    pairs = list(zip(expected, found, strict=True))
    scores = [case.score(*pair) for pair in pairs]
    decibels = {name: one.sqnr_db for name, one in compare(pairs).items()}
    return {"sqnr_db": decibels, case.question: statistics.mean(scores)}


def compared(name: str, case: Case, rounds: int, folder: Path, scale: float) -> dict[str, Any]:
    """Return what a model loses and gains."""
    graph = case.graph()
    items = case.items(max(2, int(scale * COUNTS.get(name, 40))))
    calibrating, judging = halves(items)
    expected = outputs_by_plait(graph, judging)
    judge = partial(judged, case, expected)
    original = folder / "floats.onnx"
    pl.save(graph, original)
    made = {str(one): pl.quantize(graph, calibrating, ranges=one) for one in RANGES}
    made[f"minmax, at least {GOOD_DB} dB"] = pl.quantize(graph, calibrating, min_sqnr_db=GOOD_DB)
    figures: dict[str, Any] = {
        f"plait, {ranges}": {
            "products": one.report().splitlines()[0],
            "constants_MiB": mebibytes(one.graph),
            **judge(outputs_by_plait(one.graph, judging)),
        }
        for ranges, one in made.items()
    }
    theirs = folder / "theirs.onnx"
    quantize_static(
        original, theirs, Reader(calibrating), per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    figures["onnxruntime, minmax"] = judge(list(outputs_of(by_runtime(theirs), judging)))
    ours, qdq = folder / "ours.onnx", folder / "qdq.onnx"
    pl.save(made["minmax"].graph, ours)
    pl.save(pl.quantize(graph, calibrating, form="qdq").graph, qdq)
    figures["plait, run by onnxruntime"] = judge(list(outputs_of(by_runtime(ours), judging)))
    files = {"floats": original, "theirs": theirs, "plait": ours, "plait, qdq": qdq}
    times = timed({"floats": graph, "integers": made["minmax"].graph}, files, judging[0], rounds)
    return {"floats_constants_MiB": mebibytes(made["minmax"].floats), **figures, "ms": times}


def timed(
    graphs: Mapping[str, pl.Graph],
    files: Mapping[str, Path],
    item: Mapping[str, Array],
    rounds: int,
) -> dict[str, float]:
    """Return milliseconds for an item."""
    with ExitStack() as stack:
        sides = {}
        for name, graph in graphs.items():
            plan = pl.plan(graph, [CpuDevice("cpu")])
            session = stack.enter_context(pl.BlockingSession(plan))
            sides[f"plait: {name}"] = partial(session.run, item)
        for name, path in files.items():
            sides[f"onnxruntime: {name}"] = partial(by_runtime(path).run, None, item)
        seconds = alternate(sides, rounds=rounds, at_least_s=0.02)
    return {name: 1e3 * value for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of items")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    figures = {}
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = compared(name, CASES[name], options.rounds, Path(folder), options.scale)
    save("quantization", figures)


if __name__ == "__main__":
    main()
