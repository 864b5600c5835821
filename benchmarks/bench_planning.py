"""How long do planning a real model and opening a session for it take?

CPU time, since opening waits on threads, and the machine may be busy: the devices take turns, and
the medians and the least of all rounds are kept. Nothing is kept from one round to the next: each
plans the whole graph, and opens devices of its own. Loading the file is told beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import plait as pl
from measure import save
from real_models import REAL_MODELS

MODELS = ("PP-OCRv4 detection", "PP-OCRv6 detection", "densenet121, made-up weights")
DEVICES = (("cpu",), ("ort",), ("cpu", "ort"))
ROUNDS = 7


def timed(seconds: list[float], call: Callable[[], pl.Plan]) -> pl.Plan:
    started = time.process_time()
    made = call()
    seconds.append(time.process_time() - started)
    return made


def opened(plan: pl.Plan) -> pl.Plan:
    with pl.BlockingSession(plan):
        return plan


def figures(name: str) -> dict[str, object]:
    model = REAL_MODELS[name]
    started = time.process_time()
    graph = pl.load(model.path())
    loading_s = time.process_time() - started
    shapes = {fed: value.shape for fed, value in model.feeds(1).items()}
    planning: dict[str, list[float]] = {", ".join(devices): [] for devices in DEVICES}
    opening: dict[str, list[float]] = {", ".join(devices): [] for devices in DEVICES}
    for _ in range(ROUNDS):
        for devices in DEVICES:
            side = ", ".join(devices)
            plan = timed(planning[side], lambda: pl.plan(graph, devices, shapes=shapes))  # noqa: B023
            timed(opening[side], lambda: opened(plan))  # noqa: B023
    return {
        "nodes": len(graph.nodes),
        "loading_cpu_s": loading_s,
        "planning_cpu_s": {side: told(seconds) for side, seconds in planning.items()},
        "opening_cpu_s": {side: told(seconds) for side, seconds in opening.items()},
    }


def told(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "least": min(seconds)}


def main() -> None:
    save("planning", {name: figures(name) for name in MODELS})


if __name__ == "__main__":
    main()
