"""A detector, and a classifier for what it finds: nudenet's network, and a SqueezeNet by count.

The second network has the architecture, and weights that are made up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import plait as pl
from real_models import folder, weighted

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

SIDE, CANVAS, CROP = 320, 640, 224
MOST, CERTAIN, OVERLAP = 16, 0.1, 0.45
NO_LABELS = np.zeros(0, np.int64)


def pipeline(images: int) -> Pipeline:
    """Return the pipeline for so many images a round."""
    detector_path(), classifier_path()
    return Pipeline(
        items=lambda turn: photographs(turn, images),
        by_hand=by_hand,
        by_plait=by_plait,
        same=same,
        others={"OpenVINO, AsyncInferQueue": by_openvino, "nudenet's own loop": by_package},
    )


# what both are made of


def prepare(jpeg: Any) -> tuple[Any, Any]:
    """Return an image on a canvas of one size, and what the detector is fed of it."""
    canvas = fit(decode(jpeg), CANVAS)
    return canvas, cv2.dnn.blobFromImage(canvas, 1 / 255, (SIDE, SIDE), swapRB=True)


def find(found: Any) -> Any:
    """Return the boxes on the canvas, x, y, width and height, that stand out: (count, 4)."""
    rows = found[0].T
    scores = rows[:, 4:].max(1)
    rows, scores = rows[scores > CERTAIN, :4], scores[scores > CERTAIN]
    boxes = np.hstack([rows[:, :2] - rows[:, 2:] / 2, rows[:, 2:]]) * (CANVAS / SIDE)
    kept = cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), CERTAIN, OVERLAP)
    return boxes[np.asarray(kept, int)[:MOST]].astype(np.int32)


def crop(canvas: Any, boxes: Any) -> Any:
    """Return what is in the boxes as the classifier is fed it."""
    corners = np.clip(np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]), 0, CANVAS)
    cut = [canvas[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)] for x0, y0, x1, y1 in corners]
    return cv2.dnn.blobFromImages(cut, 1 / 58, (CROP, CROP), (104, 117, 123))


def same(one: Result, other: Result) -> bool:
    """Say whether both have the same boxes with the same labels; edges may be a pixel apart."""
    return len(one[0]) == len(other[0]) and (
        bool(np.all(np.abs(one[0] - other[0]) <= 1)) and np.array_equal(one[1], other[1])
    )


def detector_path() -> Path:
    """Return the file of nudenet's network."""
    return in_package("nudenet", "320n.onnx")


