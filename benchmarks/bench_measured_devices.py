"""Is `auto` as fast as the better of `ort` and `openvino`, once sessions have measured both?

Each of `real_models`, one item at a time, no device named, with an empty folder of answers. A first
session runs until it has its answers, or for `--limit` seconds. Then the next plan, plans for each
device alone, and ONNX Runtime by hand take turns: medians of nine. Goals: the next plan takes at
most 1.02 times as long as the better device, the first 1.1 times, and ONNX Runtime by hand at least
1.10 times as long in the geometric mean. `--share` raises the limit of measuring, which is 5 %.
`--loaded` measures on a machine with other work, too, and compares processor time: run it on one
core, where no threads spin (`taskset -c 0`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import plait as pl
from measure import alternate, save
from plait.devices.automatic import RUNTIMES
from plait.scheduler.costs import choices
from plait.scheduler.runtime.opened import contests
from real_models import REAL_MODELS

PAUSE_S = 0.1
"""Threads of runtimes spin after a run, and would slow down the next side."""


def compare(name: str, limit_s: float, sides_s: float, *, is_loaded: bool) -> dict[str, Any]:
    """Return the figures of a model."""
    model = REAL_MODELS[name]
    graph, feeds = pl.load(model.path()), model.feeds(1)
    shapes = {key: array.shape for key, array in feeds.items()}
    first = pl.plan(graph, shapes=shapes)
    start, known = time.perf_counter(), len(choices.read_answers())
    asked = sum(one.device in RUNTIMES for one in first.subgraphs)
    with pl.BlockingSession(first) as session:
        while time.perf_counter() - start < limit_s:
            session.run(feeds)
            if len(choices.read_answers()) == known + asked:
                break
    decided_s = time.perf_counter() - start
    is_decided = len(choices.read_answers()) == known + asked
    later = pl.plan(graph, "frozen", shapes=shapes)
    plans = {"auto": later, "ort": pl.plan(graph, ["ort", "cpu"], shapes=shapes)}
    plans["openvino"] = pl.plan(
        graph, ["openvino", "ort", "cpu"], shapes=shapes, strategy="preference"
    )
    with ExitStack() as stack:
        sides: dict[str, Callable[[], object]] = {
            key: partial(stack.enter_context(pl.BlockingSession(plan)).run, feeds)
            for key, plan in plans.items()
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")  # between runs
        by_hand = onnxruntime.InferenceSession(model.path(), options)
        sides["by hand"] = partial(by_hand.run, None, feeds)
        for call in sides.values():  # first items of a session plan and bind
            start = time.perf_counter()
            while time.perf_counter() - start < 5 * sides_s:
                call()
        paused: dict[str, Callable[[], object]] = {}
        for key, call in sides.items():
            paused |= {key: call, f"pause after {key}": partial(time.sleep, PAUSE_S)}
        clock = time.process_time if is_loaded else time.perf_counter
        seconds = alternate(paused, at_least_s=sides_s, clock=clock)
    best = min(seconds["ort"], seconds["openvino"])
    return {
        "decided_after_s": decided_s if is_decided else None,
        "devices": sorted({*later.assignment.values()}),
        "ms": {key: seconds[key] * 1e3 for key in sides},
        "first_over_best": seconds["ort"] / best,
        "later_over_best": seconds["auto"] / best,
        "by_hand_over_later": seconds["by hand"] / seconds["auto"],
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*REAL_MODELS])
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--share", type=float, default=contests.SHARE)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each of the nine turns")
    parser.add_argument("--loaded", action="store_true")
    chosen = parser.parse_args()
    contests.SHARE = chosen.share
    if chosen.loaded:
        vars(contests)["is_machine_loaded"] = lambda _: False
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PLAIT_FIGURES"] = str(Path(folder, "figures"))
        for name in chosen.models:
            figures[name] = compare(name, chosen.limit, chosen.seconds, is_loaded=chosen.loaded)
            print(name, figures[name], flush=True)
    every = ("first_over_best", "later_over_best", "by_hand_over_later")
    means = {key: statistics.geometric_mean(one[key] for one in figures.values()) for key in every}
    save("measured_devices", {"share": chosen.share, "means": means, "models": figures})


if __name__ == "__main__":
    main()
