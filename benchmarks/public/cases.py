"""Pipelines that other projects publish, on generated data: by hand, and with `plait.pipeline`.

Each case has the functions that both ways share, `by_hand`, which makes the body of a user's loop
from a function that opens a model, and `with_plait`. Their lines are counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import plait as pl

from . import data
from .models import (
    FRAMES,
    MELS,
    TOKENS,
    VOCABULARY,
    find_classifier,
    find_detector,
    find_file_model,
    find_recognizer,
    make_encoder,
    make_scorer,
    make_segmenter,
    make_speech_model,
)

Open = Callable[[Any], Callable[..., Any]]
"""Opens a model: a function from its inputs, in order, to its first output."""


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes
    ----------
    name, project : str
        The pipeline, and the project that publishes it.
    make_items : callable
        From a seed to items.
    by_hand : callable
        From `Open` to the body of a loop.
    with_plait : callable
        From an example to a pipeline.
    make_first, make_last : callable or None
        Make the first and the last step of the version by hand, which keep state and take items in
        order.
    """

    name: str
    project: str
    make_items: Callable[[int], Sequence[Any]]
    by_hand: Callable[[Open], Callable[[Any], Any]]
    with_plait: Callable[[Any], pl.Pipeline]
    make_last: Callable[[], Callable[[Any], Any]] | None = None
    make_first: Callable[[], Callable[[Any], Any]] | None = None


def decode(jpeg: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)


def to_tensor(image: Any, width: int, height: int) -> Any:
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return (small.transpose(2, 0, 1)[None].astype("float32") - 127.5) / 127.5


# SPDL: images are loaded for training.


def load_image(jpeg: bytes) -> Any:
    return to_tensor(decode(jpeg), 224, 224)


def load_by_hand(_: Open) -> Callable[[Any], Any]:
    return load_image


def load_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(load_image, example=example)


# Daft: images are labelled.


def prepare(jpeg: bytes) -> Any:
    return to_tensor(decode(jpeg), 192, 48)


def find_label(scores: Any) -> int:
    return int(scores.argmax())


def label_by_hand(open_model: Open) -> Callable[[Any], Any]:
    classifier = open_model(find_classifier())
    return lambda jpeg: find_label(classifier(prepare(jpeg)))


def label_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(prepare, find_classifier(), find_label, example=example)


# Daft: documents become embeddings, chunk by chunk.


def split(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + TOKENS]) for start in range(0, len(words), TOKENS)]


def tokenize(chunk: str) -> Any:
    found = [zlib.crc32(word.encode()) % VOCABULARY for word in chunk.split()]
    return np.array(found + [0] * (TOKENS - len(found)), "int64")


def embed_by_hand(open_model: Open) -> Callable[[Any], Any]:
    encoder = open_model(make_encoder())
    return lambda text: encoder(np.stack([tokenize(chunk) for chunk in split(text)]))


def embed_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(split, pl.each(tokenize, make_encoder()), example=example)


# Daft: of the frames of a video, what a detector finds is cut out and written as files.


def prepare_frame(frame: Any) -> Any:
    return to_tensor(frame, 320, 192)


def find_boxes(scores: Any) -> list[tuple[int, int, int, int]]:
    mask = (scores[0, 0] > 0.3).astype(np.uint8)
    found = cv2.connectedComponentsWithStats(mask)[2][1:]
    return [tuple(box[:4].tolist()) for box in found if box[4] > 20][:16]


def cut(box: tuple[int, int, int, int], frame: Any) -> Any:
    x, y, width, height = (2 * length for length in box)
    return frame[y : y + height, x : x + width]


def to_png(image: Any) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def crop_by_hand(open_model: Open) -> Callable[[Any], Any]:
    detector = open_model(find_detector())

    def work(frame: Any) -> Any:
        boxes = find_boxes(detector(prepare_frame(frame)))
        return [to_png(cut(box, frame)) for box in boxes]

    return work


def crop_with_plait(example: Any) -> pl.Pipeline:
    crops = pl.each(cut, to_png, inputs=["find_boxes", "item"])
    return pl.pipeline(prepare_frame, find_detector(), find_boxes, crops, example=example)


# Daft: sound becomes text.


