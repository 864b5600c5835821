"""A smoothed position for each of three cameras, in one stream; items of all run as one batch.

The state is saved, and a second session continues with it.

    python examples/09_state_by_key.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plait as pl

CAMERAS = ("door", "yard", "roof")


def plan() -> pl.Plan:
    """Plan a running mean of the brightest pixel's position."""
    b = pl.GraphBuilder("tracks")
    image = b.input("image", "float32", (1, 64, 64))  # of several cameras, in a batch
    place = image.reshape((-1, 64 * 64)).argmax(axis=1).cast(to="float32")
    mean = b.variable("mean", np.zeros(1, "float32"))
    b.output("position", mean.assign(mean * 0.5 + place * 0.5))
    return pl.plan(b.build(), "cpu", max_in_flight=4)


def read_frames(first: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        for index, camera in enumerate(CAMERAS):
            image = np.zeros((1, 64, 64), "float32")
            image[0, index, number] = 1
            yield {"image": image, "camera": camera}


def main(folder: Path) -> None:
    with pl.BlockingSession(plan()) as session:
        list(session.stream(read_frames(0, 20), key="camera", batch=3))
        session.save_variables(folder / "tracks")
    with pl.BlockingSession(plan()) as session:
        session.load_variables(folder / "tracks")
        for item in session.stream(read_frames(20, 10), key="camera", batch=3):
            position = item["position"]
            camera = CAMERAS[item.index % len(CAMERAS)]
            print(f"{item.index // len(CAMERAS):2} {camera} {position[0]:7.2f}")
        print("cameras:", ", ".join(map(str, session.list_keys())))


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
