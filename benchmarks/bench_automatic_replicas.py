"""Is a pipeline without pins as fast as by hand, now that a plan makes its own replicas?

JPEG files are decoded, a network finds text in them, and a function says where: a stream of them

- by hand, with ONNX Runtime and a ThreadPoolExecutor of as many workers as there are cores;
- planned for `["ort", "cpu"]`, which may be put on replicas;
- planned for `["ort:0", "cpu:0"]`, which may not.

All take turns. The processor's time per item is given beside that on the clock: where others use
the machine too, it says more. It takes rapidocr-onnxruntime==1.4.4.

Goals: at least 0.95 times as fast as by hand on the clock, at most 1.05 times its processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from pipelines.images import decode, fit, pages
from pipelines.pipeline import CORES, WorkAsync, in_package, on_threads, ort_session
from plait.graph.values.tensor import Array

SIDE, LARGEST, LINES = 320, 1 << 18, 8
HAND, AUTOMATIC, SINGLE = "by hand", "ort, cpu", "ort:0, cpu:0"
GOALS = {"times as fast as by hand, at least": 0.95, "times its processor time, at most": 1.05}


@pl.operator(
    pl.TensorSpec("float32", (1, 3, SIDE, SIDE)), inputs=[pl.TensorSpec("uint8", ("bytes",))]
)
def prepare(jpeg: Any) -> Any:
    """Return what the network is fed."""
    pixels = fit(decode(jpeg), SIDE).transpose(2, 0, 1)[None]
    return np.ascontiguousarray(pixels, np.float32) / np.float32(127.5) - np.float32(1)


@pl.operator(pl.TensorSpec("int64", (4,)), inputs=[pl.TensorSpec("float32", (1, 1, SIDE, SIDE))])
def frame(likely: Any) -> Any:
    """Return the first and the last row and column where text is likely."""
    text = likely[0, 0] > 0.3
    rows, columns = np.flatnonzero(text.any(1)), np.flatnonzero(text.any(0))
    ends = [rows[0], rows[-1], columns[0], columns[-1]] if len(rows) else [0, 0, 0, 0]
    return np.array(ends, np.int64)


async def compare(rounds: int, files: int) -> dict[str, Any]:
    """Return milliseconds per item of each way, in turns."""
    path = in_package("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_det_infer.onnx")
    network, session = pl.load(path), ort_session(path, 1)
    (fed,), (result,) = network.inputs, network.outputs
    b = pl.GraphBuilder("text")
    image = b.call(prepare, b.input("file", "uint8", ("bytes",)), name="prepare")
    found = b.include(network, {fed: image}, prefix="network/")
    b.output("frame", b.call(frame, found[result], name="frame"))
    graph, bounds, in_flight = b.build(), {"bytes": LARGEST}, CORES + 2
    plans = {
        name: pl.plan(
            graph,
            name.split(", "),
            bounds=bounds,
            max_in_flight=in_flight,
            objective="throughput",
        )
        for name in (AUTOMATIC, SINGLE)
    }
    by_hand = on_threads(lambda jpeg: frame(session.run(None, {fed: prepare(jpeg)})[0]), CORES)

    async def in_python(jpegs: Sequence[bytes]) -> Sequence[Array]:
        return by_hand(jpegs)

    ways: dict[str, WorkAsync] = {HAND: in_python}
    async with AsyncExitStack() as stack:
        for name, plan in plans.items():
            ways[name] = streamed(await stack.enter_async_context(pl.Session(plan)))
        wall, cpu = ({name: list[float]() for name in ways} for _ in range(2))
        for turn in range(rounds + 1):
            jpegs = pages(turn, files, LINES)
            wanted: Sequence[Array] | None = None
            for name, work in ways.items():
                start, busy = time.perf_counter(), time.process_time()
                frames = await work(jpegs)
                wall[name].append((time.perf_counter() - start) / files * 1e3)
                cpu[name].append((time.process_time() - busy) / files * 1e3)
                wanted = frames if wanted is None else wanted
                assert all(np.abs(a - b).max() <= 1 for a, b in zip(wanted, frames, strict=True))
    return {
        "devices": {name: list(plan.device_names) for name, plan in plans.items()},
        "subgraphs": {name: len(plan.subgraphs) for name, plan in plans.items()},
        "ms": {name: statistics.median(each[1:]) for name, each in wall.items()},
        "processor ms": {name: statistics.median(each[1:]) for name, each in cpu.items()},
        "times as fast as by hand": _ratios(wall, 1),
        "times its processor time": _ratios(cpu, -1),
        "goals": GOALS,
    }


def streamed(session: pl.Session) -> WorkAsync:
    """Return what works on files as a stream of a session."""

    async def run(jpegs: Sequence[bytes]) -> Sequence[Array]:
        feeds = ({"file": jpeg} for jpeg in jpegs)
        async with session.stream(feeds) as results:
            return [np.array(item["frame"]) async for item in results]

    return run


def _ratios(each: dict[str, list[float]], power: int) -> dict[str, float]:
    """Return the median over the rounds of by hand over each way, or the other way round."""
    pairs = {name: zip(each[HAND][1:], ms[1:], strict=True) for name, ms in each.items()}
    return {
        name: statistics.median((hand / own) ** power for hand, own in both)
        for name, both in pairs.items()
        if name != HAND
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--files", type=int, default=24)
    given = parser.parse_args()
    save("automatic_replicas", trio.run(compare, given.rounds, given.files))


if __name__ == "__main__":
    main()
