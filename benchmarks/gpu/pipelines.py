"""Are whole pipelines around networks on the GPU faster than the best that one writes by hand?

Pages as JPEG files are searched for lines of text, which are then read; or searched alone, as by
any detector. By hand: PyTorch's CUDA graphs, each worker of a thread pool with its own stream and
page-locked memory, with as many workers, pages in a batch, threads and processes as prove fastest;
and ONNX Runtime on all cores. PyTorch and plait take turns, on pages that are new in each round,
once exactly, and once in TF32 as PyTorch has it by default. Goal: 1.2 times as fast.
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import cv2
import trio
from gpu.question import Row, answer, failed, no_time, time_left_s
from gpu.reading import BY_HAND, LINES, Reading, by_ort, by_plait, by_torch
from gpu.target import Target, Unsuitable
from pipelines.images import pages
from pipelines.pipeline import Item, Result, Work, WorkAsync

TORCH, ORT, PLAIT = "torch by hand", "onnxruntime on the CPU by hand", "plait"
GOAL, SAME = 1.2, {False: 1.0, True: 0.9}
"""Times as fast; the share of pages with the same results, exactly and in TF32."""
NEAR = 2
"""Pixels by which the edges of boxes may differ: pixels on the threshold go either way."""
PAGES, ROUNDS, IN_FLIGHT = 48, 5, 32


def pipelines(target: Target) -> Iterator[Row]:
    """Text in pages, and a detector alone."""
    rounds = [
        pages(turn, target.size(PAGES, 2), LINES) for turn in range(1 + target.size(ROUNDS, 1))
    ]
    readings = {
        "detector": Reading(reads=False, side=target.size(640, 320)),
        "OCR": Reading(reads=True),
    }
    alone = {}
    taken_s = dict.fromkeys(readings, 0.0)
    for tf32 in (False, True) if target.has_cupy else (False,):
        for name, reading in readings.items():
            title = f"{name}, TF32" if tf32 else name
            if time_left_s() < taken_s[name] + 1:
                yield no_time(title)
                continue
            start = time.perf_counter()
            if name not in alone:
                alone[name] = seconds, _ = _by_ort(reading, rounds[-1])
                yield Row(f"{name}: {ORT}", len(rounds[-1]) / seconds, "pages/s")
            try:
                yield from _compared(title, target, reading, rounds, *alone[name], tf32=tf32)
            except Exception as error:
                traceback.print_exc()
                yield failed(title, error)
            taken_s[name] = time.perf_counter() - start


def _by_ort(reading: Reading, items: Sequence[Item]) -> tuple[float, Sequence[Result]]:
    """Return seconds and results of ONNX Runtime."""
    work = by_ort(reading)
    work(items[:1])
    start = time.perf_counter()
    results = work(items)
    return time.perf_counter() - start, results


def _compared(
    title: str,
    target: Target,
    reading: Reading,
    rounds: Sequence[Sequence[Item]],
    seconds_alone: float,
    wanted: Sequence[Result],
    *,
    tf32: bool,
) -> Iterator[Row]:
    by_hand: Work | None = None
    note = ""
    try:
        note, by_hand = _tuned(target, reading, rounds[0], tf32=tf32)
    except Unsuitable as reason:
        yield Row(f"{title}: {TORCH}", str(reason), status="left out")
    _say(f"{title}: plait is opened")
    spent, results = trio.run(partial(_in_turns, target, reading, rounds, by_hand, tf32=tf32))
    count = len(wanted)
    seconds = {way: statistics.median(each[1:]) for way, each in spent.items()}
    for way, median in seconds.items():
        by_whom = note if way == TORCH else ""
        yield Row(f"{title}: {way}", count / median, "pages/s", note=by_whom)
    for way, median in {ORT: seconds_alone, **seconds}.items():
        if way != PLAIT:
            times = median / seconds[PLAIT]
            yield Row(f"{title}: times as fast as {way}", times, "x", at_least=GOAL)
    for way, each in results.items():
        share = sum(map(_is_same, each, wanted)) / count
        yield Row(f"{title}: {way}, results as {ORT}", share, at_least=SAME[tf32])


async def _in_turns(
    target: Target,
    reading: Reading,
    rounds: Sequence[Sequence[Item]],
    by_hand: Work | None,
    *,
    tf32: bool,
) -> tuple[dict[str, list[float]], dict[str, Sequence[Result]]]:
    """Return seconds of each round, the first of which is not counted, and the last results."""
    in_flight = target.size(IN_FLIGHT, 2)
    async with by_plait(target, reading, in_flight, tf32=tf32) as streamed:
        ways = {PLAIT: streamed} if by_hand is None else {TORCH: _awaited(by_hand), PLAIT: streamed}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        results: dict[str, Sequence[Result]] = {}
        for items in rounds:
            for way, work in ways.items():
                start = time.perf_counter()
                results[way] = await work(items)
                spent[way].append(time.perf_counter() - start)
    return spent, results


def _tuned(
    target: Target, reading: Reading, items: Sequence[Item], *, tf32: bool
) -> tuple[str, Work]:
    """Return how the version by hand is fastest, and that."""
    best: tuple[float, str, Work] | None = None
    for way in target.size(BY_HAND, BY_HAND[:1]):
        work = partial(_with_threads, way.threads, by_torch(target, reading, way, tf32=tf32))
        spent = []
        for _ in range(2):
            start = time.perf_counter()
            work(items)
            spent.append(time.perf_counter() - start)
        apart = ", loading in processes" if way.loads_apart else ""
        told = f"{way.workers} workers, {way.batch} pages at once, {way.threads} threads of OpenCV"
        _say(f"torch, {told}{apart}: {len(items) / min(spent):.0f} pages/s")
        if best is None or min(spent) < best[0]:
            best = min(spent), f"{told}{apart}", work
        del work  # there is no room on a GPU for the graphs of all workers of all ways
    assert best is not None, "there is a way"
    return best[1:]


def _with_threads(count: int, work: Work, items: Sequence[Item]) -> Sequence[Result]:
    """Have OpenCV work with so many threads meanwhile; it takes one otherwise."""
    cv2.setNumThreads(count)
    try:
        return work(items)
    finally:
        cv2.setNumThreads(1)


def _say(text: str) -> None:
    """Say where it is, to whoever ends this process because it takes too long."""
    print(text, file=sys.stderr, flush=True)


def _awaited(work: Work) -> WorkAsync:
    async def run(items: Sequence[Item]) -> Sequence[Result]:
        return work(items)

    return run


def _is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two pages have the same lines, or about the same boxes."""
    if len(one) != len(other):
        return False
    return all(
        a == b if isinstance(a, str) else max(abs(x - y) for x, y in zip(a, b, strict=True)) <= NEAR
        for a, b in zip(one, other, strict=True)
    )


if __name__ == "__main__":
    answer(pipelines)
