"""Planning reads straight down: few functions deep, in few files."""

from __future__ import annotations

import re

import numpy as np
import plait as pl
from counted_work import walk_of

DEEPEST, MOST_FILES = 20, 72
"""For one device: what a reader has to keep in mind, and to open.

The files of the graph's own operators and kernels do not count, nor does the check that tests make
of each plan.
"""


def network() -> pl.Graph:
    b = pl.GraphBuilder("two layers")
    x = h = b.input("x", "float32", (4, 16))
    for layer in range(2):
        weights = np.full((16, 16), layer + 1, "float32")
        h = b.op("Relu", b.op("Add", b.op("MatMul", h, weights), x))
    b.output("y", b.op("Softmax", h))
    return b.build()


def test_planning_for_one_device_is_a_short_walk() -> None:
    pl.plan(network(), ["cpu"])  # what is imported and found once is no part of it
    graph = network()
    walk = walk_of(lambda: pl.plan(graph, ["cpu"]))
    assert walk.depth <= DEEPEST
    own = re.compile(r"/graph/operators/|/devices/kernels/|/memory/(verify|contents)\.py")
    files = [file for file in walk.files if not own.search(file)]
    assert len(files) <= MOST_FILES, sorted(files)