def to_mels(sound: Any) -> Any:
    frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160][:FRAMES]
    power = np.abs(np.fft.rfft(frames * np.hanning(400))) ** 2
    bands = power[:, : 2 * MELS].reshape(len(frames), MELS, 2).sum(2)
    return np.log(bands + 1e-6).T[None].astype("float32")


def to_text(scores: Any) -> str:
    letters = scores[0].argmax(0)
    kept = letters[np.flatnonzero(np.diff(letters, prepend=-1))]
    return "".join(chr(96 + letter) for letter in kept if letter)


def transcribe_by_hand(open_model: Open) -> Callable[[Any], Any]:
    model = open_model(make_speech_model())
    return lambda sound: to_text(model(to_mels(sound)))


def transcribe_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(to_mels, make_speech_model(), to_text, example=example)


# Ray Data: a network over the rows of a table.


def to_row(record: dict[str, Any]) -> Any:
    return np.asarray(record["features"], "float32")[None]


def score_by_hand(open_model: Open) -> Callable[[Any], Any]:
    scorer = open_model(make_scorer())
    return lambda record: find_label(scorer(to_row(record)))


def score_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(to_row, make_scorer(), find_label, example=example)


# Triton: an ensemble decodes pages, detects lines of text and recognizes them.


def prepare_page(page: Any) -> Any:
    return to_tensor(page, 640, 384)


def cut_line(box: tuple[int, int, int, int], page: Any) -> Any:
    height, width = page.shape[0] / 384, page.shape[1] / 640
    x, y, w, h = box
    top, left = int(max(0, y - 4) * height), int(max(0, x - 4) * width)
    line = page[top : int((y + h + 4) * height), left : int((x + w + 4) * width)]
    return to_tensor(line, 320, 48)[0]


def read_line(scores: Any) -> tuple[int, ...]:
    letters = scores.argmax(-1)
    return tuple(letters[np.flatnonzero(np.diff(letters, prepend=-1))].tolist())


def read_by_hand(open_model: Open) -> Callable[[Any], Any]:
    detector, recognizer = open_model(find_detector()), open_model(find_recognizer())

    def work(jpeg: bytes) -> Any:
        page = decode(jpeg)
        boxes = find_boxes(detector(prepare_page(page)))
        lines = [cut_line(box, page)[None] for box in boxes]
        return [read_line(recognizer(line)[0]) for line in lines]

    return work


def read_with_plait(example: Any) -> pl.Pipeline:
    lines = pl.each(cut_line, find_recognizer(), read_line, inputs=["find_boxes", "decode"])
    return pl.pipeline(decode, prepare_page, find_detector(), find_boxes, lines, example=example)


# Roboflow: objects of a video are detected, tracked and counted.


class Tracker:
    """Gives boxes the number of the nearest box of the frame before, and counts them."""

    def __init__(self) -> None:
        self.last: dict[int, Any] = {}
        self.count = 0

    def __call__(self, boxes: Sequence[Any]) -> list[int]:
        numbers, found = [], {}
        for box in boxes:
            center = np.array(box[:2]) + np.array(box[2:]) / 2
            near = [n for n, at in self.last.items() if np.abs(at - center).max() < 12]
            number = next((n for n in near if n not in found), self.count)
            self.count = max(self.count, number + 1)
            found[number] = center
            numbers.append(number)
        self.last = found
        return numbers


def track_by_hand(open_model: Open) -> Callable[[Any], Any]:
    detector = open_model(find_detector())
    return lambda frame: find_boxes(detector(prepare_frame(frame)))


def track_with_plait(example: Any) -> pl.Pipeline:
    track = pl.step(Tracker(), ordered=True)
    return pl.pipeline(prepare_frame, find_detector(), find_boxes, track, example=example)


# A search index: documents are embedded and given to the nearest of growing clusters.


class Clusters:
    """Means of vectors; each vector moves the nearest of them."""

    def __init__(self) -> None:
        self.means = np.random.default_rng(0).standard_normal((8, 128)).astype("float32")

    def __call__(self, vectors: Any) -> list[int]:
        found = []
        for vector in vectors:
            nearest = int(((self.means - vector) ** 2).sum(1).argmin())
            self.means[nearest] += 0.05 * (vector - self.means[nearest])
            found.append(nearest)
        return found


