"""What does a length that was never fed before cost?

A vector of bytes of any length goes through a Python function, as a JPEG through its decoder, to a
model of 200 nodes and fixed shapes; or through one of which every node varies with the length. Each
length is fed three times, since a session may make a plan for it the first or the second time: what
these take beyond the third is what its being new, and its coming again, costs. The sides take turns
item by item, so that whatever else the machine does strikes all of them.

    fixed     one length, known when it is planned
    as it is  lengths that vary, planned as they come
    bounds    the same within `bounds`
    padded    the same, padded by hand to the longest: one length for plait

Baseline: the same item fed once more. Goal: 0.5 ms for a new length before a model of fixed shapes,
on every device, with bounds or without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec
from quiet import Watch

SIDE, CHANNELS, BLOCKS, LONGEST = 32, 8, 66, 1 << 16
LENGTHS, WARM_UP = 40, 8
IMAGE = TensorSpec("float32", (1, CHANNELS, SIDE, SIDE))
GOAL_MS = 0.5


@pl.operator(name="bench_shapes.decode", outputs=lambda data: IMAGE)
def decode(data: Array) -> Array:
    """Return an image that follows from some bytes."""
    return np.full(IMAGE.static_shape, int(data[:16].sum()) / 4096, np.float32)


def fixed_model() -> Graph:
    """Return bytes of any length, decoded, before a model of fixed shapes."""
    b = pl.GraphBuilder("decoded")
    h = b.op("bench_shapes.decode", b.input("data", "uint8", ("n",)), name="decode")
    return _with_blocks(b, h)


def varying_model() -> Graph:
    """Return a model of which all nodes have an open axis."""
    b = pl.GraphBuilder("varying")
    rows = b.op("Cast", b.input("data", "uint8", ("n",)), to="float32")
    image = b.op("Reshape", rows, np.array([1, 1, 1, -1]))
    return _with_blocks(b, b.op("Concat", *[image] * CHANNELS, axis=1))


def _with_blocks(b: pl.GraphBuilder, h: str) -> Graph:
    random = np.random.default_rng(0)
    for index in range(BLOCKS):
        weights = random.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 8
        made = b.op("Conv", h, weights, pads=[1, 1, 1, 1], name=f"conv{index}")
        h = b.op("Mul", made, b.op("Sigmoid", made), name=f"gated{index}")
    b.output("y", b.op("ReduceMean", h, np.array([1, 2, 3]), keepdims=0, name="mean"))
    return b.build()


def sides(graph: Graph, device: str, longest: int) -> Mapping[str, pl.Plan]:
    """Return the plans by name."""
    pins = {node.name: "cpu" for node in graph.nodes if node.name == "decode"}
    made = partial(pl.plan, graph, dict.fromkeys(["cpu", device]), pin={**pins, "*": device})
    whole = made(shapes={"data": (longest,)})
    return {
        "fixed": whole,
        "as it is": made(),
        "bounds": made(bounds={"n": longest}),
        "padded": whole,
    }


def lengths(longest: int) -> Iterator[int]:
    """Yield lengths, no two of them alike."""
    order = np.random.default_rng(1).permutation(longest // 2)[: LENGTHS + WARM_UP]
    yield longest
    yield from (longest // 2 + int(one) for one in order)


def padded(data: Array, longest: int) -> Array:
    """Return bytes with zeros behind them."""
    room = np.zeros(longest, np.uint8)
    room[: len(data)] = data
    return room


async def measure(graph: Graph, device: str, longest: int) -> dict[str, Any]:
    """Return the medians and minima of each side, in ms."""
    found: dict[str, list[tuple[float, ...]]] = {}
    async with AsyncExitStack() as stack:
        sessions = {
            name: await stack.enter_async_context(pl.Session(one))
            for name, one in sides(graph, device, longest).items()
        }
        for length in lengths(longest):
            data = np.arange(length, dtype=np.uint8)
            for name, session in sessions.items():
                whole = np.arange(longest, dtype=np.uint8)
                given = {"fixed": whole, "padded": data}.get(name, data)
                times = [await _timed(session, given, longest, name) for _ in range(3)]
                found.setdefault(name, []).append(tuple(times))
    return {name: _figures(times) for name, times in found.items()}


async def _timed(session: pl.Session, data: Array, longest: int, side: str) -> float:
    start = time.perf_counter()
    await session.run({"data": padded(data, longest) if side == "padded" else data})
    return (time.perf_counter() - start) * 1e3


def _figures(times: list[tuple[float, ...]]) -> dict[str, float]:
    """Return what new and known lengths took, and what the first of all did."""
    late = times[WARM_UP + 1 :]
    new, again, known = zip(*late, strict=True)
    return {
        "first_ms": times[0][0],
        "new_ms": statistics.median(new),
        "again_ms": statistics.median(again),
        "known_ms": statistics.median(known),
        "costs_ms": statistics.median(one - known for one, _, known in late),
        "again_costs_ms": statistics.median(one - known for _, one, known in late),
        "least_new_ms": min(new),
        "least_known_ms": min(known),
    }


def main() -> None:
    watch = Watch()
    figures: dict[str, Any] = {"lengths": LENGTHS, "goal_ms": GOAL_MS}
    for device in ("cpu", "ort", "worker:0"):
        figures[f"fixed model on {device}"] = trio.run(measure, fixed_model(), device, LONGEST)
    figures["every node varies, on cpu"] = trio.run(measure, varying_model(), "cpu", 1 << 8)
    save("shapes", {**figures, "disturbance": watch.disturbance()})


if __name__ == "__main__":
    main()
