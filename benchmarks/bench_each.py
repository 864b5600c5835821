"""What do batches across images bring where lines of text are read, against other ways?

Drawn pages of text, the same networks on ONNX Runtime, the same stage that finds the lines (see
`benchmarks/pipelines/ocr.py`), six pages under way. Lines of one width are read by `each`, one by
one or together, whichever pages they are of; those of a page together; or line by line. Beside them
rapidocr's own loop, page after page, each network on all cores. As that does, all these make up to
six lines of a page as wide as the widest of them, but for one way in which every line is as wide as
it is. All take turns, on new pages in each round; the first round is not counted. Texts are
compared with those that were read line by line, and with what was drawn. How much processor time
each way takes is told, too, and how much a line takes when ONNX Runtime alone reads several at
once: what batches could save at all.

A detector's crops are classified one by one, in batches across images, or those of an image as part
of it, which is what `each` does without `batch`. Beside them the best that one writes by hand, as
in `bench_pipelines.py`: on the same images, in turns, the labels compared.

Beside that dense layers for two rows of each item, which read more weights than they compute: with
batches of 16 rows across items, against the rows of an item as part of it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import plait as pl
import trio
from bench_pipelines import compare as compare_pipelines
from measure import save
from pipelines import detector, ocr
from pipelines.images import texts_of_pages
from pipelines.pipeline import Pipeline, ort_session
from quiet import Watch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import ocr_images
from ocr_pipeline import alphabet, characters_graph, in_order, model

OWN_LOOP, PAGES, LINES = "rapidocr's own loop", "lines of a page", "line by line"
OWN_WIDTHS = "each, batch=1, every line as wide as it is"
EACH = {"each, batch=1": 1, "each, batch=2": 2, OWN_WIDTHS: 1}
GOALS = {
    "times as fast as the better of own loop and lines of a page": 1.3,
    "a detector's crops by each, times as fast as by hand, at least": 1.0,
}
IN_FLIGHT, MOST_LINES, MOST_WIDTH = 6, 32, 1280
WIDTHS = (512, 1024, 2048)
LINE_WIDTHS, AT_ONCE = (320, 640), (1, 2, 4, 8)
CROP_BATCHES = (1, 4)

Read: TypeAlias = Callable[[Any], Awaitable[dict[str, Any]]]
"""Reads lines of one width, ``[lines, 3, height, width]``."""


def lines_graph(batch: int) -> pl.Graph:
    """Return the graph that reads lines in batches with those of other pages."""
    network = characters_graph()
    b = pl.GraphBuilder("lines")
    shape = ("count", *(network.tensors["x"].shape or ())[1:])
    best, probability = b.each(b.input("x", "float32", shape), network, name="read", batch=batch)
    b.output("best", best)
    b.output("probability", probability)
    return b.build()


@asynccontextmanager
async def reading(name: str) -> AsyncIterator[Read]:
    """Open a way to read lines."""
    width = (32, MOST_WIDTH)
    if name in EACH:
        bounds = {"count": (1, MOST_LINES), "width": width}
        devices = ["ort:2..3", "cpu"]
        plan = pl.plan(
            lines_graph(EACH[name]),
            devices,
            bounds=bounds,
            pin={"read/*": "ort:2..3"},
            max_in_flight=16,
        )
    else:
        bounds = {"lines": (1, 1 if name == LINES else MOST_LINES), "width": width}
        plan = pl.plan(characters_graph(), ["ort:2..3"], bounds=bounds, max_in_flight=IN_FLIGHT)
    async with pl.Session(plan) as session:
        yield lambda x: session.run({"x": x})
        if name in EACH:
            print(session.profile().row_batches)


@asynccontextmanager
async def pages(name: str) -> AsyncIterator[Callable[[Sequence[Any]], Awaitable[list[list[str]]]]]:
    """Open a way to read pages."""
    find_plan = pl.plan(
        ocr.boxes_graph(),
        ["ort:0..1", "cpu:0..1"],
        pin={"network/*": "ort:0..1"},
        bounds={"height": (32, 1024), "width": (32, MOST_WIDTH)},
        max_in_flight=IN_FLIGHT,
    )
    async with pl.Session(find_plan) as find, reading(name) as read:

        async def page(jpeg: Any) -> list[str]:
            loaded = await trio.to_thread.run_sync(ocr.load, jpeg)
            x = await trio.to_thread.run_sync(ocr.fed, loaded)
            found = await find.run({"x": x, "size": loaded.size})
            lines = await trio.to_thread.run_sync(
                ocr_images.crop, loaded.image, found["boxes"][: found["count"].item()]
            )
            sizes = (1,) if name == LINES else range(1, MOST_LINES + 1)
            alike = 1 if name == OWN_WIDTHS else ocr_images.READ_ALIKE
            batches = await trio.to_thread.run_sync(
                list, ocr_images.for_reading(lines, sizes, ocr.STEP, alike)
            )
            texts = [""] * len(lines)

            async def read_batch(batch: Any) -> None:
                made = await read(batch.pixels)
                for place, line in enumerate(batch.lines):
                    best, worth = made["best"][place], made["probability"][place]
                    texts[line] = ocr_images.text_of(best, worth, alphabet())[0]

            async with trio.open_nursery() as nursery:
                for batch in batches:
                    nursery.start_soon(read_batch, batch)
            return texts

        async def all_of(jpegs: Sequence[Any]) -> list[list[str]]:
            async with in_order(page, jpegs, IN_FLIGHT) as results:
                return [result async for result in results]

        yield all_of


async def compare(rounds: int, images: int) -> dict[str, Any]:
    """Return seconds per page of each way, in turns, and how many pages say the same."""
    pipeline = ocr.pipeline(images)
    own = ocr.by_package()
    async with AsyncExitStack() as stack:
        ways = {
            name: await stack.enter_async_context(pages(name)) for name in (LINES, PAGES, *EACH)
        }
        seconds: dict[str, list[float]] = {name: [] for name in (OWN_LOOP, *ways)}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in seconds}
        equal, right, drawn = dict.fromkeys(seconds, 0), dict.fromkeys(seconds, 0), 0
        watch = Watch()
        for turn in range(rounds + 1):
            jpegs = pipeline.items(turn)
            written = texts_of_pages(turn, images, ocr.LINES)
            drawn += sum(map(len, written))
            wanted: Sequence[Any] = ()
            for name in (*ways, OWN_LOOP):
                start, start_cpu = time.perf_counter(), time.process_time()
                found = own(jpegs) if name == OWN_LOOP else await ways[name](jpegs)
                cpu_seconds[name].append((time.process_time() - start_cpu) / images)
                seconds[name].append((time.perf_counter() - start) / images)
                wanted = wanted or found
                equal[name] += sum(map(pipeline.same, wanted, found))
                right[name] += sum(map(_count_alike, written, found))
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    return {
        "disturbance": watch.disturbance(),
        "ms per page": {name: 1e3 * each for name, each in medians.items()},
        "times as fast: median, least, greatest": ratios(seconds),
        "as many times less processor time: median, least, greatest": ratios(cpu_seconds),
        "same texts": {name: f"{each} of {images * (rounds + 1)}" for name, each in equal.items()},
        "lines read as they were drawn": {
            name: f"{each} of {drawn}" for name, each in right.items()
        },
    }


def _count_alike(lines: Sequence[str], others: Sequence[str]) -> int:
    return sum(one == other for one, other in zip(lines, others, strict=False))


def ratios(
    seconds: Mapping[str, Sequence[float]],
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return how many times less `each` takes than other ways, round by round but the first."""

    def against(name: str, other: str) -> tuple[float, float, float]:
        pairs = zip(seconds[other], seconds[name], strict=True)
        found = [theirs / own for theirs, own in pairs][1:]
        return statistics.median(found), min(found), max(found)

    others = [name for name in seconds if name not in EACH]
    return {name: {other: against(name, other) for other in others} for name in EACH}


