"""Serve models under MLPerf's load generator, beside ONNX Runtime in a pool of threads.

SingleStream, MultiStream (8 samples a query), Server and Offline, for three models and a pipeline
(a picture made an input, a network, a label). Sides: a `ThreadPoolExecutor` with a thread for each
core and an ONNX Runtime session of one thread, and plait on a replica of ``ort`` for each core, by
`run`, `stream` and `submit`. The rates of Server are 50 and 80 % of the last Offline rate of the
pool. Sides take turns; medians over the rounds, and the median of the ratio to the pool in one
round.

Goal: the 99th percentile of Server at most 1.05 times that of the pool.

    pip install mlcommons-loadgen
    python benchmarks/bench_loadgen.py [--rounds 7] [--seconds 3] [--busy 0] [--models ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import mlperf_loadgen as loadgen  # type: ignore[import-not-found]
import numpy as np
import onnxruntime
import plait as pl
from measure import save
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

CORES = 2
SAMPLES = 8
SPIN = "while True: pass"
MODELS = ("PP-OCR direction", "shufflenet, made-up weights", "magika")
PIPELINE = "pipeline"
SCENARIOS = {
    "SingleStream": "result_50.00_percentile_latency_ns",
    "MultiStream": "result_50.00_percentile_per_query_latency_ns",
    "Offline": "result_samples_per_second",
    "Server": "result_99.00_percentile_latency_ns",
}
Feeds = Mapping[str, Array]
Sample = Any
"""A sample of LoadGen: `id` and `index`."""


class Side(Protocol):
    """A way to serve samples."""

    def issue(self, scenario: str, samples: Sequence[Sample]) -> None:
        """Serve the samples of a query; report each as it is done."""

    def close(self) -> None: ...


def report(sample: Sample, _: object = None) -> None:
    loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0)])


class PoolSide:
    """A thread for each core, which all call one ONNX Runtime session."""

    def __init__(self, call: Callable[[Feeds], object], feeds: Sequence[Feeds]) -> None:
        self._call, self._feeds = call, feeds
        self._pool = ThreadPoolExecutor(CORES)

    def issue(self, scenario: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._pool.submit(self._serve, sample)

    def _serve(self, sample: Sample) -> None:
        self._call(self._feeds[sample.index])
        report(sample)

    def close(self) -> None:
        self._pool.shutdown()


class PlaitSide:
    """A blocking session: `run` for one sample, `submit` for a server, `stream` for many."""

    def __init__(self, plan: pl.Plan, feeds: Sequence[Feeds]) -> None:
        self._feeds = feeds
        self._session = pl.BlockingSession(plan)
        self._streaming = ThreadPoolExecutor(1)
        for _ in range(4):
            list(self._session.stream(feeds))

    def issue(self, scenario: str, samples: Sequence[Sample]) -> None:
        if scenario == "SingleStream":
            for sample in samples:
                self._session.run(self._feeds[sample.index])
                report(sample)
        elif scenario == "Server":
            for sample in samples:
                future: Future[Any] = self._session.submit(self._feeds[sample.index])
                future.add_done_callback(partial(report, sample))
        else:
            self._streaming.submit(self._stream, samples)

    def _stream(self, samples: Sequence[Sample]) -> None:
        feeds = (self._feeds[sample.index] for sample in samples)
        for item in self._session.stream(feeds, max_in_flight=4 * CORES, ordered=False):
            report(samples[item.index])

    def close(self) -> None:
        self._streaming.shutdown()
        self._session.close()


def load_inference(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def make_sides(name: str) -> dict[str, Side]:
    if name == PIPELINE:
        return make_pipeline_sides()
    model = REAL_MODELS[name]
    path = model.path()
    feeds: list[Feeds] = [model.feeds(1) for _ in range(SAMPLES)]
    inference = load_inference(path)
    call = lambda one: inference.run(None, one)  # noqa: E731
    shapes = {name: array.shape for name, array in feeds[0].items()}
    devices = [f"ort:0..{CORES - 1}"]
    plan = pl.plan(pl.load(path), devices, shapes=shapes, max_in_flight=2 * CORES)
    return {"pool": PoolSide(call, feeds), "plait": PlaitSide(plan, feeds)}


def prepare(picture: Array) -> Array:
    """Return a picture, uint8 (h, w, 3), as an input, float32 (1, 3, h, w)."""
    scaled = (picture.astype(np.float32) - 127.5) / 64
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def select_labels(scores: Array) -> Array:
    return scores.reshape(-1).argsort()[-5:].astype(np.int64)


def make_pipeline_sides() -> dict[str, Side]:
    """Return the sides of a pipeline of two functions and a network, as the docs write it."""
    path = REAL_MODELS["squeezenet, made-up weights"].path()
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(SAMPLES)]
    feeds: list[Feeds] = [{"picture": one} for one in pictures]
    inference = load_inference(path)
    name = inference.get_inputs()[0].name

    def call(one: Feeds) -> object:
        return select_labels(inference.run(None, {name: prepare(one["picture"])})[0])

    image = pl.TensorSpec("float32", (1, 3, 224, 224))
    picture = pl.TensorSpec("uint8", (224, 224, 3))
    five = pl.TensorSpec("int64", (5,))
    b = pl.GraphBuilder("pipeline")
    prepared = pl.operator(image, inputs=[picture], name="bench_loadgen.prepare")(prepare)
    x = b.call(prepared, b.input("picture", "uint8", (224, 224, 3)), name="prepare")
    (scores,) = b.include(pl.load(path), {name: x}).values()
    labelled = pl.operator(five, name="bench_loadgen.label")(select_labels)
    b.output("labels", b.call(labelled, scores, name="label"))
    cpu, ort = f"cpu:0..{CORES - 1}", f"ort:0..{CORES - 1}"
    pins = {"prepare": cpu, "label": cpu, "*": ort}
    plan = pl.plan(b.build(), [cpu, ort], pin=pins, max_in_flight=2 * CORES)
    return {"pool": PoolSide(call, feeds), "plait": PlaitSide(plan, feeds)}


def measure(side: Side, scenario: str, seconds: float, rate: float = 0.0) -> float:
    """Return the result of a test: ms, or samples a second for Offline."""
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(seconds * 1000)
    settings.min_query_count = 1
    settings.single_stream_target_latency_percentile = 0.5
    settings.multi_stream_target_latency_percentile = 0.5
    settings.multi_stream_samples_per_query = SAMPLES
    settings.single_stream_expected_latency_ns = 1_000_000
    settings.multi_stream_expected_latency_ns = 8_000_000
    if rate:
        settings.server_target_qps = settings.offline_expected_qps = rate
    settings.server_target_latency_ns = 10**10
    output = loadgen.LogOutputSettings()
    with tempfile.TemporaryDirectory() as folder:
        output.outdir = folder
        logging = loadgen.LogSettings()
        logging.log_output = output
        sut = loadgen.ConstructSUT(partial(side.issue, scenario), lambda: None)
        qsl = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(sut, qsl, settings, logging)
        finally:
            loadgen.DestroyQSL(qsl)
            loadgen.DestroySUT(sut)
        found = dict(read_results(Path(folder) / "mlperf_log_detail.txt"))
    value = float(found[SCENARIOS[scenario]])
    return value if scenario == "Offline" else value / 1e6


def read_results(path: Path) -> Iterator[tuple[str, Any]]:
    for line in path.read_text().splitlines():
        if line.startswith(":::MLLOG"):
            entry = json.loads(line.removeprefix(":::MLLOG "))
            yield entry["key"], entry["value"]


def measure_model(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    sides = make_sides(name)
    found: dict[str, dict[str, list[float]]] = {}
    try:
        capacity = measure(sides["pool"], "Offline", 1.0, 100.0)
        for _ in range(rounds):
            loads = {"Server at 50 %": capacity / 2, "Server at 80 %": capacity * 0.8}
            tests = {"SingleStream": 0.0, "MultiStream": 0.0, "Offline": capacity, **loads}
            for test, rate in tests.items():
                for side, serving in sides.items():
                    value = measure(serving, test.split()[0], seconds, rate)
                    found.setdefault(test, {}).setdefault(side, []).append(value)
            capacity = found["Offline"]["pool"][-1]
    finally:
        for serving in sides.values():
            serving.close()
    return {test: summarize(values) for test, values in found.items()}


def summarize(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(values["plait"], values["pool"], strict=True)]
    medians = {side: round(statistics.median(each), 3) for side, each in values.items()}
    return {**medians, "of_pool": round(statistics.median(ratios), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--busy", type=int, default=0, help="busy processes per core beside it")
    parser.add_argument("--models", default="; ".join([*MODELS, PIPELINE]), help="by semicolons")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    count = arguments.busy * CORES
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    rows: dict[str, Any] = {}
    try:
        for name in arguments.models.split("; "):
            load = os.getloadavg()[0]
            rows[name] = {"load": load, **measure_model(name, arguments.rounds, arguments.seconds)}
            print(f"{name}: load {load:.1f}")
            for test, each in rows[name].items():
                if test != "load":
                    unit = "samples/s" if test == "Offline" else "ms"
                    print(
                        f"  {test:16} pool {each['pool']:9.2f} {unit}, plait {each['plait']:9.2f}, "
                        f"{each['of_pool']:.2f} x",
                        flush=True,
                    )
    finally:
        for one in busy:
            one.kill()
            one.wait()
    if arguments.keep:
        save(f"loadgen_busy_{arguments.busy}" if arguments.busy else "loadgen", rows)


if __name__ == "__main__":
    main()
