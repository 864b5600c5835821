"""Are whole pipelines around networks on the GPU faster than the best that one writes by hand?

Pages as JPEG files are searched for lines of text, which are then read; or searched alone, as by
any detector. By hand: PyTorch's CUDA graphs, each worker of a thread pool with its own stream and
page-locked memory, with as many workers and pages in a batch as prove fastest; and ONNX Runtime on
all cores. PyTorch and plait take turns on the same pages, once exactly, and once in TF32 as PyTorch
has it by default. Goal: 1.2 times as fast.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import trio
from gpu.question import Row, answer
from gpu.reading import CORES, LINES, Reading, by_ort, by_plait, by_torch, ways_by_hand
from gpu.target import Target, Unsuitable
from pipelines.images import pages
from pipelines.pipeline import Item, Result, Work, WorkAsync

TORCH, ORT, PLAIT = "torch by hand", "onnxruntime on the CPU by hand", "plait"
GOAL, SAME = 1.2, {False: 1.0, True: 0.9}
"""Times as fast; the share of pages with the same results, exactly and in TF32."""
NEAR = 2
"""Pixels by which the edges of boxes may differ: pixels on the threshold go either way."""
PAGES, ROUNDS, IN_FLIGHT = 64, 5, 16


def texts(target: Target) -> Iterator[Row]:
    """Text in pages."""
    yield from _compared("OCR", target, Reading(reads=True))


def boxes(target: Target) -> Iterator[Row]:
    """A detector alone."""
    yield from _compared("detector", target, Reading(reads=False, side=target.size(640, 320)))


def _compared(name: str, target: Target, reading: Reading) -> Iterator[Row]:
    items = pages(0, target.size(PAGES, 2), LINES)
    work = by_ort(reading)
    work(items[:CORES])
    start = time.perf_counter()
    wanted = work(items)
    found = {ORT: time.perf_counter() - start}
    yield Row(f"{name}: {ORT}", len(items) / found[ORT], "pages/s")
    for tf32 in (False, True) if target.has_cupy else (False,):
        title = f"{name}, TF32" if tf32 else name
        seconds, note = dict(found), ""
        by_hand: Work | None = None
        try:
            workers, batch, by_hand = _tuned(target, reading, items, tf32=tf32)
            note = f"{workers} workers, {batch} pages at once"
        except Unsuitable as reason:
            yield Row(f"{title}: {TORCH}", str(reason), status="left out")
        turns = partial(_in_turns, target, reading, items, by_hand, tf32=tf32)
        spent, results = trio.run(turns)
        seconds |= {way: statistics.median(each[1:]) for way, each in spent.items()}
        for way, each in results.items():
            yield Row(f"{title}: {way}", len(items) / seconds[way], "pages/s", note=note)
            share = sum(map(_is_same, each, wanted)) / len(items)
            yield Row(f"{title}: {way}, results as {ORT}", share, at_least=SAME[tf32])
            note = ""
        for way in (ORT, *results):
            if way != PLAIT:
                times = seconds[way] / seconds[PLAIT]
                yield Row(f"{title}: times as fast as {way}", times, "x", at_least=GOAL)


async def _in_turns(
    target: Target, reading: Reading, items: Sequence[Item], by_hand: Work | None, *, tf32: bool
) -> tuple[dict[str, list[float]], dict[str, Sequence[Result]]]:
    """Return seconds of each round, the first of which is not counted, and the last results."""
    in_flight = target.size(IN_FLIGHT, 2)
    async with by_plait(target, reading, in_flight, tf32=tf32) as streamed:
        ways = {PLAIT: streamed} if by_hand is None else {TORCH: _awaited(by_hand), PLAIT: streamed}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        results: dict[str, Sequence[Result]] = {}
        for _ in range(1 + target.size(ROUNDS, 1)):
            for way, work in ways.items():
                start = time.perf_counter()
                results[way] = await work(items)
                spent[way].append(time.perf_counter() - start)
    return spent, results


def _tuned(
    target: Target, reading: Reading, items: Sequence[Item], *, tf32: bool
) -> tuple[int, int, Work]:
    """Return with how many workers, and pages in a batch, the version by hand is fastest."""
    found = []
    for workers, batch in ways_by_hand(target):
        work = by_torch(target, reading, workers, batch, tf32=tf32)
        spent = []
        for _ in range(3):
            start = time.perf_counter()
            work(items)
            spent.append(time.perf_counter() - start)
        found.append((min(spent), workers, batch, work))
    return min(found, key=lambda each: each[0])[1:]


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
    answer(texts, boxes)
