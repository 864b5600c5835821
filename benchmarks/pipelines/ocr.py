"""Text in images: a network outlines it, another one reads each line (PP-OCR, of rapidocr).

What lies between the networks is that of `examples/ocr_images.py` for all ways but the package's.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import trio

from .images import pages
from .pipeline import (
    IN_FLIGHT,
    Item,
    Pipeline,
    Result,
    Work,
    WorkAsync,
    in_package,
    on_threads,
    ort_session,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import ocr_images
from ocr_pipeline import alphabet, characters_graph, in_order, model

PACKAGE, LINES, STEP = "rapidocr_onnxruntime", 10, 32
SIDE = 320
"""The least side of the images in which text is looked for; lines are read one by one."""


def pipeline(images: int) -> Pipeline:
    """Return the pipeline for so many pages a round."""
    in_package(PACKAGE, install="rapidocr-onnxruntime==1.4.4")
    return Pipeline(
        items=lambda turn: pages(turn, images, LINES),
        by_hand=by_hand,
        by_plait=by_plait,
        same=lambda one, other: one == other,
        others={"OpenVINO, AsyncInferQueue": by_openvino, "rapidocr's own loop": by_package},
    )


# what both are made of


def load(jpeg: Any) -> ocr_images.Page:
    """Return a page as it is read and as it is looked for text."""
    return ocr_images.load(BytesIO(jpeg), SIDE)


def fed(page: ocr_images.Page) -> Any:
    """Return what the first network is fed."""
    pixels = (page.fitted.astype(np.float32) / 255 - 0.5) / 0.5
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]


def text_of(probability: Any) -> str:
    """Return the text of a line, given the worth of each character at each place."""
    return ocr_images.text_of(probability.argmax(-1), probability.max(-1), alphabet())[0]


# by hand


def by_hand(workers: int, threads: int) -> Work:
    """Have each worker take a page from the file to its lines; sessions are shared."""
    find = ort_session(model("ch_PP-OCRv4_det_infer"), threads)
    read = ort_session(model("ch_PP-OCRv4_rec_infer"), threads)

    def work(jpeg: Item) -> Result:
        page = load(jpeg)
        (probability,) = find.run(None, {"x": fed(page)})
        boxes, count = ocr_images.find_boxes(probability, page.size)
        lines = ocr_images.crop(page.image, boxes[: count.item()])
        texts = [""] * len(lines)
        for batch in ocr_images.for_reading(lines, (1,), STEP):
            (found,) = read.run(None, {"x": batch.pixels})
            for index, each in zip(batch.lines, found, strict=True):
                texts[index] = text_of(each)
        return texts

    return on_threads(work, workers)


def by_package() -> Work:
    """Read page after page with the package, without looking for lines upside down."""
    from rapidocr_onnxruntime import RapidOCR

    reader = RapidOCR(det_limit_side_len=SIDE)
    return lambda jpegs: [
        [text for _, text, _ in reader(jpeg, use_cls=False)[0] or ()] for jpeg in jpegs
    ]


def by_openvino() -> Work:
    """Have a queue for each network: the first one's callback starts the lines of its page."""
    from .openvino_queue import compiled, queue

    find = queue(model("ch_PP-OCRv4_det_infer"))
    read = compiled(model("ch_PP-OCRv4_rec_infer"))

    def found(request: Any, user: Any) -> None:
        texts, page = user
        boxes, count = ocr_images.find_boxes(request.get_output_tensor().data, page.size)
        lines = ocr_images.crop(page.image, boxes[: count.item()])
        texts.extend([""] * len(lines))
        reading = read.create_infer_request()
        for batch in ocr_images.for_reading(lines, (1,), STEP):
            for index, each in zip(batch.lines, reading.infer([batch.pixels])[0], strict=True):
                texts[index] = text_of(each)

    def work(jpegs: Sequence[Item]) -> Sequence[Result]:
        results: list[Result] = [[] for _ in jpegs]
        find.set_callback(found)
        for texts, jpeg in zip(results, jpegs, strict=True):
            page = load(jpeg)
            find.start_async([fed(page)], (texts, page))
        find.wait_all()
        return results

    return work


# with plait


def boxes_graph() -> pl.Graph:
    """Return the graph from pixels to boxes of text, and how many there are."""
    b = pl.GraphBuilder("boxes")
    x, size = b.input("x", "float32", (1, 3, "height", "width")), b.input("size", "int32", (2,))
    network = pl.load(model("ch_PP-OCRv4_det_infer"))
    (probability,) = b.include(network, {"x": x}, prefix="network/").values()
    boxes, count = b.call(ocr_images.find_boxes, probability, size, name="find")
    b.output("boxes", boxes)
    b.output("count", count)
    return b.build()


@asynccontextmanager
async def by_plait() -> AsyncIterator[WorkAsync]:
    """Have a session for each network, and a task for each page."""
    find_plan = pl.plan(
        boxes_graph(),
        ["ort:0..1", "cpu:0..1"],
        pin={"network/*": "ort:0..1"},
        bounds={"height": (32, 1024), "width": (32, 1280)},
        max_in_flight=IN_FLIGHT,
    )
    read_plan = pl.plan(
        characters_graph(),
        ["ort:2..3"],
        bounds={"lines": (1, 1), "width": (32, 1280)},
        max_in_flight=IN_FLIGHT,
    )
    async with pl.Session(find_plan) as find, pl.Session(read_plan) as read:

        async def text(batch: ocr_images.Batch) -> str:
            found = await read.run({"x": batch.pixels})
            return ocr_images.text_of(found["best"][0], found["probability"][0], alphabet())[0]

        async def work(jpeg: Item) -> Result:
            page = await trio.to_thread.run_sync(load, jpeg)
            x = await trio.to_thread.run_sync(fed, page)
            found = await find.run({"x": x, "size": page.size})
            boxes = found["boxes"][: found["count"].item()]
            lines = await trio.to_thread.run_sync(ocr_images.crop, page.image, boxes)
            texts = [""] * len(lines)
            batches = await trio.to_thread.run_sync(list, ocr_images.for_reading(lines, (1,), STEP))
            for batch in batches:
                texts[batch.lines[0]] = await text(batch)
            return texts

        async def work_on_all(jpegs: Sequence[Item]) -> Sequence[Result]:
            async with in_order(work, jpegs, IN_FLIGHT) as results:
                return [result async for result in results]

        yield work_on_all