def row_ms(path: Path, row: Sequence[int], rounds: int) -> dict[str, float]:
    """Return ms of processor time per row by rows at once, on one thread, in turns."""
    session = ort_session(path, 1)
    (fed,) = (each.name for each in session.get_inputs())
    times: dict[int, list[float]] = {count: [] for count in AT_ONCE}
    for _ in range(rounds + 1):
        for count in AT_ONCE:
            x = np.random.default_rng(0).standard_normal((count, *row), "float32")
            start = time.process_time()
            for _ in range(max(AT_ONCE) // count):
                session.run(None, {fed: x})
            times[count].append((time.process_time() - start) / max(AT_ONCE) * 1e3)
    return {str(count): statistics.median(ms[1:]) for count, ms in times.items()}


def crops(images: int) -> Pipeline:
    """Return the pipeline of a detector with the ways to classify crops by `each`."""
    ways = {f"plait, batch={size}": partial(detector.by_plait, size) for size in CROP_BATCHES}
    return replace(detector.pipeline(images), others={}, also_by_plait=ways)


def dense_graph(width: int, batch: int | None) -> pl.Graph:
    """Return the graph that takes two rows of an item through four layers."""
    layers = pl.GraphBuilder("layers")
    x = layers.input("x", "float32", ("rows", width))
    weights = np.random.default_rng(0).standard_normal((width, width), "float32") / width**0.5
    for _ in range(4):
        x = layers.op("Relu", layers.op("MatMul", x, weights))
    layers.output("y", x)
    b = pl.GraphBuilder("dense")
    rows = b.input("x", "float32", (2, width))
    b.output("y", b.each(rows, layers.build(), name="net", batch=batch))
    return b.build()


async def dense_us(width: int, batch: int | None, items: int) -> float:
    """Return microseconds per item of a stream, opened and warm."""
    pins = {"net/*": "ort"}
    plan = pl.plan(dense_graph(width, batch), ["ort", "cpu"], pin=pins, max_in_flight=32)
    feeds = {"x": np.ones((2, width), "float32")}
    async with pl.Session(plan) as session:
        for count in (items // 4, items):
            start = time.perf_counter()
            async with session.stream(feeds for _ in range(count)) as results:
                async for item in results:
                    assert item.error is None
    return (time.perf_counter() - start) / items * 1e6


def dense(rounds: int) -> dict[str, Any]:
    """Return by width how much faster two rows of an item are in batches across items, in turns.

    Median, least and greatest.
    """
    found = {}
    for width in WIDTHS:
        pairs = [
            [trio.run(dense_us, width, batch, 200) for batch in (None, 16)] for _ in range(rounds)
        ]
        ratios = [alone / together for alone, together in pairs]
        found[str(width)] = (statistics.median(ratios), min(ratios), max(ratios))
    return found


def pages_of_text(rounds: int, images: int) -> dict[str, Any]:
    """Return the figures of pages of text."""
    reader = model("ch_PP-OCRv4_rec_infer")
    alone = {str(width): row_ms(reader, (3, 48, width), rounds) for width in LINE_WIDTHS}
    found = trio.run(compare, rounds, images)
    return {**found, "ms of processor time per line, by width and lines at once": alone}


def crops_of_images(rounds: int, images: int) -> dict[str, Any]:
    """Return the figures of a detector's crops."""
    alone = row_ms(detector.classifier_path(), (3, detector.CROP, detector.CROP), rounds)
    found = trio.run(compare_pipelines, crops(images), rounds)
    return {**found, "ms of processor time per crop, by crops at once": alone}


PARTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "pages of text": pages_of_text,
    "a detector's crops": crops_of_images,
    "dense": lambda rounds, _: dense(rounds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.only:
        figures[name] = PARTS[name](options.rounds, options.images)
    save("each", {"goals": GOALS, **figures})


if __name__ == "__main__":
    main()
