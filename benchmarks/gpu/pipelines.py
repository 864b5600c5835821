"""Are whole pipelines around networks on the GPU faster than the best that one writes by hand?

Pages as JPEG files are searched for lines of text, which are then read; or searched alone, as by
any detector. By hand: PyTorch's CUDA graphs, each worker of a thread pool with its own stream and
page-locked memory, with as many workers and pages in a batch as prove fastest; and ONNX Runtime on
all cores. All take turns, on other pages in each round. Once exactly, once in TF32 as PyTorch has
it by default. Goal: 1.2 times as fast.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias

import trio
from gpu.question import Row, answer
from gpu.reading import Reading, by_ort, by_plait, by_torch, ways_by_hand
from gpu.target import Target, Unsuitable

TORCH, ORT, PLAIT = "torch by hand", "onnxruntime on the CPU by hand", "plait"
GOAL, SAME = 1.2, {False: 1.0, True: 0.9}
"""Times as fast; the share of pages with the same results, exactly and in TF32."""
NEAR = 2
"""Pixels by which the edges of boxes may differ: pixels on the threshold go either way."""
IN_FLIGHT = 16

Way: TypeAlias = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


def texts(target: Target) -> Iterator[Row]:
    """Text in pages."""
    yield from _compared("OCR", target, Reading(reads=True, pages=target.size(64, 2)))


def boxes(target: Target) -> Iterator[Row]:
    """A detector alone."""
    reading = Reading(reads=False, side=target.size(640, 320), pages=target.size(128, 2))
    yield from _compared("detector", target, reading)


def _compared(name: str, target: Target, reading: Reading) -> Iterator[Row]:
    for tf32 in (False, True) if target.has_cupy else (False,):
        yield from trio.run(partial(_in_turns, name, target, reading, tf32=tf32))


async def _in_turns(name: str, target: Target, reading: Reading, *, tf32: bool) -> list[Row]:
    title = f"{name}, TF32" if tf32 else name
    rows, ways = list[Row](), dict[str, Way]()
    note = dict[str, str]()
    try:
        workers, batch, work = _tuned(target, reading, tf32=tf32)
        ways[TORCH], note[TORCH] = _awaited(work), f"{workers} workers, {batch} pages at once"
    except Unsuitable as reason:
        rows.append(Row(f"{title}: {TORCH}", str(reason), status="left out"))
    ways[ORT] = _awaited(by_ort(reading))
    async with AsyncExitStack() as stack:
        start = time.perf_counter()
        ways[PLAIT] = await stack.enter_async_context(
            by_plait(target, reading, target.size(IN_FLIGHT, 2), tf32=tf32)
        )
        rows.append(Row(f"{title}: opening", time.perf_counter() - start, "s"))
        spent: dict[str, list[float]] = {way: [] for way in ways}
        same: dict[str, list[bool]] = {way: [] for way in ways}
        for turn in range(target.size(5, 1) + 1):
            items = reading.items(turn)
            found = {}
            for way, work_on in ways.items():
                start = time.perf_counter()
                found[way] = await work_on(items)
                spent[way].append(time.perf_counter() - start)
            for way, results in found.items():
                same[way] += map(_is_same, results, found[ORT])
    seconds = {way: statistics.median(each[1:]) for way, each in spent.items()}
    for way in ways:
        rate = reading.pages / seconds[way]
        rows.append(Row(f"{title}: {way}", rate, "pages/s", note=note.get(way, "")))
    for way in (TORCH, ORT):
        if way in seconds:
            times = seconds[way] / seconds[PLAIT]
            rows.append(Row(f"{title}: times as fast as {way}", times, "x", at_least=GOAL))
    del same[ORT]
    for way, each in same.items():
        share = sum(each) / len(each)
        rows.append(Row(f"{title}: {way}, results as {ORT}", share, at_least=SAME[tf32]))
    return rows


def _tuned(target: Target, reading: Reading, *, tf32: bool) -> tuple[int, int, Any]:
    """Return with how many workers, and pages in a batch, the version by hand is fastest."""
    items, found = reading.items(1000), []
    for workers, batch in ways_by_hand(target):
        work = by_torch(target, reading, workers, batch, tf32=tf32)
        spent = []
        for _ in range(3):
            start = time.perf_counter()
            work(items)
            spent.append(time.perf_counter() - start)
        found.append((min(spent), workers, batch, work))
    return min(found, key=lambda each: each[0])[1:]


def _awaited(work: Callable[[Sequence[Any]], Sequence[Any]]) -> Way:
    async def run(items: Sequence[Any]) -> Sequence[Any]:
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