@cache
def classifier_path() -> Path:
    """Return a file with the classifier, which takes any number of crops."""
    proto = onnx.load(weighted("squeezenet"))
    used = {name for node in proto.graph.node for name in node.input}
    kept = [each for each in proto.graph.initializer if each.name in used]
    fed = [each for each in proto.graph.input if each.name == "data_0"]
    del proto.graph.initializer[:], proto.graph.input[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.extend(fed)
    for each in (*proto.graph.input, *proto.graph.output):
        each.type.tensor_type.shape.dim[0].dim_param = "crops"
    path = Path(folder().name) / "classifier.onnx"
    onnx.save(proto, path)
    return path


# by hand


def by_hand(workers: int, threads: int) -> Work:
    """Have each worker take an image from the file to the labels; sessions are shared."""
    detector = ort_session(detector_path(), threads)
    classifier = ort_session(classifier_path(), threads)
    (fed,) = (each.name for each in classifier.get_inputs())

    def work(jpeg: Item) -> Result:
        canvas, blob = prepare(jpeg)
        boxes = find(*detector.run(None, {"images": blob}))
        if not len(boxes):
            return boxes, NO_LABELS
        (scores,) = classifier.run(None, {fed: crop(canvas, boxes)})
        return boxes, scores.reshape(len(boxes), -1).argmax(1)

    return on_threads(work, workers)


def by_package() -> Work:
    """Do what the package does, image by image; crops are classified behind it."""
    from nudenet import NudeDetector

    detector, classifier = NudeDetector(), onnx_session_of(classifier_path())

    def work(jpegs: Sequence[Item]) -> Sequence[Result]:
        results: list[Result] = []
        for jpeg in jpegs:
            found = detector.detect(jpeg)
            canvas = decode(jpeg)
            labels = [classifier(_cut(canvas, each["box"])) for each in found]
            results.append(
                (np.array([each["box"] for each in found]).reshape(-1, 4), np.array(labels))
            )
        return results

    return work


def _cut(image: Any, box: Sequence[int]) -> Any:
    x, y, width, height = box
    part = image[y : y + max(height, 1), x : x + max(width, 1)]
    return cv2.dnn.blobFromImage(part, 1 / 58, (CROP, CROP), (104, 117, 123))


def onnx_session_of(path: Path) -> Callable[[Any], Any]:
    """Return a call of a model as most first write it: a session with default options."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (fed,) = (each.name for each in session.get_inputs())
    return lambda x: session.run(None, {fed: x})[0].argmax()


def by_openvino() -> Work:
    """Have two queues: the first one's callback crops, and starts the second."""
    from .openvino_queue import compiled, queue

    detectors, classifier = queue(detector_path()), compiled(classifier_path())

    def work(jpegs: Sequence[Item]) -> Sequence[Result]:
        results: list[Result] = [None] * len(jpegs)

        def labelled(request: Any, user: Any) -> None:
            index, canvas = user
            boxes = find(request.get_output_tensor().data)
            labels = NO_LABELS
            if len(boxes):
                scores = classifier.create_infer_request().infer([crop(canvas, boxes)])[0]
                labels = scores.reshape(len(boxes), -1).argmax(1)
            results[index] = boxes, labels

        detectors.set_callback(labelled)
        for index, jpeg in enumerate(jpegs):
            canvas, blob = prepare(jpeg)
            detectors.start_async([blob], (index, canvas))
        detectors.wait_all()
        return results

    return work


# with plait


@pl.operator(
    (pl.TensorSpec("uint8", (CANVAS, CANVAS, 3)), pl.TensorSpec("float32", (1, 3, SIDE, SIDE))),
    inputs=[pl.TensorSpec("uint8", ("bytes",))],
    name="detector.prepare",
)
def prepared(jpeg: Any) -> tuple[Any, Any]:
    return prepare(jpeg)


@pl.operator(
    pl.TensorSpec("int32", ("boxes", 4)),
    inputs=[pl.TensorSpec("float32", (1, 22, "places"))],
    name="detector.find",
)
def boxes_found(found: Any) -> Any:
    return find(found)


CROPS = pl.TensorSpec("float32", ("boxes", 3, CROP, CROP))
CROPPED = pl.TensorSpec("uint8", (CANVAS, CANVAS, 3)), pl.TensorSpec("int32", ("boxes", 4))
"""What is cut out, and of what: the canvas, and the boxes there."""


@pl.operator(
    CROPS,
    inputs=CROPPED,
    name="detector.crop",
)
def crops(canvas: Any, boxes: Any) -> Any:
    return crop(canvas, boxes) if len(boxes) else np.zeros((0, 3, CROP, CROP), np.float32)


@pl.operator(
    pl.TensorSpec("int64", ("boxes",)),
    inputs=[pl.TensorSpec("float32", ("boxes", 1000, 1, 1))],
    name="detector.label",
)
def labelled(scores: Any) -> Any:
    return scores[:, :, 0, 0].argmax(1)


@pl.operator(
    CROPS,
    inputs=CROPPED,
    name="detector.crop_each",
)
def crops_one_by_one(canvas: Any, boxes: Any) -> Iterator[Any]:
    for box in boxes:
        yield crop(canvas, box[None])[0]


def graph(batch: int | None = None) -> pl.Graph:
    """Return the graph from a file to the boxes on the canvas, and their labels.

    Crops are classified together with those of their image, or by `each` in batches up to some
    size, each from when it was cut.
    """
    b, classifier = pl.GraphBuilder("detector"), pl.load(classifier_path())
    canvas, blob = b.call(prepared, b.input("jpeg", "uint8", ("bytes",)), name="prepare")
    (found,) = b.include(pl.load(detector_path()), {"images": blob}, prefix="detect/").values()
    boxes = b.call(boxes_found, found, name="find")
    cut = b.call(crops if batch is None else crops_one_by_one, canvas, boxes, name="crop")
    scores = b.each(cut, classifier, name="classify", batch=batch)
    b.output("boxes", boxes)
    b.output("labels", b.call(labelled, scores, name="label"))
    return b.build()


@asynccontextmanager
async def by_plait(batch: int | None = None) -> AsyncIterator[WorkAsync]:
    """Stream files through one plan for all counts.

    Images whose crops wait for batches take no device: twice as many may be under way.
    """
    plan = pl.plan(
        graph(batch),
        ["ort:0..1", "cpu:0..1"],
        pin={"*/*": "ort:0..1", "*": "cpu:0..1"},
        bounds={"bytes": 1 << 20, "boxes": MOST},
        max_in_flight=IN_FLIGHT if batch is None else 2 * IN_FLIGHT,
    )
    async with pl.Session(plan) as session:

        async def work(jpegs: Sequence[Item]) -> Sequence[Result]:
            feeds = ({"jpeg": np.frombuffer(jpeg, np.uint8)} for jpeg in jpegs)
            async with session.stream(feeds) as results:
                return [(item["boxes"], item["labels"]) async for item in results]

        yield work
