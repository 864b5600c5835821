"""How fast are real models on plait's devices, against ONNX Runtime itself?

Each of `real_models`, one item and eight at a time where it takes them, with one thread and with
two. The sides take turns, and plait's time is that of `await session.run(...)`: copies in and out
included. Goals, as geometric means with one thread: `cpu` at most 2.0 times, `compiled` at most 1.2
times, `ort` at most 1.03 times.

Products of matrices are as fast as the kernels of numpy's BLAS, which are part of the result:
OPENBLAS_CORETYPE in the environment overrules what OpenBLAS would choose for the machine.

With two threads ONNX Runtime takes part twice, its threads spinning between calls, as by default,
and asleep; the ratio is to the faster one, for spinning threads lose where others want the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import trio
from measure import save
from plait.devices.ort.device import OrtDevice
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Read when numpy is imported, so each number of threads has a process of its own."""

SPINNING, ASLEEP = "onnxruntime", "onnxruntime asleep"
AT_LEAST_S = 0.2


def rival(path: Path, threads: int, spinning: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


async def alternate(
    sides: Mapping[str, Callable[[], Awaitable[object]]], rounds: int
) -> dict[str, float]:
    """Return each side's median seconds per call, the sides taking turns."""
    repeats, seconds = {}, {name: list[float]() for name in sides}
    for name, call in sides.items():
        await call()
        start = time.perf_counter()
        await call()
        repeats[name] = max(1, int(AT_LEAST_S / (time.perf_counter() - start)))
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                await call()
            seconds[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


async def compare(
    path: Path, fed: Mapping[str, Array], devices: list[str], threads: int, rounds: int
) -> dict[str, Any]:
    """Return milliseconds per call on each side, and how they compare."""
    graph = pl.load(path)
    names = [SPINNING, ASLEEP] if threads > 1 else [SPINNING]
    rivals = {name: rival(path, threads, name == SPINNING) for name in names}
    wanted = rivals[SPINNING].run(None, fed)
    calls: dict[str, Callable[[], Awaitable[object]]] = {}
    differences: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        for name in devices:
            device = OrtDevice(threads=threads) if name == "ort" else name
            session: pl.Session = await nursery.start(hold, pl.plan(graph, [device]))
            found = await session.run(fed)
            differences[name] = max(
                float(np.abs(found[output] - theirs).max() / (np.abs(theirs).max() or 1))
                for output, theirs in zip(graph.outputs, wanted, strict=True)
            )
            calls[name] = partial(session.run, fed)
        for name, reference in rivals.items():
            calls[name] = partial(run_rival, reference, fed)
        seconds = await alternate(calls, rounds)
        nursery.cancel_scope.cancel()
    best = min(seconds[name] for name in rivals)
    return {
        "ms": {name: value * 1e3 for name, value in seconds.items()},
        "ratio": {name: seconds[name] / best for name in devices},
        "difference over scale": differences,
    }


async def run_rival(session: onnxruntime.InferenceSession, fed: Mapping[str, Array]) -> object:
    return session.run(None, fed)


async def hold(plan: pl.Plan, task_status: trio.TaskStatus[pl.Session]) -> None:
    """Keep a session open until cancelled."""
    async with pl.Session(plan) as session:
        task_status.started(session)
        await trio.sleep_forever()


def measure(names: list[str], devices: list[str], threads: int, rounds: int) -> dict[str, Any]:
    """Return the figures for a number of threads, by model and batch."""
    figures = {}
    for name in names:
        model = REAL_MODELS[name]
        for batch in model.batches:
            title = f"{name}, {threads} thread{'s' * (threads > 1)}, batch {batch}"
            figures[title] = trio.run(
                compare, model.path(), model.feeds(batch), devices, threads, rounds
            )
            print(title, figures[title]["ratio"], file=sys.stderr)
    return figures


def measure_apart(arguments: list[str], threads: int) -> dict[str, Any]:
    """Return the figures that a process of its own measures."""
    environment = {**os.environ, **dict.fromkeys(BLAS, str(threads))}
    command = [sys.executable, __file__, *arguments, "--threads", str(threads)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def means(figures: Mapping[str, Any], devices: list[str], threads: str) -> dict[str, float]:
    chosen = [figure["ratio"] for name, figure in figures.items() if f", {threads}, " in name]
    return {name: statistics.geometric_mean(ratio[name] for ratio in chosen) for name in devices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="cpu,compiled,ort", help="names, separated by commas")
    parser.add_argument("--models", default=";".join(REAL_MODELS), help="names, separated by ;")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default="models", help="the name of the file in results/")
    parser.add_argument("--threads", type=int, help="measure with so many, and print that only")
    given = parser.parse_args()
    devices = given.devices.split(",")
    if given.threads:
        names = given.models.split(";")
        print(json.dumps(measure(names, devices, given.threads, given.rounds)))
        return
    figures: dict[str, Any] = {}
    for threads in (1, 2):
        figures |= measure_apart(sys.argv[1:], threads)
    geometric_mean = {
        threads: means(figures, devices, threads) for threads in ("1 thread", "2 threads")
    }
    save(given.out, {"figures": figures, "geometric_mean": geometric_mean})


if __name__ == "__main__":
    main()
