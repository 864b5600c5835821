"""What does recomputation save of the memory of training, and what does it cost in time?

A step of training of convolutions with batch normalization, of blocks of a transformer, and of a
deep chain of products: all activations kept, against checkpoints chosen by plait and, where there
are blocks, named at the end of each. Bytes are planned ones of an item, beside variables. Times
are those of the process on a core (BLAS runs on one thread); sides take turns. All have the same
losses, but for the rounding of what passes fuse when less is kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import plait as pl
from measure import save
from plait import learning
from plait.graph.core.ir import Graph
from plait.graph.gradients.checkpoints import Checkpoints
from plait.graph.gradients.recomputation import is_again
from plait.graph.values.tensor import Array

Feeds = dict[str, Array]
Made = tuple[pl.GraphBuilder, str, list[str]]
"""A graph's builder, its last tensor, and the tensors at the ends of its blocks."""

CHANNELS, SIZE = 16, 32
WIDTH, HEADS, TOKENS = 64, 4, 128


def convolutions(layers: int, batch: int) -> Made:
    """Return residual blocks of two convolutions each, with batch normalization."""
    random = np.random.default_rng(0)
    b, ends = pl.GraphBuilder("convolutions"), list[str]()
    h = b.input("x", "float32", (batch, CHANNELS, SIZE, SIZE))
    for _ in range(layers // 2):
        y = h
        for _ in range(2):
            w = b.variable(
                f"w{len(b.nodes)}", learning.he_normal((CHANNELS, CHANNELS, 3, 3), random)
            )
            y = b.op("Conv", y, w, pads=[1] * 4)
            parts = [
                b.variable(f"{p}{len(b.nodes)}", np.full(CHANNELS, p in "sv", "float32"))
                for p in "sbmv"
            ]
            y = b.op("Relu", b.op("BatchNormalization", y, *parts, training_mode=1, outputs=3)[0])
        h = b.op("Add", h, y)
        ends.append(h)
    return b, h, ends


def transformer(layers: int, batch: int) -> Made:
    """Return blocks of attention and of two products, each behind a norm and beside a shortcut."""
    random = np.random.default_rng(0)
    b, ends = pl.GraphBuilder("transformer"), list[str]()
    h = b.input("x", "float32", (batch, TOKENS, WIDTH))

    def weights(*shape: int) -> str:
        return b.variable(f"w{len(b.nodes)}", learning.glorot_normal(shape, random))

    def norm(x: str) -> str:
        scale = b.variable(f"s{len(b.nodes)}", np.ones(WIDTH, "float32"))
        return str(b.op("LayerNormalization", x, scale))

    for _ in range(layers):
        x = norm(h)
        parts = [b.op("MatMul", x, weights(WIDTH, WIDTH)) for _ in range(3)]
        y = b.op("Attention", *parts, q_num_heads=HEADS, kv_num_heads=HEADS)
        h = b.op("Add", h, b.op("MatMul", y, weights(WIDTH, WIDTH)))
        y = b.op("Gelu", b.op("MatMul", norm(h), weights(WIDTH, 4 * WIDTH)))
        h = b.op("Add", h, b.op("MatMul", y, weights(4 * WIDTH, WIDTH)))
        ends.append(h)
    return b, h, ends


def chain(layers: int, batch: int) -> Made:
    """Return products with Relu."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("chain")
    h = b.input("x", "float32", (16 * batch, 2 * WIDTH))
    for i in range(layers):
        w = b.variable(f"w{i}", learning.he_normal((2 * WIDTH, 2 * WIDTH), random))
        h = b.op("Relu", b.op("MatMul", h, w))
    return b, h, []


def training(make: Callable[[], Made], choose: Callable[[list[str]], Checkpoints]) -> Graph:
    """Return a network with a step of training."""
    b, h, ends = make()
    loss = b.op("ReduceMean", b.op("Mul", h, h), keepdims=False)
    b.output("loss", loss)
    train = learning.minimize(b, loss, learning.SGD(1e-3), checkpoint=choose(ends))
    b.output("train", train)
    return b.build()


SIDES: dict[str, Callable[[list[str]], Checkpoints]] = {
    "all kept": lambda ends: None,
    "auto": lambda ends: "auto",
    "each block": lambda ends: ends,
}


def measured(make: Callable[[], Made], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures of each side."""
    figures: dict[str, dict[str, Any]] = {}
    sessions: dict[str, tuple[pl.BlockingSession, Feeds]] = {}
    losses = []
    for name, choose in SIDES.items():
        if name == "each block" and not make()[2]:
            continue
        plan = pl.plan(training(make, choose))
        assert plan.memory is not None
        (pool,) = plan.memory.pools.values()
        graph = plan.graph
        figures[name] = {
            "megabytes": round(pool.item_nbytes / 1e6, 2),
            "nodes": len(graph.nodes),
            "computed again": sum(map(is_again, graph.nodes)),
            "predicted ms": round(1e3 * pl.simulate(plan).makespan_s, 1),
        }
        shape = graph.tensors["x"].shape
        assert shape is not None
        feeds = {
            "x": np.random.default_rng(1).normal(size=tuple(map(int, shape))).astype("float32")
        }
        sessions[name] = pl.BlockingSession(plan).__enter__(), feeds
        losses.append(float(sessions[name][0].run(feeds)["loss"]))
    assert np.allclose(losses, losses[0], rtol=1e-4), losses
    sides = {name: partial(session.run, feeds) for name, (session, feeds) in sessions.items()}
    seconds = _seconds(sides, rounds)
    for name, (session, _) in sessions.items():
        figures[name]["ms"] = round(1e3 * seconds[name], 1)
        figures[name]["same bits at first"] = losses[0] == losses[list(sessions).index(name)]
        session.close()
    return figures


def _seconds(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    layers, batch = options.layers, options.batch
    networks = {
        f"{layers} convolutions, batch {batch}": partial(convolutions, layers, batch),
        f"{max(1, layers // 4)} blocks of a transformer, batch {batch}": partial(
            transformer, max(1, layers // 4), batch
        ),
        f"{2 * layers} products, batch {16 * batch}": partial(chain, 2 * layers, batch),
    }
    figures = {}
    for name, make in networks.items():
        figures[name] = measured(make, options.rounds)
        print(name, figures[name], flush=True)
    save("recomputation", {"training": figures})


if __name__ == "__main__":
    main()
