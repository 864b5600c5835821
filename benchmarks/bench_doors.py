"""What does it cost to have one small item run, through each of the doors?

A trivial item (a 16 x 16 product and Relu) on `cpu`, and tiny models on `ort`, beside ONNX
Runtime's own call with one thread, which counts as 1. Every round times each side, one after the
other in the same process, in parts of fifty calls of which the median counts: that leaves out
others that take a core away now and then. A ratio is that of two sides in one round; its median,
least and greatest over the rounds are kept.

Goals, as multiples of ONNX Runtime's call for the trivial item: `Session.run` 3,
`BlockingSession.run` 4, `AsyncioSession.run` 6, a streamed item no more than a run through the same
door. For tiny models on `ort`: `Session.run` 2.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import plait as pl
import trio
from measure import save
from plait.graph.core.ir import Graph
from plait.graph.formats.onnx.writer import to_onnx
from real_models import REAL_MODELS

GOALS = {"Session.run": 3.0, "BlockingSession.run": 4.0, "AsyncioSession.run": 6.0}
TINY_GOAL = 2.0
WARMING, PART = 60, 50
"""Calls before those that are timed (a step is seen to be quick first), and in each part."""


class Case(NamedTuple):
    """An item, and how ONNX Runtime alone and plait compute it."""

    plan: pl.Plan
    feeds: Mapping[str, Any]
    beside: onnxruntime.InferenceSession


def inference(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def case(graph: Graph, device: str, feeds: Mapping[str, Any]) -> Case:
    return Case(pl.plan(graph, [device]), feeds, inference(to_onnx(graph).SerializeToString()))


def trivial(device: str) -> Case:
    builder = pl.GraphBuilder("trivial")
    x = builder.input("x", "float32", (16, 16))
    weights = np.random.default_rng(0).standard_normal((16, 16), np.float32)
    builder.output("y", builder.op("Relu", builder.op("MatMul", x, weights)))
    return case(builder.build(), device, {"x": np.ones((16, 16), np.float32)})


def wake_word_head() -> Case:
    """Return a network of the size and form that decides on wake words: 16 embeddings of 96."""
    random = np.random.default_rng(0)
    builder = pl.GraphBuilder("wake word")
    last = builder.op("Reshape", builder.input("x", "float32", (1, 16, 96)), np.array([1, 1536]))
    for rows, columns in ((1536, 128), (128, 128)):
        weights = random.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        last = builder.op("Add", builder.op("MatMul", last, weights), np.ones(columns, np.float32))
        scale, bias = np.ones(columns, np.float32), np.zeros(columns, np.float32)
        last = builder.op("Relu", builder.op("LayerNormalization", last, scale, bias))
    weights = random.standard_normal((128, 1), np.float32)
    builder.output("score", builder.op("Sigmoid", builder.op("MatMul", last, weights)))
    return case(builder.build(), "ort", {"x": random.standard_normal((1, 16, 96), np.float32)})


def voice_activity() -> Case:
    model = REAL_MODELS["silero-vad"]
    feeds, path = model.feeds(1), model.path()
    graph = pl.load(path)
    return Case(pl.plan(graph, ["ort", "cpu"]), feeds, inference(path.read_bytes()))


Side = Callable[[Case, int], float]
"""Returns the seconds of a call, over so many of them."""


def time_ort(one: Case, calls: int) -> float:
    return time_calls(partial(one.beside.run, None, dict(one.feeds)), calls)


def time_numpy(one: Case, calls: int) -> float:
    (weights,) = one.plan.graph.constants.values()
    x = one.feeds["x"]
    return time_calls(lambda: np.maximum(x @ weights, 0), calls)


class Parts:
    """Times calls in parts of fifty."""

    def __init__(self) -> None:
        self._left = WARMING
        self._start = 0.0
        self._seconds: list[float] = []

    def note(self) -> None:
        """Take note that a call has ended."""
        self._left -= 1
        if not self._left:
            now = time.perf_counter()
            if self._start:
                self._seconds.append((now - self._start) / PART)
            self._left, self._start = PART, now

    def median(self) -> float:
        """Return the seconds of a call."""
        return statistics.median(self._seconds)


def time_calls(call: Callable[[], object], calls: int) -> float:
    parts = Parts()
    for _ in range(WARMING + calls):
        call()
        parts.note()
    return parts.median()


async def time_awaits(call: Callable[[], Awaitable[object]], calls: int) -> float:
    parts = Parts()
    for _ in range(WARMING + calls):
        await call()
        parts.note()
    return parts.median()


async def time_stream(stream: Any) -> float:
    parts = Parts()
    async with stream as results:
        async for _ in results:
            parts.note()
    return parts.median()


def in_trio(one: Case, calls: int) -> float:
    async def main() -> float:
        async with pl.Session(one.plan) as session:
            return await time_awaits(lambda: session.run(one.feeds), calls)

    return trio.run(main)


def in_asyncio(one: Case, calls: int) -> float:
    async def main() -> float:
        async with pl.AsyncioSession(one.plan) as session:
            return await time_awaits(lambda: session.run(one.feeds), calls)

    return asyncio.run(main())


def blocking(one: Case, calls: int) -> float:
    with pl.BlockingSession(one.plan) as session:
        return time_calls(lambda: session.run(one.feeds), calls)


def streamed_in_trio(one: Case, calls: int) -> float:
    async def main() -> float:
        async with pl.Session(one.plan) as session:
            return await time_stream(session.stream([one.feeds] * (calls + WARMING)))

    return trio.run(main)


def streamed_in_asyncio(one: Case, calls: int) -> float:
    async def main() -> float:
        async with pl.AsyncioSession(one.plan) as session:
            return await time_stream(session.stream([one.feeds] * (calls + WARMING)))

    return asyncio.run(main())


def streamed_blocking(one: Case, calls: int) -> float:
    with (
        pl.BlockingSession(one.plan) as session,
        session.stream([one.feeds] * (calls + WARMING)) as results,
    ):
        parts = Parts()
        for _ in results:
            parts.note()
        return parts.median()


DOORS: Mapping[str, Side] = {
    "ONNX Runtime": time_ort,
    "Session.run": in_trio,
    "BlockingSession.run": blocking,
    "AsyncioSession.run": in_asyncio,
    "Session.stream": streamed_in_trio,
    "BlockingSession.stream": streamed_blocking,
    "AsyncioSession.stream": streamed_in_asyncio,
}


def compare(one: Case, sides: Mapping[str, Side], rounds: int, calls: int) -> dict[str, Any]:
    """Return microseconds of each side, and ratios to ONNX Runtime's call in the same round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side(one, calls))
    base = seconds["ONNX Runtime"]
    figures = {}
    for name, found in seconds.items():
        ratios = [each / beside for each, beside in zip(found, base, strict=True)]
        figures[name] = {
            "us": round(statistics.median(found) * 1e6, 2),
            "least_us": round(min(found) * 1e6, 2),
            "ratio": round(statistics.median(ratios), 2),
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }
        print(f"  {name:24}", figures[name])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=500)
    arguments = parser.parse_args()
    cases = {
        "trivial on cpu": (trivial("cpu"), {**DOORS, "numpy": time_numpy}),
        "trivial on ort": (trivial("ort"), DOORS),
        "wake word head on ort": (wake_word_head(), DOORS),
        "silero-vad on ort": (voice_activity(), DOORS),
    }
    figures: dict[str, Any] = {"goals": GOALS, "goal of tiny models": TINY_GOAL}
    for name, (one, sides) in cases.items():
        print(name)
        figures[name] = compare(one, sides, arguments.rounds, arguments.calls)
    save("doors", figures)


if __name__ == "__main__":
    main()
