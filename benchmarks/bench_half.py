"""What does float16 cost real models in accuracy, and save in bytes?

Each model of `quantization_inputs` runs in float32 and with ``precision="float16"`` on the same
drawn pages, lines, files and sounds: signal to noise of its outputs in decibels, how often they
serve as those of float32 do, bytes of constants and of memory for one item. On the cpu, whose
numpy has float16 for storage alone, the times are no recommendation: they are measured with --time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import plait as pl
from measure import alternate, save
from plait.scheduler.quantization.accuracy import compare
from quantization_inputs import CASES, Case, Feeds, Outputs

BYTES = 2**20
PRECISIONS = "float32", "float16"


def outputs_of(plan: pl.Plan, items: Sequence[Feeds]) -> list[Outputs]:
    with pl.BlockingSession(plan) as session:
        return [session.run(item) for item in items]


def mebibytes(plan: pl.Plan) -> dict[str, float]:
    """Return what a plan needs for constants, and for one item."""
    pools = plan.memory.pools.values() if plan.memory is not None else ()
    constants = sum(value.nbytes for value in plan.graph.constants.values())
    return {"constants": constants / BYTES, "memory": sum(pool.nbytes for pool in pools) / BYTES}


def compared(case: Case, count: int, device: str, rounds: int) -> dict[str, Any]:
    """Return what a model loses and gains; bytes and nodes are those for the first item."""
    graph, items = case.graph(), case.items(count)
    shapes = {name: value.shape for name, value in items[0].items()}
    plans = {name: pl.plan(graph, [device], precision=name, shapes=shapes) for name in PRECISIONS}
    expected, found = (
        outputs_of(pl.plan(graph, [device], precision=name), items) for name in PRECISIONS
    )
    pairs = list(zip(expected, found, strict=True))
    half = plans["float16"]
    casts = sum(node.op == "Cast" for node in half.graph.nodes if node.name in half.request.halved)
    made: dict[str, Any] = {
        "items": len(pairs),
        "nodes": len(half.graph.nodes) - casts,
        "in_float16": len(half.request.halved) - casts,
        "conversions": casts,
        "mebibytes": {name: mebibytes(plan) for name, plan in plans.items()},
        "sqnr_db": {name: one.sqnr_db for name, one in compare(pairs).items()},
        case.question: statistics.mean(case.score(*pair) for pair in pairs),
    }
    if rounds:
        made["seconds"] = timed(plans, items[0], rounds)
    return made


def timed(plans: dict[str, pl.Plan], item: Feeds, rounds: int) -> dict[str, float]:
    with (
        pl.BlockingSession(plans["float32"]) as single,
        pl.BlockingSession(plans["float16"]) as half,
    ):
        sides = {"float32": partial(single.run, item), "float16": partial(half.run, item)}
        return alternate(sides, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[*CASES], choices=[*CASES])
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--time", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures = {
        name: compared(CASES[name], arguments.items, arguments.device, arguments.time)
        for name in arguments.models
    }
    for name, one in figures.items():
        print(name, one)
    if arguments.save:
        save("half", {"device": arguments.device, "models": figures})


if __name__ == "__main__":
    main()
