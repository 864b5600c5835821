"""What does a small If cost, and a count that varies?

A real network behind an If on what is fed (loud images are scaled), beside ONNX Runtime called by
hand, and a plan in which all that follows waits for the condition. And the same network on as many
rows as a NonZero finds, a new count each time: planned once for all by bounds, or as they come.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import plait as pl
from measure import alternate, save
from plait.graph.values.tensor import Array
from plait.scheduler.planner import prepare
from real_models import in_package

SHAPE = (3, 48, 48)
FILE = ("models", "ch_ppocr_mobile_v2.0_cls_infer.onnx")


def scaled(name: str, by: float) -> pl.Graph:
    """Return a branch: an image times a number."""
    b = pl.GraphBuilder(name)
    b.output("y", b.op("Mul", b.input("x", "float32", (1, *SHAPE)), np.float32(by)))
    return b.build()


def behind_a_branch(model: pl.Graph) -> pl.Graph:
    """Return the model behind an If."""
    b = pl.GraphBuilder("branch")
    x = b.input("x", "float32", (1, *SHAPE))
    loud = b.op("Greater", b.op("ReduceMax", x, keepdims=False), np.float32(1))
    x = b.op("If", loud, x, then_branch=scaled("then", 0.5), else_branch=scaled("else", 1))
    (result,) = b.include(model, {model.inputs[0]: x}).values()
    b.output("y", result)
    return b.build()


def behind_a_count(model: pl.Graph, most: int) -> pl.Graph:
    """Return the model on the rows that are loud."""
    b = pl.GraphBuilder("count")
    x = b.input("x", "float32", (most, *SHAPE))
    loud = b.op("Greater", b.op("ReduceMax", x, np.array([1, 2, 3]), keepdims=False), np.float32(1))
    kept = b.op("Squeeze", b.op("NonZero", loud, name="kept"), np.array([0]))
    (result,) = b.include(model, {model.inputs[0]: b.op("Gather", x, kept, axis=0)}).values()
    b.output("y", result)
    return b.build()


def waiting(graph: pl.Graph) -> pl.Plan:
    """Return the plan in which an If waits for its condition."""
    with mock.patch.object(prepare, "with_whole_nodes", lambda graph, *_, **__: graph):
        return pl.plan(graph, ["ort"])


def by_hand(session: Any, x: Array) -> Array:
    """Choose in numpy, and call ONNX Runtime."""
    given = x * np.float32(0.5 if x.max() > 1 else 1)
    result: Array = session.run(None, {session.get_inputs()[0].name: given})[0]
    return result


def branches(model: pl.Graph, session: Any, rounds: int) -> Mapping[str, Any]:
    """Time the If: medians in ms, and over that by hand on the wall and of the processor."""
    image = np.random.default_rng(0).random((1, *SHAPE), np.float32)
    graph = behind_a_branch(model)
    with ExitStack() as stack:
        plans = {"one node": pl.plan(graph, ["ort"]), "waits": waiting(graph)}
        sides: dict[str, Callable[[], Any]] = {"by hand": partial(by_hand, session, image)}
        for name, plan in plans.items():
            opened = stack.enter_context(pl.BlockingSession(plan))
            sides[name] = partial(opened.run, {"x": image})
            np.testing.assert_allclose(sides[name]()["y"], sides["by hand"](), atol=1e-4)
        wall = alternate(sides, rounds=rounds)
        cpu = alternate(sides, rounds=rounds, clock=time.process_time)
    return {
        name: {
            "ms": round(1e3 * wall[name], 3),
            "of_by_hand": round(wall[name] / wall["by hand"], 3),
            "cpu_of_by_hand": round(cpu[name] / cpu["by hand"], 3),
        }
        for name in sides
    }


def counts(model: pl.Graph, most: int, rounds: int) -> Mapping[str, Any]:
    """Time the first item of each count, and later ones: medians in ms over fresh sessions."""
    graph, figures = behind_a_count(model, most), {}
    random = np.random.default_rng(0)
    plans = {
        "bounded": pl.plan(graph, ["ort", "cpu"], bounds={"kept.shape[1]": most}),
        "as they come": pl.plan(graph, ["ort", "cpu"]),
    }
    times: dict[str, dict[str, list[float]]] = {n: {"new": [], "known": []} for n in plans}
    for _ in range(rounds):
        for name, plan in plans.items():
            with pl.BlockingSession(plan) as session:
                session.run({"x": np.full((most, *SHAPE), 2, np.float32)})
                order = random.permutation(most)
                for kind in ("new", "known"):
                    for count in order:
                        x = random.random((most, *SHAPE), np.float32)
                        x[:count] += 1
                        start = time.perf_counter()
                        session.run({"x": x})
                        times[name][kind].append(1e3 * (time.perf_counter() - start))
    for name, kinds in times.items():
        figures[name] = {
            f"{kind}_ms": round(statistics.median(values), 2) for kind, values in kinds.items()
        }
    return figures


def main() -> None:
    """Time both, and write results/control_flow.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=6)
    arguments = parser.parse_args()
    path = in_package("rapidocr_onnxruntime", *FILE)
    model = pl.load(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    figures = {
        "model": FILE[-1],
        "branch": branches(model, session, arguments.rounds),
        "count": counts(model, arguments.most, max(2, arguments.rounds // 3)),
    }
    save("control_flow", figures)


if __name__ == "__main__":
    main()
