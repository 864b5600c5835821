"""Is one item at a time on `ort` as fast as ONNX Runtime's own call, each as it is by default?

Real models with batches of 1: `BlockingSession(plan(graph, "ort")).run` and
`InferenceSession(path).run`, without any options. Both compute on all cores, with threads that
spin. The sides take turns, and a turn begins when the threads of the one before sleep: ONNX
Runtime's own spin on for some time after a call. A round's ratio is that of the two medians; kept
are the median, the least and the greatest over the rounds, and the ratio of the shortest calls.

Goal: at most 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
from measure import save
from plait.graph.values.tensor import Array
from quiet import Watch
from real_models import REAL_MODELS, RealModel, in_package

OURS, THEIRS = "plait", "onnxruntime"
TURN_S, FEWEST = 0.2, 5
ASLEEP_S, LOOK_S = 0.0005, 0.01
"""Threads sleep when the process computes for no longer than the first in the second."""


def frames(batch: int) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {"images": random.random((batch, 3, 320, 320), np.float32)}


MODELS = {
    "nudenet": RealModel(partial(in_package, "nudenet", "320n.onnx"), frames, (1,)),
    **{
        name: REAL_MODELS[name]
        for name in ("PP-OCRv4 detection", "PP-OCRv4 recognition", "magika", "silero-vad")
    },
}


def wait_until_asleep() -> None:
    """Wait until no thread of this process computes."""
    while True:
        before = time.process_time()
        time.sleep(LOOK_S)
        if time.process_time() - before < ASLEEP_S:
            return


def turn(call: Callable[[], object]) -> list[float]:
    """Return what calls take, one after the other, when the first is over."""
    wait_until_asleep()
    call()
    seconds: list[float] = []
    while len(seconds) < FEWEST or sum(seconds) < TURN_S:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def compare(model: RealModel, rounds: int) -> dict[str, Any]:
    """Return milliseconds of either side, and their ratio."""
    path: Path = model.path()
    feeds = model.feeds(1)
    plan = pl.plan(pl.load(path), ["ort"] if path.name != "silero_vad.onnx" else ["ort", "cpu"])
    theirs = onnxruntime.InferenceSession(path)
    medians: dict[str, list[float]] = {OURS: [], THEIRS: []}
    shortest = dict.fromkeys(medians, float("inf"))
    with pl.BlockingSession(plan) as session:
        sides: dict[str, Callable[[], object]] = {
            OURS: lambda: session.run(feeds),
            THEIRS: lambda: theirs.run(None, feeds),
        }
        for call in sides.values():
            turn(call)
        for index in range(rounds):
            for side in (OURS, THEIRS) if index % 2 else (THEIRS, OURS):
                seconds = turn(sides[side])
                medians[side].append(statistics.median(seconds))
                shortest[side] = min(shortest[side], *seconds)
    ratios = [ours / theirs for ours, theirs in zip(medians[OURS], medians[THEIRS], strict=True)]
    return {
        "ms": {side: statistics.median(every) * 1e3 for side, every in medians.items()},
        "shortest ms": {side: least * 1e3 for side, least in shortest.items()},
        "ratio": statistics.median(ratios),
        "least and greatest": [min(ratios), max(ratios)],
        "ratio of the shortest": shortest[OURS] / shortest[THEIRS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=";".join(MODELS), help="names, separated by ;")
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    watch, figures = Watch(), {}
    for name in given.models.split(";"):
        figures[name] = compare(MODELS[name], given.rounds)
        print(name, figures[name], flush=True)
    save("one_item", {"others_kept_cores_busy": watch.disturbance(), "figures": figures})


if __name__ == "__main__":
    main()
