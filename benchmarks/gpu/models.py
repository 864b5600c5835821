"""How fast are real models on the device, beside ONNX Runtime and PyTorch on the same machine?

All sides get numpy arrays and give numpy arrays, and take turns; but ONNX Runtime, whose threads
look for work on all cores, is by itself. They compute in float32: once exactly, and once in TF32,
which PyTorch has by default for convolutions, though not for products of matrices, and plait's
`tf32=True` for both. Goal: 0.9 of the rate of PyTorch's CUDA graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import trio
from gpu.question import Row, answer, failed, no_time, time_left_s
from gpu.rivals import CAPTURED, ON_CPU, Run, on_cpu, rivals
from gpu.target import Target, Unsuitable
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS, RealModel

NAMES = (
    "PP-OCRv4 detection",
    "PP-OCR direction",
    "PP-OCRv4 recognition",
    "resnet50, made-up weights",
)
IN_FLIGHT = 4
AT_LEAST_S = 0.05
CLOSE, CLOSE_TF32 = 1e-3, 1e-1
"""Largest difference over largest result: layers of float32 sums in different orders, or of factors
that are rounded to 10 bits."""
OF_TORCH = 0.9


def chosen(target: Target) -> Mapping[str, RealModel]:
    """Return the models; a small one to try things out with."""
    if target.small:
        return {NAMES[1]: replace(REAL_MODELS[NAMES[1]], batches=(1,))}
    return {name: REAL_MODELS[name] for name in NAMES}


def models(target: Target) -> Iterator[Row]:
    """Real models, one item at a time and batched."""
    ratios: dict[str, list[float]] = {}
    longest_s = 0.0
    cases = [(name, batch) for name, model in chosen(target).items() for batch in model.batches]
    for name, batch in sorted(cases, key=lambda case: case[1]):
        for tf32 in (False, True) if target.has_cupy else (False,):
            title = f"{name}, batch {batch}{', TF32' if tf32 else ''}"
            if time_left_s() < 1.5 * longest_s + 1:
                yield no_time(title)
                continue
            start = time.perf_counter()
            try:
                yield from _one_model(target, title, chosen(target)[name], batch, ratios, tf32=tf32)
            except (Exception, SystemExit) as error:
                yield failed(title, error)
            longest_s = max(longest_s, time.perf_counter() - start)
    for name, values in ratios.items():
        mean = statistics.geometric_mean(values)
        note = f"of {len(values)}, geometric"
        yield Row(f"plait's rate, of {name}'s", mean, "x", at_least=_goal(name), note=note)


def _goal(name: str) -> float | None:
    return OF_TORCH if name.startswith(CAPTURED) else None


def _one_model(
    target: Target,
    title: str,
    model: RealModel,
    batch: int,
    ratios: dict[str, list[float]],
    *,
    tf32: bool,
) -> Iterator[Row]:
    path, feeds = model.path(), model.feeds(batch)
    graph = pl.load(path)
    others, absent = rivals(target, path, graph, feeds, tf32=tf32)
    device = target.make(tf32=True) if tf32 else target.make()
    shapes = {name: value.shape for name, value in feeds.items()}
    plan = pl.plan(
        graph, [device, "cpu"], shapes=shapes, strategy="preference", max_in_flight=IN_FLIGHT
    )
    left = [node.op for node in plan.graph.nodes if plan.assignment[node.name] == "cpu"]
    rounds = target.size(7, 1)
    found = trio.run(_in_turns, plan, feeds, others, rounds)
    seconds: dict[str, float] = found["seconds"]
    items_per_s = trio.run(_streamed, plan, feeds, target.size(0.3, 0.01) / seconds["plait"])
    if not tf32:
        try:
            others[ON_CPU] = on_cpu(path, feeds)
            seconds[ON_CPU] = _seconds_alone(others[ON_CPU], rounds)
            found["differences"][ON_CPU] = _difference(found["outputs"], others[ON_CPU]())
        except Unsuitable as missing:
            absent[ON_CPU] = str(missing)
    yield Row(f"{title}: plait", seconds["plait"] * 1e3, "ms", note=_left_to_host(left))
    for name in others:
        yield Row(f"{title}: {name}", seconds[name] * 1e3, "ms")
    for name in others:
        ratio = seconds[name] / seconds["plait"]
        ratios.setdefault(f"{name}, TF32" if tf32 else name, []).append(ratio)
        yield Row(f"{title}: plait's rate, of {name}'s", ratio, "x", at_least=_goal(name))
    for name, difference in found["differences"].items():
        most = CLOSE_TF32 if tf32 else CLOSE
        yield Row(f"{title}: difference to {name}", difference, at_most=most)
    for name, reason in absent.items():
        yield Row(f"{title}: {name}", reason, status="left out")
    yield Row(f"{title}: plait, streamed", batch * items_per_s, "items/s")


def _left_to_host(left: list[str]) -> str:
    if not left:
        return ""
    kinds = ", ".join(sorted(set(left)))
    return f"on the host: {len(left)} nodes ({kinds})"


async def _in_turns(
    plan: pl.Plan, feeds: Mapping[str, Array], others: Mapping[str, Run], rounds: int
) -> dict[str, Any]:
    """Return each side's median seconds, and how far its results are from plait's."""
    async with pl.Session(plan) as session:
        outputs = await session.run(feeds)
        ours = list(outputs.values())
        differences = {name: _difference(ours, run()) for name, run in others.items()}
        sides: dict[str, Callable[[], Awaitable[object]]] = {"plait": partial(session.run, feeds)}
        sides |= {name: partial(_called, run) for name, run in others.items()}
        spent: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                spent[name].append(await _per_call(side, AT_LEAST_S if rounds > 1 else 0.0))
    seconds = {name: statistics.median(values) for name, values in spent.items()}
    return {"seconds": seconds, "differences": differences, "outputs": ours}


def _seconds_alone(run: Run, rounds: int) -> float:
    spent = []
    for _ in range(min(rounds, 3)):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


async def _per_call(side: Callable[[], Awaitable[object]], at_least_s: float) -> float:
    start, count = time.perf_counter(), 0
    while True:
        await side()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= at_least_s:
            return elapsed / count


async def _called(run: Run) -> object:
    return run()


async def _streamed(plan: pl.Plan, feeds: Mapping[str, Array], about: float) -> float:
    count = max(2 * IN_FLIGHT, min(2000, int(about)))
    async with pl.Session(plan) as session:
        await session.run(feeds)
        start = time.perf_counter()
        async with session.stream([feeds] * count) as results:
            async for item in results:
                if item.error is not None:
                    raise item.error
        return count / (time.perf_counter() - start)


def _difference(ours: list[Array], theirs: list[Array]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs)


if __name__ == "__main__":
    answer(models)
