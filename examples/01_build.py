"""Build a small graph by hand, plan it for two devices, read the plan, run it.

python examples/01_build.py
"""

from __future__ import annotations

import numpy as np
import plait as pl


def build() -> pl.Graph:
    """Return a classifier of two fully connected nodes with random weights."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("classifier")
    x = b.input("x", "float32", ("batch", 8))
    hidden = x.mat_mul(random.normal(size=(8, 16)).astype("float32"), name="hidden")
    hidden = hidden.relu(name="rectify")
    scores = hidden.mat_mul(random.normal(size=(16, 3)).astype("float32"), name="scores")
    b.output("probabilities", scores.softmax(axis=-1, name="softmax"))
    return b.build()


def main() -> None:
    graph = build()
    print(graph, "\n")

    # All on the worker but the last node. The batch stays open until it is fed.
    plan = pl.plan(graph, devices=["worker:0", "cpu"], pin={"softmax": "cpu", "*": "worker:0"})
    print(plan.for_shapes({"x": (4, 8)}).report(nodes=True), "\n")

    x = np.random.default_rng(1).normal(size=(4, 8)).astype("float32")
    print(pl.run(plan, {"x": x})["probabilities"].round(3))


if __name__ == "__main__":
    main()
