"""Do bias and activation cost numpy less while what a convolution or a norm wrote is in cache?

Convolutions of one cell as they occur in the real models: the product of matrices as a whole, then
bias and activation in passes over all of it (what `cpu` does), against the same calls for bands of
cells or of features, each finished when it is multiplied. And BatchNormalization followed by Relu,
as in densenet: in three passes, against blocks of channels. All sides yield the same bits.

Times are those of the measuring thread on a core (BLAS runs on one thread); sides take turns.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from bench_layouts import alternate
from measure import save
from plait.devices.kernels.blocks import iterate_blocks
from plait.devices.kernels.registry import Step, run_in_order
from plait.graph.values.tensor import Array

SHAPES = (
    (16, 32, 102400),
    (32, 48, 25600),
    (48, 96, 6400),
    (192, 192, 1600),
    (64, 128, 1920),
    (256, 64, 3136),
    (64, 256, 3136),
    (256, 1024, 196),
)
"""Channels, features and cells of convolutions."""

NORMALIZED = ((64, 3136), (256, 3136), (512, 784), (1024, 196), (64, 12544), (64, 100352))
"""Channels and cells."""

BLOCK = 1 << 16
"""Elements, of an activation that is computed block by block."""

WHOLE = "whole"

Activation = Callable[[Array, Array], list[Step]]


def hard_swish(y: Array, temporary: Array) -> list[Step]:
    """Return the steps: y = y · min(max(y/6 + 1/2, 0), 1)."""
    gate = temporary[: y.size].reshape(y.shape)
    sixth, half, zero, one = (np.array(number, np.float32) for number in (1 / 6, 0.5, 0, 1))
    return [
        partial(np.multiply, y, sixth, gate),
        partial(np.add, gate, half, gate),
        partial(gate.clip, zero, one, gate),
        partial(np.multiply, y, gate, y),
    ]


def relu(y: Array, temporary: Array) -> list[Step]:
    """Return the step: y = max(y, 0)."""
    zero, infinity = np.array(0, np.float32), np.array(np.inf, np.float32)
    return [partial(y.clip, zero, infinity, y)]


class Convolution:
    """A convolution of one cell, with bias and activation."""

    def __init__(self, channels: int, features: int, cells: int, activate: Activation) -> None:
        random = np.random.default_rng(0)
        self.x = random.standard_normal((channels, cells), np.float32)
        self.w = random.standard_normal((features, channels), np.float32)
        self.bias = random.standard_normal((features, 1), np.float32)
        self.temporary = np.empty(features * cells, np.float32)
        self.activate = activate

    def sides(self) -> dict[str, tuple[Array, Step]]:
        """Return what writes the result, and the result, by name."""
        makers: dict[str, Callable[[Array], list[Step]]] = {WHOLE: self._whole}
        makers["features"] = self._features
        for band in (1 << 16, 1 << 17, 1 << 18):
            makers[f"cells, {band} elements"] = partial(self._cells, band)
        sides: dict[str, tuple[Array, Step]] = {}
        for name, make in makers.items():
            y = np.empty((len(self.w), self.x.shape[1]), np.float32)
            sides[name] = y, run_in_order(make(y))
        return sides

    def _whole(self, y: Array) -> list[Step]:
        steps: list[Step] = [
            partial(np.matmul, self.w, self.x, y),
            partial(np.add, y, self.bias, y),
        ]
        for part in iterate_blocks(y.size, BLOCK):
            steps += self.activate(y.reshape(-1)[part], self.temporary)
        return steps

    def _features(self, y: Array) -> list[Step]:
        steps: list[Step] = [partial(np.matmul, self.w, self.x, y)]
        for part in iterate_blocks(len(y), max(1, BLOCK // y.shape[1])):
            steps.append(partial(np.add, y[part], self.bias[part], y[part]))
            steps += self.activate(y[part].reshape(-1), self.temporary)
        return steps

    def _cells(self, band: int, y: Array) -> list[Step]:
        steps: list[Step] = []
        for part in iterate_blocks(y.shape[1], max(64, band // len(y))):
            kept = y[:, part]
            steps.append(partial(np.matmul, self.w, self.x[:, part], kept))
            steps.append(partial(np.add, kept, self.bias, kept))
            steps += self.activate(kept, self.temporary)
        return steps


def normalization(channels: int, cells: int) -> dict[str, tuple[Array, Step]]:
    """Return BatchNormalization and Relu in whole passes, and by blocks of channels."""
    random = np.random.default_rng(0)
    x = random.standard_normal((channels, cells), np.float32)
    factor, shift = (random.standard_normal((channels, 1), np.float32) for _ in range(2))
    sides: dict[str, tuple[Array, Step]] = {}
    for name, block in ((WHOLE, x.size), ("blocks", BLOCK), ("larger blocks", 2 * BLOCK)):
        y, steps = np.empty_like(x), list[Step]()
        for part in iterate_blocks(channels, max(1, block // cells)):
            steps.append(partial(np.multiply, x[part], factor[part], y[part]))
            steps.append(partial(np.add, y[part], shift[part], y[part]))
            steps += relu(y[part].reshape(-1), y)
        sides[name] = y, run_in_order(steps)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-least-s", type=float, default=0.01, help="per turn")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for shape in SHAPES:
        for activate in (hard_swish, relu):
            name = "Conv {} -> {}, {} cells, {}".format(*shape, activate.__name__)
            figures[name] = measure(Convolution(*shape, activate).sides(), options)
            print(name, figures[name], flush=True)
    for channels, cells in NORMALIZED:
        name = f"BatchNormalization {channels}, {cells} cells, relu"
        figures[name] = measure(normalization(channels, cells), options)
        print(name, figures[name], flush=True)
    save("epilogues", {"milliseconds": figures})


def measure(sides: dict[str, tuple[Array, Step]], options: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of each side; all have the bits of the first."""
    for y, step in sides.values():
        step()
        assert np.array_equal(y, sides[WHOLE][0])
    seconds = alternate({name: step for name, (_, step) in sides.items()}, options)
    return {name: round(1e3 * each, 4) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
