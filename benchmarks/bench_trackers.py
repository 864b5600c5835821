"""Cost and identity of trackers of other projects behind a detector on replicas.

Bright boxes move over noise, and disappear at times. A convolution finds them on several cores, and
norfair or ByteTrack (of the package `trackers`) follows them in the order of frames. For each seed,
the track numbers must be those of a loop. Times of a frame are compared with that loop, and with a
ThreadPoolExecutor and a loop over its results. The bound is the loop's time over the number of
cores. Needs `pip install norfair trackers onnx onnxruntime`. Goals: equal tracks for all seeds, at
0.95 of the bound.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plait as pl
from measure import alternate, save
from plait.graph.values.tensor import Array

HEIGHT, WIDTH, CELL = 480, 640, 8
Track = tuple[int, tuple[float, ...]]


def make_film(seed: int, frames: int) -> Iterator[Array]:
    """Yield frames (1, 1, height, width) of several moving boxes."""
    random = np.random.default_rng(seed)
    count, room = random.integers(3, 7), (HEIGHT - 60, WIDTH - 60)
    places, speeds = random.uniform((0, 0), room, (count, 2)), random.uniform(-12, 12, (count, 2))
    for _ in range(frames):
        frame = random.random((1, 1, HEIGHT, WIDTH), "float32")
        places += speeds
        speeds[(places < 0) | (places > room)] *= -1
        places = places.clip((0, 0), room)
        for y, x in places.astype(int)[random.random(count) < 0.93]:
            frame[0, 0, y : y + 48, x : x + 48] += 2
        yield frame


def make_detector() -> pl.Graph:
    """Return a network from a frame to the brightness of its cells."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("detector")
    x = b.input("frame", "float32", (1, 1, HEIGHT, WIDTH))
    kernels = np.full((16, 1, 5, 5), 0.04, "float32")
    hidden = b.op("Conv", x, kernels, pads=[2, 2, 2, 2])
    mixed = (0.01 * random.normal(size=(16, 16, 3, 3))).astype("float32")
    hidden = hidden + 0.001 * b.op("Conv", hidden, mixed, pads=[1, 1, 1, 1]).tanh()
    mean = hidden.mean(1, keepdims=True)
    b.output("cells", b.op("AveragePool", mean, kernel_shape=[CELL] * 2, strides=[CELL] * 2))
    return b.build()


def find_boxes(cells: Array) -> list[tuple[int, int, int, int]]:
    """Return (left, top, right, bottom) of connected bright cells."""
    bright, found = {(int(y), int(x)) for y, x in np.argwhere(cells[0, 0] > 1.2)}, []
    while bright:
        heap, members = [bright.pop()], list[tuple[int, int]]()
        while heap:
            y, x = heap.pop()
            members.append((y, x))
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & bright
            bright -= near
            heap += near
        rows, columns = zip(*members, strict=True)
        ends = min(columns), min(rows), max(columns) + 1, max(rows) + 1
        found.append(tuple(CELL * end for end in ends))
    return sorted(found)


class Norfair:
    """Follows the centres of boxes."""

    def __init__(self) -> None:
        norfair = import_module("norfair")
        self._make = norfair.Detection
        self._tracker = norfair.Tracker("mean_euclidean", 60, initialization_delay=1)

    def __call__(self, boxes: Sequence[Sequence[int]]) -> list[Track]:
        points = [np.array([[(one[0] + one[2]) / 2, (one[1] + one[3]) / 2]]) for one in boxes]
        found = self._tracker.update([self._make(point) for point in points])
        return [(one.id, tuple(one.estimate[0].round(3))) for one in found]


class ByteTrack:
    """Follows boxes by their overlap."""

    def __init__(self) -> None:
        self._detections = import_module("supervision").Detections
        self._tracker = import_module("trackers").ByteTrackTracker()

    def __call__(self, boxes: Sequence[Sequence[int]]) -> list[Track]:
        made = self._detections.empty()
        if boxes:
            scores, kinds = np.full(len(boxes), 0.9), np.zeros(len(boxes), int)
            made = self._detections(np.array(boxes, float), confidence=scores, class_id=kinds)
        found = self._tracker.update(made)
        numbers = [] if found.tracker_id is None else found.tracker_id
        corners = found.xyxy.round(2)
        return [(int(n), tuple(one)) for n, one in zip(numbers, corners, strict=True)]


def number_tracks(tracks: Sequence[Sequence[Track]]) -> list[list[Track]]:
    """Return tracks numbered by their first frame, since norfair counts over all trackers."""
    numbers: dict[int, int] = {}
    return [[(numbers.setdefault(n, len(numbers)), at) for n, at in each] for each in tracks]


class Loop:
    """Does this by hand, with ONNX Runtime on one thread."""

    def __init__(self, model: Path, tracker: Callable[[], Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._run = onnxruntime.InferenceSession(model, options).run
        self._make = tracker

    def detect(self, frame: Array) -> list[tuple[int, int, int, int]]:
        return find_boxes(self._run(None, {"frame": frame})[0])

    def track(self, frames: Sequence[Array]) -> list[list[Track]]:
        follow = self._make()
        return [follow(self.detect(frame)) for frame in frames]

    def track_in_pool(self, pool: ThreadPoolExecutor, frames: Sequence[Array]) -> None:
        follow = self._make()
        for boxes in pool.map(self.detect, frames):
            follow(boxes)


def open_pipeline(model: Path, *followers: Any) -> pl.Pipeline:
    """Return a pipeline; its example goes to the first follower, all items to the last."""
    left = list(followers)

    def follow(boxes: Any) -> Any:
        follower = left.pop(0) if len(left) > 1 else left[0]
        return follower(boxes)

    steps: list[Any] = [model, pl.step(find_boxes, ordered=False), pl.step(follow, ordered=True)]
    return pl.pipeline(*steps, example=next(make_film(0, 1)))


def stream(pipe: pl.Pipeline, frames: Sequence[Array]) -> list[Any]:
    return list(pipe.stream(frames))


def track(model: Path, make: Callable[[], Any], frames: Sequence[Array]) -> list[list[Track]]:
    with open_pipeline(model, make(), make()) as pipe:
        return stream(pipe, frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "seeds": asked.seeds}
    cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        model = Path(folder, "detector.onnx")
        pl.save(make_detector(), model)
        for make in (Norfair, ByteTrack):
            loop, equal = Loop(model, make), 0
            for seed in range(asked.seeds):
                frames = list(make_film(seed, asked.frames))
                wanted, found = loop.track(frames), track(model, make, frames)
                equal += number_tracks(found) == number_tracks(wanted)
            frames = list(make_film(0, 8 * asked.frames))
            with open_pipeline(model, make()) as pipe:
                stream(pipe, frames)
                ways: dict[str, Callable[[], object]] = {
                    "plait": partial(stream, pipe, frames),
                    "pool": partial(loop.track_in_pool, pool, frames),
                    "loop": partial(loop.track, frames),
                }
                times = alternate(ways, rounds=asked.rounds)
            ms = {way: round(time / len(frames) * 1e3, 3) for way, time in times.items()}
            bound = round(ms["loop"] / cores / ms["plait"], 3)
            figures[make.__name__] = {"equal": equal, "ms": ms, "of the bound": bound}
    save("trackers", figures)


if __name__ == "__main__":
    main()