def index_with_plait(example: Any) -> pl.Pipeline:
    embedded = pl.each(tokenize, make_encoder())
    return pl.pipeline(split, embedded, pl.step(Clusters(), ordered=True), example=example)


# Magika: types of files from their first and last bytes.


def to_features(content: bytes) -> Any:
    begin, end = content[:1024], content[-1024:]
    row = np.full(2048, 256, "int32")
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    row[2048 - len(end) :] = np.frombuffer(end, np.uint8)
    return row[None]


def identify_by_hand(open_model: Open) -> Callable[[Any], Any]:
    model = open_model(find_file_model())
    return lambda content: find_label(model(to_features(content)))


def identify_with_plait(example: Any) -> pl.Pipeline:
    return pl.pipeline(to_features, find_file_model(), find_label, example=example)


# MediaPipe: the background of a camera's frames is blurred.

SIDE = 96


def prepare_camera(frame: Any) -> Any:
    return to_tensor(frame, SIDE, SIDE)


def blend(mask: Any, frame: Any) -> bytes:
    weight = cv2.resize(mask[0, 0], frame.shape[1::-1])[..., None]
    mixed = frame * weight + cv2.blur(frame, (15, 15)) * (1 - weight)
    return cv2.imencode(".jpg", mixed.astype(np.uint8))[1].tobytes()


def blur_by_hand(open_model: Open) -> Callable[[Any], Any]:
    segmenter = open_model(make_segmenter(SIDE))
    return lambda frame: blend(segmenter(prepare_camera(frame)), frame)


def blur_with_plait(example: Any) -> pl.Pipeline:
    blended = pl.step(blend, inputs=[0, "item"])
    return pl.pipeline(prepare_camera, make_segmenter(SIDE), blended, example=example)


# openWakeWord: a network listens to the last two seconds at each chunk of sound.


class LastSeconds:
    """The last two seconds of sound."""

    def __init__(self) -> None:
        self.sound = np.zeros(32_240)

    def __call__(self, chunk: Any) -> Any:
        self.sound = np.concatenate([self.sound[len(chunk) :], chunk])
        return self.sound


def find_word(scores: Any) -> int | None:
    power = np.exp(scores[0] - scores[0].max(0))
    means = (power / power.sum(0)).mean(1)
    return int(means.argmax()) if means.max() > 0.1 else None


def find_words_by_hand(open_model: Open) -> Callable[[Any], Any]:
    model = open_model(make_speech_model())
    return lambda sound: find_word(model(to_mels(sound)))


def find_words_with_plait(example: Any) -> pl.Pipeline:
    window = pl.step(LastSeconds(), ordered=True)
    return pl.pipeline(window, to_mels, make_speech_model(), find_word, example=example)


CASES = (
    Case("load images", "SPDL", data.make_jpegs, load_by_hand, load_with_plait),
    Case("images to labels", "Daft", data.make_jpegs, label_by_hand, label_with_plait),
    Case("documents to embeddings", "Daft", data.make_texts, embed_by_hand, embed_with_plait),
    Case("video to crops", "Daft", data.make_frames, crop_by_hand, crop_with_plait),
    Case("sound to text", "Daft", data.make_sounds, transcribe_by_hand, transcribe_with_plait),
    Case("rows of a table", "Ray Data", data.make_records, score_by_hand, score_with_plait),
    Case("decode, detect, recognize", "Triton", data.make_pages, read_by_hand, read_with_plait),
    Case(
        "detect, track, count",
        "Roboflow",
        data.make_frames,
        track_by_hand,
        track_with_plait,
        Tracker,
    ),
    Case(
        "tokenize, embed, cluster",
        "a search index",
        data.make_texts,
        embed_by_hand,
        index_with_plait,
        Clusters,
    ),
    Case("types of files", "magika", data.make_files, identify_by_hand, identify_with_plait),
    Case("blur the background", "MediaPipe", data.make_frames, blur_by_hand, blur_with_plait),
    Case(
        "wake words",
        "openWakeWord",
        data.make_chunks,
        find_words_by_hand,
        find_words_with_plait,
        make_first=LastSeconds,
    ),
)
