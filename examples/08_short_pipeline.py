"""A pipeline in ten lines: marks are found in drawings, and each is named by a network.

python examples/08_short_pipeline.py
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import plait as pl

SIDE, MARK = 64, 8
SHAPES = {
    "square": np.ones((MARK, MARK), bool),
    "frame": ~np.pad(np.ones((MARK - 2, MARK - 2), bool), 1),
    "cross": np.eye(MARK, dtype=bool) | np.eye(MARK, dtype=bool)[::-1],
}


def draw(seed: int) -> bytes:
    chance = np.random.default_rng(seed)
    drawing = np.zeros((SIDE, SIDE), np.uint8)
    for top, left in MARK * chance.choice(SIDE // MARK, (3, 2)):
        shape = SHAPES[chance.choice([*SHAPES])]
        drawing[top : top + MARK, left : left + MARK] = 255 * shape
    return zlib.compress(drawing.tobytes())


def make_detector() -> pl.Graph:
    b = pl.GraphBuilder("detector")
    pixels = b.input("pixels", "float32", (1, 1, SIDE, SIDE))
    b.output("ink", b.op("AveragePool", pixels, kernel_shape=(MARK, MARK), strides=(MARK, MARK)))
    return b.build()


def make_classifier() -> pl.Graph:
    b = pl.GraphBuilder("classifier")
    marks = b.input("marks", "float32", (1, MARK * MARK))
    shapes = np.stack([shape.ravel() for shape in SHAPES.values()], axis=1)
    b.output("scores", marks @ (2 * shapes - 1).astype(np.float32))
    return b.build()


def decode(file: bytes) -> Any:
    pixels = np.frombuffer(zlib.decompress(file), np.uint8)
    return pixels.reshape(1, 1, SIDE, SIDE).astype(np.float32) / 255


def find_cells(ink: Any) -> list[list[int]]:
    return list(map(list, np.argwhere(ink[0, 0] > 0)))


def crop(cell: list[int], drawing: Any) -> Any:
    top, left = (MARK * place for place in cell)
    return 2 * drawing[0, 0, top : top + MARK, left : left + MARK].ravel() - 1


def name_shape(scores: Any) -> str:
    return list(SHAPES)[int(scores.argmax())]


def main() -> None:
    files = list(map(draw, range(12)))
    pipe = pl.pipeline(
        decode,
        make_detector(),
        find_cells,
        pl.each(crop, make_classifier(), name_shape, inputs=["find_cells", "decode"], batch=8),
        example=files[0],
    )
    with pipe:
        for shapes in pipe.stream(files):
            print(", ".join(shapes))


if __name__ == "__main__":
    main()
