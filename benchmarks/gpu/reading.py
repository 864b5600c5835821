"""Pipelines from files to boxes and text: what is computed where, by hand and with plait.

The networks are those of PP-OCR, which rapidocr-onnxruntime's wheel carries; none of its code is
used. On all sides pixels are uploaded as bytes, and what comes down is as small as can be: which
pixels are text, and the best character at each place.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnx
import plait as pl
from gpu.in_torch import Network, captured, torch_for
from gpu.target import Target
from pipelines.images import decode, fit
from pipelines.pipeline import Item, Result, Work, WorkAsync, ort_session
from plait.graph.core.ir import Graph
from plait.scheduler.shapes.specialise import specialise
from real_models import in_package

FIND, READ = "ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer"
PACKAGE = "rapidocr_onnxruntime"
LINES, HEIGHT, WIDTH = 16, 48, 480
"""The most lines of a page, and the pixels of each, in which it is read."""
TEXT_ABOVE, LEAST, GROWTH = 0.3, 4, 1.6
CORES = len(os.sched_getaffinity(0))


class ByHand(NamedTuple):
    """How a version by hand goes about it: threads that take pages from files to results.

    Attributes
    ----------
    workers : int
    batch : int
        Pages of a batch.
    threads : int
        Of OpenCV.
    loads_apart : bool
        Load files in as many processes, as data loaders do.
    """

    workers: int
    batch: int
    threads: int
    loads_apart: bool = False


MANY = max(CORES - 2, 2)
BY_HAND = (
    ByHand(4, 1, 4),
    ByHand(8, 1, CORES),
    ByHand(MANY, 1, 1),
    ByHand(MANY, 1, 1, loads_apart=True),
    ByHand(2, 4, 4),
)
"""Of these the fastest is the version by hand."""

cv2.setNumThreads(1)  # here and in worker processes: there are as many of these as there are cores


@dataclass(frozen=True)
class Reading:
    """A pipeline: pages are searched for lines of text, which may then be read.

    Attributes
    ----------
    reads : bool
    side : int
        Of the square into which a page is fitted.
    """

    reads: bool
    side: int = 640

    def result(self, boxes: Any, count: Any, characters: Any = None) -> Result:
        """Return what is known of a page: boxes, or lines of text."""
        if characters is None:
            return boxes[: count.item()].tolist()
        return [text_of(each) for each in characters[: count.item()]]


def model(name: str) -> Path:
    """Return the file of a network."""
    return in_package(PACKAGE, "models", f"{name}.onnx")


# what all sides are made of


def load(jpeg: Any, side: int) -> Any:
    """Return the pixels of a file in a square."""
    return fit(decode(jpeg), side)


def find(mask: Any) -> tuple[Any, Any]:
    """Return boxes, left, top, right and bottom, around what is text, and how many there are."""
    thick = cv2.dilate(mask[0, 0], np.ones((2, 2), np.uint8))
    _, _, found, _ = cv2.connectedComponentsWithStats(thick)
    boxes = np.zeros((LINES, 4), np.int32)
    sized = found[(found[:, 2] >= LEAST) & (found[:, 3] >= LEAST)]
    kept = sorted(sized[sized[:, 4] < thick.size // 4].tolist(), key=lambda box: box[1])[:LINES]
    for place, (left, top, width, height, _) in enumerate(kept):
        grown = round(GROWTH * width * height / (2 * (width + height)))
        box = left - grown, top - grown, left + width + grown, top + height + grown
        boxes[place] = np.clip(box, 0, len(thick))
    return boxes, np.array([len(kept)], np.int32)


def crop(canvas: Any, boxes: Any, count: Any) -> Any:
    """Return lines in the one size in which they are read."""
    lines = np.zeros((LINES, HEIGHT, WIDTH, 3), np.uint8)
    for place, (left, top, right, bottom) in enumerate(boxes[: count.item()].tolist()):
        width = max(1, min(WIDTH, round(HEIGHT * (right - left) / (bottom - top))))
        lines[place, :, :width] = cv2.resize(canvas[top:bottom, left:right], (width, HEIGHT))
    return lines


def text_of(characters: Any) -> str:
    """Return the text that the best characters at each place make."""
    known = alphabet()
    return "".join(known[each] for each, _ in groupby(characters.tolist()) if each)


@cache
def alphabet() -> tuple[str, ...]:
    """Return the characters; the file of the network has them."""
    properties = {each.key: each.value for each in onnx.load(model(READ)).metadata_props}
    return ("", *properties["character"].splitlines(), " ")


# by hand


def by_ort(reading: Reading) -> Work:
    """Have each core take a page from the file to the result, with ONNX Runtime on the CPU."""
    find_in, read = ort_session(model(FIND), 1), ort_session(model(READ), 1)

    def fed(pixels: Any) -> dict[str, Any]:
        scaled = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
        return {"x": np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))}

    def work(jpeg: Item) -> Result:
        canvas = load(jpeg, reading.side)
        (probability,) = find_in.run(None, fed(canvas[None]))
        boxes, count = find((probability > TEXT_ABOVE).astype(np.uint8))
        if not reading.reads:
            return reading.result(boxes, count)
        (characters,) = read.run(None, fed(crop(canvas, boxes, count)))
        return reading.result(boxes, count, characters.argmax(2))

    pool = ThreadPoolExecutor(CORES)
    return lambda jpegs: list(pool.map(work, jpegs))


def by_torch(target: Target, reading: Reading, way: ByHand, *, tf32: bool) -> Work:
    """Have each worker take pages from files to results, with CUDA graphs on its own stream."""
    torch, device = torch_for(target, tf32=tf32)
    torch.cuda.empty_cache()  # of ways that were tried before
    side, batch = reading.side, way.batch
    processes = ProcessPoolExecutor(way.workers, get_context("spawn")) if way.loads_apart else None
    loaded_in = map if processes is None else processes.map
    canvases = np.zeros((batch, side, side, 3), np.uint8)
    lines = np.zeros((batch * LINES, HEIGHT, WIDTH, 3), np.uint8)
    find_in = Network(_static(FIND, (batch, 3, side, side)), torch, device)
    read = Network(_static(READ, (len(lines), 3, HEIGHT, WIDTH)), torch, device)

    def normal(pixels: Any) -> dict[str, Any]:
        scaled = (pixels.to(torch.float32) / 255 - 0.5) / 0.5
        return {"x": scaled.permute(0, 3, 1, 2).contiguous()}

    def masks(given: Mapping[str, Any]) -> list[Any]:
        (probability,) = find_in(normal(given["pixels"]))
        return [(probability > TEXT_ABOVE).to(torch.uint8)]

    def characters(given: Mapping[str, Any]) -> list[Any]:
        (probability,) = read(normal(given["pixels"]))
        return [probability.argmax(2).to(torch.int32)]

    def made() -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        finding = captured(masks, torch, device, {"pixels": canvases})
        if not reading.reads:
            return finding, None
        return finding, captured(characters, torch, device, {"pixels": lines})

    free = [made() for _ in range(way.workers)]

    def work(jpegs: Sequence[Item]) -> list[Result]:
        finding, reading_lines = free.pop()
        try:
            loaded = [*loaded_in(partial(load, side=side), jpegs)]
            filled = np.stack([*loaded, *loaded[:1] * (batch - len(loaded))])
            (found,) = finding({"pixels": filled})
            boxes = [find(mask[None]) for mask in found[: len(jpegs)]]
            if reading_lines is None:
                return [reading.result(*each) for each in boxes]
            cut = [crop(canvas, *each) for canvas, each in zip(loaded, boxes, strict=True)]
            cut += cut[:1] * (batch - len(cut))
            (best,) = reading_lines({"pixels": np.concatenate(cut)})
            by_page = best.reshape(batch, LINES, -1)
            return [reading.result(*each, by_page[place]) for place, each in enumerate(boxes)]
        finally:
            free.append((finding, reading_lines))

    pool = ThreadPoolExecutor(way.workers)

    def all_of(jpegs: Sequence[Item]) -> Sequence[Result]:
        parts = (jpegs[first : first + batch] for first in range(0, len(jpegs), batch))
        return [result for part in pool.map(work, parts) for result in part]

    return all_of


def _static(name: str, shape: tuple[int, ...]) -> Graph:
    return specialise(pl.load(model(name)), {"x": shape})


# with plait

SQUARE = pl.TensorSpec("uint8", ("side", "side", 3))
BOXES = pl.TensorSpec("int32", (LINES, 4)), pl.TensorSpec("int32", (1,))
CUT = pl.TensorSpec("uint8", (LINES, HEIGHT, WIDTH, 3))


@pl.operator(
    outputs=lambda jpeg, side: pl.TensorSpec("uint8", (side, side, 3)), name="reading.load"
)
def loading(jpeg: Any, *, side: int) -> Any:
    return load(jpeg, side)


@pl.operator(BOXES, inputs=[pl.TensorSpec("uint8", (1, 1, "height", "width"))], name="reading.find")
def finding_boxes(mask: Any) -> tuple[Any, Any]:
    return find(mask)


@pl.operator(CUT, inputs=[SQUARE, *BOXES], name="reading.crop")
def cropping(canvas: Any, boxes: Any, count: Any) -> Any:
    return crop(canvas, boxes, count)


def graph(reading: Reading) -> Graph:
    """Return the graph from a file to boxes, and to characters where it reads."""
    b = pl.GraphBuilder("reading" if reading.reads else "finding")
    canvas = b.call(loading, b.input("jpeg", "uint8", ("bytes",)), side=reading.side, name="load")
    (mask,) = b.include(_masks(reading.side), {"pixels": canvas}, prefix="find/").values()
    boxes, count = b.call(finding_boxes, mask, name="boxes")
    b.output("boxes", boxes)
    b.output("count", count)
    if reading.reads:
        lines = b.call(cropping, canvas, boxes, count, name="crop")
        (best,) = b.include(_characters(), {"pixels": lines}, prefix="read/").values()
        b.output("characters", best)
    return b.build()


def _workers(first: int, end: int) -> str:
    return f"worker:{first}..{end - 1}" if end - first > 1 else f"worker:{first}"


def _normal(pixels: Any) -> Any:
    return (pixels.astype("float32") / np.float32(255) - 0.5) / 0.5


def _masks(side: int) -> Graph:
    b = pl.GraphBuilder("masks")
    x = _normal(b.input("pixels", "uint8", (side, side, 3))).transpose(2, 0, 1)[None]
    (probability,) = b.include(pl.load(model(FIND)), {"x": x}).values()
    b.output("mask", b.op("Greater", probability, np.float32(TEXT_ABOVE)).astype("uint8"))
    return b.build()


def _characters() -> Graph:
    b = pl.GraphBuilder("characters")
    x = _normal(b.input("pixels", "uint8", (LINES, HEIGHT, WIDTH, 3))).transpose(0, 3, 1, 2)
    (probability,) = b.include(pl.load(model(READ)), {"x": x}).values()
    b.output("best", probability.argmax(axis=2).astype("int32"))
    return b.build()


@asynccontextmanager
async def by_plait(
    target: Target, reading: Reading, in_flight: int, *, tf32: bool
) -> AsyncIterator[WorkAsync]:
    """Stream files through a plan: networks on the device, what lies between on the host."""
    device = target.make(tf32=True) if tf32 else target.make()
    # Processes, for the host's part is Python: on threads it would wait for the interpreter.
    processes = target.size(max(2, CORES - 2), 2)
    first = max(1, 3 * processes // 4)  # reading files takes longer than what follows
    files, lines = _workers(0, first), _workers(first, processes)
    plan = pl.plan(
        graph(reading),
        [device, files, lines],
        pin={"*/*": device.name, "load": files, "*": lines},
        bounds={"bytes": 1 << 20},
        max_in_flight=in_flight,
    )
    async with pl.Session(plan) as session:

        async def work(jpegs: Sequence[Item]) -> Sequence[Result]:
            feeds = ({"jpeg": np.frombuffer(jpeg, np.uint8)} for jpeg in jpegs)
            async with session.stream(feeds) as results:
                names = ("boxes", "count", *(("characters",) if reading.reads else ()))
                return [reading.result(*(item[name] for name in names)) async for item in results]

        yield work
