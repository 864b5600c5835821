"""What does tracing cost, how much of an item's time is known, and do what-ifs come true?

Cost: a stream of trivial items with and without trace, and with every node timed, in turns; the
baseline is the same session with `trace=False`. Items are as short as they get (two Python
functions that return their input), so that this is the worst case; the same for items of about a
millisecond. Both the time that passes and the time that this process computes are compared, round
by round: the latter hears less of what else the machine does. Goal: at most 2 %.

Attribution: the share of the wall time of real items that is booked nowhere. Goal: at most 1 %.

What if: two workers spin for given times. A profile says what the stream would gain if one of the
functions were twice as fast; then it is, exactly, and the stream runs again, in turns with the
first one. Goal: what was said and what happened differ by at most 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save

ROUNDS = 15
GOALS = {"trace": 0.02, "residual": 0.01, "what if": 0.05}


@pl.operator(name="bench_tracing.same")
def same(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the input: the least that a function can do."""
    return x


@pl.operator(name="bench_tracing.first")
def first(x: np.ndarray[Any, Any], *, us: int) -> np.ndarray[Any, Any]:
    """Keep a core busy for some time."""
    return spin(x, us)


@pl.operator(name="bench_tracing.second")
def second(x: np.ndarray[Any, Any], *, us: int) -> np.ndarray[Any, Any]:
    """Keep a core busy for some time."""
    return spin(x, us)


def spin(x: np.ndarray[Any, Any], us: int) -> np.ndarray[Any, Any]:
    end = time.perf_counter_ns() + 1000 * us
    while time.perf_counter_ns() < end:
        pass
    return x


def trivial() -> pl.Plan:
    builder = pl.GraphBuilder("trivial")
    h = builder.call(same, builder.input("x", "float32", (1,)), name="first")
    builder.output("y", builder.call(same, h, name="second"))
    pins = {"first": "cpu", "second": "cpu:1"}
    return pl.plan(builder.build(), ["cpu", "cpu:1"], pin=pins, max_in_flight=4)


def products() -> pl.Plan:
    """Return items of about a millisecond, of ten nodes."""
    builder = pl.GraphBuilder("products")
    last = x = builder.input("x", "float32", (128, 128))
    for index in range(10):
        last = builder.op("MatMul", last, x, name=f"n{index}")
    builder.output("y", last)
    return pl.plan(builder.build(), ["cpu"], max_in_flight=4)


def spinning(first_us: int, second_us: int) -> pl.Plan:
    builder = pl.GraphBuilder("spinning")
    x = builder.input("x", "float32", (1,))
    h = builder.call(first, x, name="one", us=first_us)
    builder.output("y", builder.call(second, h, name="two", us=second_us))
    pins = {"one": "worker:0", "two": "worker:1"}
    return pl.plan(builder.build(), ["worker:0", "worker:1"], pin=pins, max_in_flight=3)


def feeds(plan: pl.Plan) -> dict[str, Any]:
    (name,) = plan.graph.inputs
    return {name: np.ones(plan.graph.tensors[name].static_shape, np.float32)}


async def item_s(session: pl.Session, items: int) -> tuple[float, float]:
    """Return the seconds that an item of a stream takes, and for which this process computes."""
    fed = feeds(session.plan)
    start, computed = time.perf_counter(), time.process_time()
    async with session.stream([fed] * items) as results:
        async for item in results:
            _ = item["y"]
    return (time.perf_counter() - start) / items, (time.process_time() - computed) / items


async def costs(plan: pl.Plan, items: int) -> dict[str, Any]:
    """Return what tracing adds to an item, as a share, and what remains unknown of its time."""
    sides = {
        "off": (False, False),
        "trace": (True, False),
        "trace and nodes": (True, True),
    }
    async with AsyncExitStack() as stack:
        sessions = {
            name: await stack.enter_async_context(pl.Session(plan, trace=trace, measure=measure))
            for name, (trace, measure) in sides.items()
        }
        spent: dict[str, list[float]] = {name: [] for name in sides}
        computed: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(ROUNDS + 1):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                elapsed, worked = await item_s(sessions[name], items)
                if turn:  # the first one warms up
                    spent[name].append(elapsed)
                    computed[name].append(worked)
        whole = sessions["trace"].profile().attribution()
    medians = {name: statistics.median(found) for name, found in spent.items()}
    return {
        "us per item": {name: round(seconds * 1e6, 2) for name, seconds in medians.items()},
        "added to the time": added(spent),
        "added to the computing": added(computed),
        "residual": whole.residual_ns / whole.wall_ns,
        "shares": {kind: round(share, 4) for kind, share in whole.shares.items()},
    }


def added(spent: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median of the rounds' ratios: what slows the machine down hits both sides."""
    ratios = {
        name: [one / base for one, base in zip(found, spent["off"], strict=True)]
        for name, found in spent.items()
    }
    return {name: round(statistics.median(found) - 1, 4) for name, found in ratios.items()}


async def what_if(us: tuple[int, int], faster: Mapping[str, float], items: int) -> dict[str, Any]:
    """Return by how much a stream was said to become faster, and by how much it did."""
    before = spinning(*us)
    speeds = [faster.get(name, 1) for name in ("one", "two")]
    after = spinning(*(round(one / speed) for one, speed in zip(us, speeds, strict=True)))
    async with (
        pl.Session(before, measure=True) as measured,
        pl.Session(before) as slow,
        pl.Session(after) as fast,
    ):
        gains = []
        for _ in range(ROUNDS):
            await item_s(measured, items)
            gains.append((await item_s(slow, items))[0] / (await item_s(fast, items))[0] - 1)
        answer = measured.profile().what_if(before, faster)
        told = answer.gain
    happened = statistics.median(gains)
    return {
        "us": list(us),
        "faster": dict(faster),
        "told": round(told, 4),
        "happened": round(happened, 4),
        "limit": answer.limit,
        "error": round((1 + told) / (1 + happened) - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000, help="trivial ones in a round")
    parser.add_argument("--spins", type=int, default=60, help="spinning ones in a round")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "goals": GOALS,
        "trivial items": trio.run(costs, trivial(), arguments.items),
        "items of a millisecond": trio.run(costs, products(), max(arguments.items // 20, 10)),
        "what if": [
            trio.run(what_if, us, faster, arguments.spins)
            for us, faster in (
                ((6000, 4000), {"one": 2.0}),
                ((6000, 2000), {"one": 2.0}),
                ((4000, 4000), {"one": 2.0, "two": 2.0}),
                ((6000, 2000), {"two": 2.0}),
            )
        ],
    }
    save("tracing", figures)


if __name__ == "__main__":
    main()
