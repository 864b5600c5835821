"""What does one node for attention gain over products and a Softmax, in time and memory?

Blocks of attention with a scale and a mask, as Hugging Face writes them out, and the real models
that have some: each is planned with and without `fuse_attention`, and sessions take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
import trio
from bench_passes import WITH, alternate, difference, size_of
from measure import save
from plait.graph.passes import PASSES
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

WRITTEN_OUT = "written out"
BLOCKS = ((1, 8, 40, 15), (8, 8, 40, 15), (1, 12, 128, 64), (1, 12, 512, 64), (1, 12, 2048, 64))
"""Batch, heads, tokens and elements for each head; the first is that of PP-OCR's recognition."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-least-s", type=float, default=0.05, help="per turn")
    parser.add_argument("--most-tokens", type=int, default=2048)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for batch, heads, tokens, depth in BLOCKS:
        if tokens <= options.most_tokens:
            name = f"{batch} of {heads} heads, {tokens} tokens of {depth}"
            graph = block(batch, heads, tokens, depth)
            figures[name] = trio.run(measure, graph, feeds(graph), options)
            print(f"{name:32} {line(figures[name])}", flush=True)
    for name, model in REAL_MODELS.items():
        if "recognition" in name:
            graph, fed = pl.load(model.path()), model.feeds(1)
            figures[name] = trio.run(measure, graph, fed, options)
            print(f"{name:32} {line(figures[name])}", flush=True)
    save("attention", {"device": options.device, "models": figures})


async def measure(
    graph: pl.Graph, fed: Mapping[str, Array], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what plans with and without the pass have and take."""
    shapes = {name: value.shape for name, value in fed.items()}
    plans = {
        name: pl.plan(graph, [options.device], shapes=shapes, passes=passes)
        for name, passes in ((WRITTEN_OUT, ["-fuse_attention"]), (WITH, PASSES))
    }
    figures: dict[str, Any] = {name: size_of(plan) for name, plan in plans.items()}
    async with pl.Session(plans[WRITTEN_OUT]) as before, pl.Session(plans[WITH]) as after:
        results = [await session.run(fed) for session in (before, after)]
        figures["largest_difference"] = difference(*results)
        calls = {WRITTEN_OUT: lambda: before.run(fed), WITH: lambda: after.run(fed)}
        seconds = await alternate(calls, options.rounds, options.at_least_s)
    for name, each in seconds.items():
        figures[name]["milliseconds"] = 1e3 * each
    figures["speed_up"] = seconds[WRITTEN_OUT] / seconds[WITH]
    return figures


def block(batch: int, heads: int, tokens: int, depth: int) -> pl.Graph:
    """Return attention between linear layers, which are left out."""
    b = pl.GraphBuilder("attention")
    q, k, v = (turned(b, name, batch, heads, tokens, depth) for name in "qkv")
    mask = b.input("mask", "float32", (batch, 1, 1, tokens))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = b.op("Add", b.op("Div", scores, np.float32(np.sqrt(depth))), mask)
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores), v), perm=(0, 2, 1, 3))
    b.output("y", b.op("Reshape", y, np.array([0, 0, heads * depth])))
    return b.build()


def turned(b: pl.GraphBuilder, name: str, batch: int, heads: int, tokens: int, depth: int) -> str:
    x = b.input(name, "float32", (batch, tokens, heads * depth))
    rows = b.op("Reshape", x, np.array([0, 0, heads, depth]))
    made: str = b.op("Transpose", rows, perm=(0, 2, 1, 3))
    return made


def feeds(graph: pl.Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {name: graph.tensors[name].static_shape for name in graph.inputs}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def line(figures: Mapping[str, Any]) -> str:
    before, after = figures[WRITTEN_OUT], figures[WITH]
    times, bytes_ = (
        f"{before[key] / scale:9.2f} -> {after[key] / scale:9.2f} {unit}"
        for key, scale, unit in (("milliseconds", 1, "ms"), ("item_bytes", 2**20, "MiB"))
    )
    return f"{times} {bytes_}  {figures['speed_up']:5.2f} times"


if __name__ == "__main__":
    main()
