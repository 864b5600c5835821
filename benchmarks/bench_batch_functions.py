"""Compare pipelines with functions of several items with the same functions called by hand.

A function takes a list of up to 64 texts, between two short functions: it costs 5 ms and 20 µs for
each text, or next to nothing. Another one follows a small network. In addition, lists of 64 texts
go through the network by `each`. Sides: calls for 64 items at a time in a loop and in a
`ThreadPoolExecutor` with a thread for each core, and plait. Sides take turns; medians of wall and
of processor time per item.

    python benchmarks/bench_batch_functions.py [--rounds 7] [--keep]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
from measure import save
from plait.graph.formats.onnx.writer import to_onnx

SIZE, ITEMS = 64, 2048
Way = Callable[[Sequence[Any]], list[Any]]


def measure_slowly(texts: list[str]) -> list[int]:
    time.sleep(0.005 + 0.00002 * len(texts))
    return [*map(len, texts)]


def measure_quickly(texts: list[str]) -> list[int]:
    return [*map(len, texts)]


def to_row(text: str) -> Any:
    return np.full((1, 256), len(text), np.float32)


def find_labels(scores: list[Any]) -> list[int]:
    return [*map(int, np.concatenate(scores).argmax(1))]


def find_label(scores: Any) -> int:
    return int(scores.argmax())


def add_one(number: int) -> int:
    return number + 1


def make_network() -> Any:
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("scorer")
    x = b.input("x", "float32", ("rows", 256))
    weights = [random.standard_normal(shape, np.float32) for shape in ((256, 512), (512, 8))]
    b.output("y", (x @ weights[0]).relu() @ weights[1])
    return b.build()


def open_network() -> Callable[[Any], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = to_onnx(make_network()).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def make_ways(work: Callable[[list[str]], list[Any]], stack: ExitStack) -> dict[str, Way]:
    pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))

    def cut(items: Sequence[str]) -> Iterator[list[str]]:
        return (list(items[n : n + SIZE]) for n in range(0, len(items), SIZE))

    return {
        "loop of batches": lambda items: [one for part in map(work, cut(items)) for one in part],
        "pool of batches": lambda items: [
            one for part in pool.map(work, cut(items)) for one in part
        ],
    }


def make_cases(stack: ExitStack) -> Iterator[tuple[str, dict[str, Way]]]:
    for name, function in (("5 ms a call", measure_slowly), ("short", measure_quickly)):

        def work(texts: list[str], function: Any = function) -> list[int]:
            return [n + 1 for n in function([text.strip() for text in texts])]

        pipe = stack.enter_context(
            pl.pipeline(str.strip, pl.step(function, batch=SIZE), add_one, example=" a ")
        )
        yield name, {**make_ways(work, stack), "plait": pipe.map}
    score = open_network()

    def work_with_network(texts: list[str]) -> list[int]:
        scores = score(np.concatenate([to_row(text.strip()) for text in texts]))
        return find_labels([scores])

    network, after = pl.step(make_network(), batch=SIZE), pl.step(find_labels, batch=SIZE)
    pipe = stack.enter_context(pl.pipeline(str.strip, to_row, network, after, example=" a "))
    each = pl.each(str.strip, to_row, make_network(), find_label, batch=SIZE)
    listed = stack.enter_context(pl.pipeline(each, example=[" a "] * SIZE))

    def run_lists(items: Sequence[str]) -> list[int]:
        lists = [items[n : n + SIZE] for n in range(0, len(items), SIZE)]
        return [label for labels in listed.stream(lists) for label in labels]

    ways = {**make_ways(work_with_network, stack), "plait": pipe.map, "plait, lists": run_lists}
    yield "after a network", ways


def compare(ways: Mapping[str, Way], rounds: int) -> dict[str, Any]:
    items = [f" {number} " for number in range(ITEMS)]
    wanted = ways["loop of batches"](items)
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            begun, busy = time.perf_counter(), time.process_time()
            found = way(items)
            if turn:  # sessions are opened in the first
                wall[name].append((time.perf_counter() - begun) / ITEMS * 1e6)
                cpu[name].append((time.process_time() - busy) / ITEMS * 1e6)
            assert found == wanted, name
    best = wall["pool of batches"]
    return {
        name: {
            "wall_us": round(statistics.median(wall[name]), 1),
            "cpu_us": round(statistics.median(cpu[name]), 1),
            "of_pool": round(
                statistics.median(a / b for a, b in zip(wall[name], best, strict=True)), 2
            ),
        }
        for name in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"load": os.getloadavg()[0]}
    with ExitStack() as stack:
        for name, ways in make_cases(stack):
            figures[name] = compare(ways, arguments.rounds)
            print(name)
            for side, found in figures[name].items():
                print(f"  {side:16}", *(f"{k} {v:8}" for k, v in found.items()))
    if arguments.keep:
        save("batch_functions", figures)


if __name__ == "__main__":
    main()
